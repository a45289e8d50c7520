"""Programs with `jax.checkpoint`, or what stands in its place, over, under and among other transformations."""

import contextlib
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import jet as jax_jet

from tests.support.checkpoint_common import W, X, deep, f, program


@program
def eager_grad(remat):
  return jax.grad(remat(f))(X)


@program
def eager_vjp(remat):
  y, pull = jax.vjp(remat(deep), X)
  return y, pull(y), pull(y * 2)


@program
def jit_of(remat):
  return jax.jit(remat(f))(X), jax.grad(jax.jit(remat(f)))(X), jax.jit(jax.grad(jax.jit(remat(f))))(X)


@program
def remat_of_jit(remat):
  return jax.jit(jax.grad(remat(jax.jit(f))))(X), jax.grad(remat(jax.jit(f)))(X), remat(jax.jit(f))(X)


@program
def jit_closing_over_array(remat):
  w = jnp.asarray(W)
  g = jax.jit(lambda x: jnp.sin(x @ w))
  return jax.jit(jax.grad(remat(lambda x: jnp.sin(g(x) @ W).sum())))(X)


@program
def policy_jit_closing_over_array(remat):
  w = jnp.asarray(W)
  g = jax.jit(lambda x: jnp.sin(x @ w))
  return jax.jit(jax.grad(remat(lambda x: jnp.sin(g(x) @ W).sum(), policy=jax.checkpoint_policies.dots_saveable)))(X)


@program
def policy_jit_closing_over_tracer(remat):
  def outer(x, w):
    g = jax.jit(lambda x: jnp.sin(x @ w))
    return remat(lambda x: jnp.sin(g(g(x)) @ W).sum(), policy=jax.checkpoint_policies.dots_saveable)(x)

  return jax.jit(jax.grad(outer, argnums=(0, 1)))(X, W)


@program
def policy_everything(remat):
  pol = jax.checkpoint_policies
  return [
    jax.jit(jax.grad(lambda x: remat(deep, policy=p)(x).sum()))(X)
    for p in (
      pol.everything_saveable,
      pol.nothing_saveable,
      pol.save_only_these_names("a"),
      pol.save_from_both_policies(pol.dots_saveable, pol.nothing_saveable),
    )
  ]


@program
def policy_names(remat):
  def g(x):
    for i in range(3):
      x = checkpoint_name(jnp.tanh(x @ W), f"n{i}")
    return x.sum()

  pol = jax.checkpoint_policies
  return jax.jit(jax.grad(remat(g, policy=pol.save_only_these_names("n1"))))(X), jax.jit(
    jax.grad(remat(g, policy=pol.save_anything_except_these_names("n1")))
  )(X)


@program
def policy_scan_jit_const(remat):
  w = jnp.asarray(W)
  step = jax.jit(lambda x: jnp.sin(x @ w))
  g = remat(
    lambda x: lax.scan(lambda c, _: (step(c), c.sum()), x, None, length=3)[0].sum(),
    policy=jax.checkpoint_policies.dots_saveable,
  )
  return jax.jit(jax.grad(g))(X)


@program
def policy_cond_while(remat):
  def g(x):
    x = lax.cond(x.sum() > 0, lambda x: jnp.sin(x @ W), lambda x: x @ W, x)
    n = lax.while_loop(lambda c: c < 3, lambda c: c + 1, 0)
    return (x * n).sum()

  return jax.jit(jax.grad(remat(g, policy=jax.checkpoint_policies.dots_saveable)))(X)


@program
def vmap_out_axes(remat):
  return jax.vmap(remat(lambda x, y: (x @ y, y)), in_axes=(0, None), out_axes=(1, None))(np.stack([X, X + 1]), W)


@program
def vmap_collective(remat):
  return jax.jit(jax.vmap(jax.grad(remat(lambda x: jnp.sin(lax.psum(x, "i")).sum())), axis_name="i"))(X)


@program
def vmap_axis_index(remat):
  return jax.vmap(remat(lambda x: jnp.sin(x) * lax.axis_index("i")), axis_name="i")(X)


@program
def jvp_of_grad(remat):
  return jax.jit(lambda x: jax.jvp(jax.grad(remat(f)), (x,), (x,)))(X)


@program
def hessian_eager(remat):
  return jax.hessian(remat(lambda x: (jnp.sin(x) ** 3).sum()))(X[0])


@program
def linearize(remat):
  y, lin = jax.linearize(remat(deep), X)
  return y, lin(X), jax.linear_transpose(lin, X)(y)


@program
def linear_transpose(remat):
  return jax.linear_transpose(remat(lambda x: x @ W), X)(X)


@program
def jet(remat):
  return jax_jet.jet(remat(lambda x: jnp.sin(x) * 2), (X,), ([X, X],))


