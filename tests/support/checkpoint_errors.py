"""Errors, settings, counts of traces, meshes and threads under `jax.checkpoint`, or what stands in its place."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.checkpoint_common import W, X, f, program, scanned


@program
def concrete_error(remat):
  return jax.jit(jax.grad(remat(lambda x: jnp.sin(x).sum() if x[0, 0] > 0 else x.sum())))(X)


@program
def concrete_error_eager(remat):
  return remat(lambda x: jnp.sin(x).sum() if x[0, 0] > 0 else x.sum())(X)


@program
def concrete_float(remat):
  return remat(lambda x: x * float(x[0, 0]))(X)


@program
def concrete_eager_grad(remat):
  return jax.grad(remat(lambda x: jnp.sin(x).sum() if x[0, 0] > 0 else x.sum()))(X)


@program
def concrete_numpy(remat):
  return jax.jit(jax.grad(remat(lambda x: np.sin(x).sum())))(X)


@program
def shape_error(remat):
  return jax.jit(jax.grad(remat(lambda x: (x @ x).sum())))(X)


@program
def user_error(remat):
  def g(x):
    raise LookupError("mine")

  return jax.jit(jax.grad(remat(g)))(X)


@program
def non_array_output(remat):
  return jax.jit(remat(lambda x: (x, "a")))(X)


@program
def non_array_output_eager(remat):
  return remat(lambda x: (x, "a"))(X)


@program
def leaked_tracer(remat):
  kept = []

  def g(x):
    kept.append(jnp.sin(x))
    return x.sum()

  jax.jit(jax.grad(remat(g)))(X)
  return kept[0] + 1


@program
def leaked_tracer_eager(remat):
  kept = []

  def g(x):
    kept.append(jnp.sin(x))
    return x.sum()

  remat(g)(X)
  return kept[0] + 1


@program
def check_leaks(remat):
  with jax.checking_leaks():
    return jax.jit(jax.grad(remat(f)))(X)


@program
def grad_of_vector_error(remat):
  return jax.jit(jax.grad(remat(jnp.sin)))(X)


@program
def grad_of_int_error(remat):
  return jax.jit(jax.grad(remat(lambda x: (x * 2).sum())))(X.astype(int))


@program
def wrong_arity(remat):
  return jax.jit(remat(lambda x: x))(X, X)


@program
def nan_checks(remat):
  jax.config.update("jax_debug_nans", True)
  try:
    return jax.jit(jax.grad(remat(lambda x: jnp.sqrt(x - 5).sum())))(X)
  finally:
    jax.config.update("jax_debug_nans", False)


@program
def disable_jit(remat):
  with jax.disable_jit():
    return jax.jit(jax.grad(remat(f)))(X)


@program
def x64_inside(remat):
  def g(x):
    with jax.enable_x64(True):
      return jnp.sin(x).sum()

  return jax.jit(jax.grad(remat(g)))(X)


@program
def named_scope(remat):
  def g(x):
    with jax.named_scope("s"):
      return jnp.sin(x @ W).sum()

  return jax.jit(jax.grad(remat(g)))(X)


def counted(fn):
  """A list that grows with every call, and the function."""
  calls = []

  def counting(*args):
    calls.append(None)  # no tracer is kept
    return fn(*args)

  return calls, counting


@program
def traces_once(remat):
  calls, g = counted(lambda x: jnp.sin(x @ W).sum())
  step = jax.jit(jax.grad(remat(g)))
  step(X)
  step(X)
  return len(calls)


@program
def traces_inner_jit_once(remat):
  calls, g = counted(lambda x: jnp.sin(x @ W))
  g = jax.jit(g)
  step = jax.jit(jax.grad(remat(lambda x: g(g(x)).sum())))
  step(X)
  step(X)
  return len(calls)


@program
def traces_scan_body_once(remat):
  calls, body = counted(lambda c, w: (jnp.sin(c @ w), None))
  step = jax.jit(jax.grad(lambda x: scanned(remat(body), x)[0].sum()))
  step(X)
  step(X)
  return len(calls)


@program
def traces_twice_per_shape(remat):
  calls, g = counted(lambda x: jnp.sin(x @ W).sum())
  step = jax.jit(jax.grad(remat(g)))
  step(X)
  step(X[:2])
  step(X)
  return len(calls)


@program
def eager_traces(remat):
  calls, g = counted(lambda x: jnp.sin(x @ W).sum())
  h = remat(g)
  h(X)
  h(X)
  h(X)
  return len(calls) <= 3


@program
def two_calls_traces(remat):
  calls, g = counted(lambda x: jnp.sin(x @ W))
  h = remat(g)
  step = jax.jit(jax.grad(lambda x: h(h(x)).sum()))
  step(X)
  return len(calls)


def sharded(fn, out_specs):
  return jax.shard_map(fn, mesh=jax.make_mesh((1,), ("i",)), in_specs=jax.P("i"), out_specs=out_specs)


@program
def shard_map_inside(remat):
  s = sharded(lambda x: jnp.sin(lax.psum(x, "i") @ W), jax.P(None))
  return jax.jit(jax.grad(remat(lambda x: s(x).sum())))(X)


@program
def shard_map_inside_policy(remat):
  s = sharded(lambda x: jnp.sin(lax.psum(x, "i") @ W), jax.P(None))
  return jax.jit(jax.grad(remat(lambda x: jnp.sin(s(x) @ W).sum(), policy=jax.checkpoint_policies.dots_saveable)))(X)


@program
def shard_map_around(remat):
  s = sharded(remat(lambda x: jnp.sin(x @ W)), jax.P("i"))
  return jax.jit(jax.grad(lambda x: s(x).sum()))(X)


@program
def shard_map_around_policy(remat):
  policy = jax.checkpoint_policies.dots_saveable
  s = sharded(remat(lambda x: jnp.sin(lax.psum(x, "i") @ W), policy=policy), jax.P(None))
  return jax.jit(jax.grad(lambda x: s(x).sum()))(X)


@program
def shard_map_eager(remat):
  s = sharded(remat(lambda x: jnp.sin(x @ W)), jax.P("i"))
  return s(X), jax.grad(lambda x: s(x).sum())(X)


@program
def sharding_constraint(remat):
  sh = jax.sharding.NamedSharding(jax.make_mesh((1,), ("i",)), jax.P("i"))
  return jax.jit(
    jax.grad(
      remat(
        lambda x: jnp.sin(lax.with_sharding_constraint(x, sh) @ W).sum(), policy=jax.checkpoint_policies.dots_saveable
      )
    )
  )(X)


@program
def inplace_dict(remat):
  def g(d):
    d["y"] = jnp.sin(d["x"])
    return d["y"].sum()

  return jax.jit(jax.grad(lambda x: remat(g)({"x": x})))(X)


@program
def has_aux(remat):
  return jax.jit(jax.value_and_grad(remat(lambda x: (jnp.sin(x @ W).sum(), {"a": x * 2, "n": 3})), has_aux=True))(X)


@program
def jax_array_protocol(remat):
  class A:
    def __init__(s, a):
      s.a = a

    def __jax_array__(s):
      return jnp.asarray(s.a)

  return jax.jit(lambda: remat(lambda x: jnp.sin(x).sum())(A(X)))()


@program
def numpy_scalar_types(remat):
  g = remat(lambda x, s: jnp.sin(x * s).sum())
  return jax.jit(jax.grad(lambda x: g(x, np.float32(2))))(X), jax.grad(g)(X, np.bool_(True))


@program
def budget_names_escape(remat):
  def g(x):
    with jax.named_scope("a\x1bb"):
      return jnp.sin(x @ W).sum()

  g.__name__ = "bad\x1b[31mname"
  return jax.jit(jax.grad(remat(g)))(X)


@program
def threads(remat):
  g = jax.jit(jax.grad(remat(f)))
  with concurrent.futures.ThreadPoolExecutor(3) as ex:
    return list(ex.map(g, [X, X + 1, X[:2]]))


@program
def symbolic_zero_cotangent(remat):
  g = remat(lambda x, y: (jnp.sin(x), jnp.cos(y)))
  return jax.jit(jax.grad(lambda x, y: g(x, y)[0].sum(), argnums=(0, 1)))(X, X)


@program
def float0_tangent_jvp(remat):
  g = remat(lambda x, i: jnp.sin(x) * i)
  return jax.jvp(g, (X, 3), (X, np.zeros((), jax.dtypes.float0)))


@program
def unhashable_callable(remat):
  class C:
    __hash__ = None

    def __call__(self, x):
      return jnp.sin(x).sum()

  return jax.jit(jax.grad(remat(C())))(X)


@program
def retracing_of_new_remats(remat):
  n = [0]

  def h(x):
    n[0] += 1
    return jnp.sin(x)

  def loss(x):
    return remat(h)(remat(h)(x))

  jax.jit(jax.grad(loss))(1.0)
  return n[0]


@program
def fwd_caching_static(remat):
  n = [0]

  @functools.partial(jax.jit, static_argnums=(0,))
  def inner(k, x):
    n[0] += 1
    return 2 * x if k else x

  g = remat(inner, static_argnums=(0,))
  for _ in range(5):
    jax.vjp(functools.partial(g, True), 1.0)
  return n[0]