@program
def nested(remat):
  g = remat(lambda x: jnp.sin(remat(lambda x: jnp.sin(x @ W))(x) @ W).sum())
  return jax.jit(jax.grad(g))(X), jax.grad(g)(X)


@program
def checkpoint_inside(remat):
  return jax.jit(jax.grad(remat(lambda x: jnp.sin(jax.checkpoint(deep)(x)).sum())))(X)


@program
def checkpoint_outside(remat):
  return jax.jit(jax.grad(jax.checkpoint(lambda x: jnp.sin(remat(deep)(x)).sum())))(X), jax.grad(
    jax.checkpoint(lambda x: remat(deep)(x).sum())
  )(X)


@program
def checkpoint_inside_static(remat):
  return jax.jit(jax.grad(remat(lambda x: jax.checkpoint(lambda x, n: jnp.sin(x) ** n, static_argnums=1)(x, 3).sum())))(
    X
  )


@program
def used_twice(remat):
  g = remat(deep)
  return jax.jit(jax.grad(lambda x: g(g(x)).sum()))(X)


@program
def forward_only(remat):
  return jax.jit(remat(deep))(X), remat(deep)(X)


@program
def eval_shape(remat):
  s = jax.eval_shape(remat(f), X)
  t = jax.eval_shape(jax.grad(remat(f)), jax.ShapeDtypeStruct((3, 4), jnp.float32))
  return (s.shape, str(s.dtype), t.shape, str(t.dtype))


@program
def export(remat):
  e = jax_export.export(jax.jit(jax.grad(remat(f))))(jax.ShapeDtypeStruct((3, 4), jnp.float32))
  return jax_export.deserialize(e.serialize()).call(X)


@program
def export_symbolic(remat):
  (b,) = jax_export.symbolic_shape("b")
  e = jax_export.export(jax.jit(jax.grad(remat(f))))(jax.ShapeDtypeStruct((b, 4), jnp.float32))
  return jax_export.deserialize(e.serialize()).call(X)


@program
def donated(remat):
  return jax.jit(lambda x: x - jax.grad(remat(f))(x), donate_argnums=0)(jnp.array(X))


@program
def print_saved(remat):
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    jax.ad_checkpoint.print_saved_residuals(remat(f), X)
  return "from the argument x" in out.getvalue() or "output of" in out.getvalue()


@program
def closed_call_tracers(remat):
  def g(x, y):
    h = remat(lambda z: jnp.sin(z * x).sum() * y.sum())
    return h(y)

  return jax.jit(jax.grad(g, argnums=(0, 1)))(X, X), jax.grad(g, argnums=(0, 1))(X, X)


@program
def closed_over_loop_tracers(remat):
  def body(c, w):
    return remat(lambda: jnp.sin(c @ w))(), None

  return jax.jit(jax.grad(lambda x: lax.scan(body, x, np.stack([W, W]))[0].sum()))(X)


@program
def closure_convert(remat):
  def outer(x):
    h, consts = jax.closure_convert(lambda y: jnp.sin(y * x), x)
    return remat(h)(x, *consts).sum()

  return jax.jit(jax.grad(outer))(X)


@program
def method(remat):
  class M:
    def __init__(self):
      self.w = jnp.asarray(W)

    @functools.partial(remat, static_argnums=(0,))
    def __call__(self, x):
      return jnp.sin(x @ self.w).sum()

  return jax.jit(jax.grad(M()))(X)


@program
def bound_method(remat):
  class M:
    w = W

    def run(self, x):
      return jnp.sin(x @ self.w).sum()

  return jax.jit(jax.grad(remat(M().run)))(X)


@program
def partial(remat):
  return jax.jit(jax.grad(remat(functools.partial(lambda w, x: jnp.sin(x @ w).sum(), W))))(X)


@program
def prevent_cse(remat):
  return [jax.jit(jax.grad(lambda x: remat(deep, prevent_cse=p)(x).sum()))(X) for p in (True, False)]


@program
def prevent_cse_tuple(remat):
  return jax.jit(jax.grad(lambda x: remat(lambda x, w: jnp.sin(x @ w).sum(), prevent_cse=(True, False))(x, W)))(X)


@program
def not_callable(remat):
  return remat(3)(X)


@program
def wraps_metadata(remat):
  def name_of_it(x):
    "doc"
    return x

  g = remat(name_of_it)
  return g.__name__, g.__doc__


@program
def recursion(remat):
  def rec(n, x):
    return x if n == 0 else remat(functools.partial(rec, n - 1))(jnp.sin(x))

  return jax.jit(jax.grad(functools.partial(rec, 4)))(1.0)


@program
def no_barrier(remat):
  g = remat(lambda x: jnp.sin(jnp.sin(x)), prevent_cse=False)
  t = jax.jit(jax.grad(lambda x: g(g(x)))).lower(2.0).as_text("hlo")
  return "opt-barrier" in t
