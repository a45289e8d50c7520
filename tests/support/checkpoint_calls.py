"""Arguments and results of functions under `jax.checkpoint`, or what stands in its place; nothing to do."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.checkpoint_common import W, X, program


@program
def static_int(remat):
  g = remat(lambda x, n: (jnp.sin(x) ** n).sum() if n > 2 else x.sum(), static_argnums=1)
  return jax.jit(jax.grad(lambda x: g(x, 3)))(X), jax.jit(jax.grad(lambda x: g(x, 1)))(X)


@program
def static_tuple_negative(remat):
  g = remat(lambda k, x, n: (jnp.sin(x) ** n).sum() if k == "a" else x.sum(), static_argnums=(0, -1))
  return jax.jit(jax.grad(lambda x: g("a", x, 3)))(X), jax.jit(jax.grad(lambda x: g("b", x, 3)))(X)


@program
def static_names(remat):
  def g(x, *, train, scale=2.0):
    return jnp.where(train, jnp.sin(x), x).sum() * scale if train else x.sum()

  g = remat(g, static_argnames="train")
  return jax.jit(jax.grad(lambda x: g(x, train=True)))(X), jax.jit(jax.grad(lambda x: g(x, train=False, scale=3.0)))(X)


@program
def static_name_positional(remat):
  def g(x, train):
    return jnp.sin(x).sum() if train else x.sum()

  g = remat(g, static_argnames=("train",))
  return jax.jit(jax.grad(lambda x: g(x, True)))(X)


@program
def static_out_of_range(remat):
  g = remat(lambda x: jnp.sin(x).sum(), static_argnums=3)
  return jax.jit(jax.grad(g))(X)


@program
def static_out_of_range_negative(remat):
  g = remat(lambda x: jnp.sin(x).sum(), static_argnums=-3)
  return jax.jit(jax.grad(g))(X)


@program
def static_not_hashable(remat):
  g = remat(lambda x, n: jnp.sin(x).sum() * n[0], static_argnums=1)
  return jax.jit(jax.grad(lambda x: g(x, [2])))(X)


@program
def static_bad_type(remat):
  g = remat(lambda x, n: jnp.sin(x).sum() * n[0], static_argnums="x")
  return jax.jit(jax.grad(lambda x: g(x, [2])))(X)


@program
def bool_flag_not_static(remat):
  g = remat(lambda x, n: jnp.sin(x).sum() if n else x.sum())
  return jax.jit(jax.grad(lambda x: g(x, True)))(X)


@program
def bool_flag_not_static_eager(remat):
  g = remat(lambda x, n: jnp.sin(x).sum() if n else x.sum())
  return jax.grad(lambda x: g(x, True))(X)


@program
def bool_flag_eager_call(remat):
  g = remat(lambda x, n: jnp.sin(x).sum() if n else x.sum())
  return g(X, True)


@program
def int_shape_not_static_eager_call(remat):
  g = remat(lambda x, n: jnp.zeros(n) + x.sum())
  return g(X, 3)


@program
def string_argument(remat):
  g = remat(lambda x, n: jnp.sin(x).sum())
  return jax.jit(jax.grad(lambda x: g(x, "a")))(X)


@program
def function_argument(remat):
  g = remat(lambda x, n: n(x).sum())
  return jax.jit(jax.grad(lambda x: g(x, jnp.sin)))(X)


@program
def none_argument(remat):
  g = remat(lambda x, m=None: (x if m is None else x * m) @ W)
  return jax.jit(jax.grad(lambda x: jnp.sin(g(x, None)).sum()))(X), g(X)


@program
def none_output(remat):
  g = remat(lambda x: (jnp.sin(x) @ W, None, {"a": None}))
  return jax.jit(jax.vjp, static_argnums=0)(lambda x: g(x)[0].sum(), X)[0], g(X), jax.jit(g)(X)


@program
def only_none(remat):
  g = remat(lambda x: None)
  return g(X), jax.jit(g)(X)


@program
def kwargs(remat):
  g = remat(lambda x, *, w, b: jnp.sin(x @ w + b).sum())
  return jax.jit(jax.grad(lambda x, w: g(x, w=w, b=1.0), argnums=(0, 1)))(X, W)


@program
def float0_gradient(remat):
  g = remat(lambda x, i: jnp.sin(x * i).sum())
  return jax.jit(lambda x, i: jax.grad(g, argnums=(0, 1), allow_int=True)(x, i)[0])(X, 2), jax.grad(
    g, argnums=1, allow_int=True
  )(X, 2)


@program
def bool_int_outputs(remat):
  g = remat(lambda x: (jnp.sin(x @ W), x > 0.5, jnp.argmax(x, 0)))

  def loss(x):
    y, m, i = g(x)
    return (y * m).sum() + y[i[0], 0], (m, i)

  return jax.jit(jax.value_and_grad(loss, has_aux=True))(X)


@program
def only_int_output(remat):
  g = remat(lambda x: jnp.argmax(x @ W, 1))
  return jax.jit(lambda x: jax.grad(lambda x: x[0, g(x)[0]] * 2.0)(x))(X), g(X), jax.jit(g)(X)


@program
def key_arrays(remat):
  g = remat(lambda x, k: (jnp.sin(x) * jax.random.normal(k, x.shape) @ W).sum())
  return jax.jit(jax.grad(g))(X, jax.random.key(0)), jax.grad(g)(X, jax.random.key(1)), g(X, jax.random.PRNGKey(2))


@program
def key_outputs(remat):
  def g(x, k):
    k, s = jax.random.split(k)
    return jnp.sin(x * jax.random.uniform(s, x.shape)), k

  g = remat(g)
  return jax.jit(jax.grad(lambda x, k: g(*g(x, k))[0].sum()))(X, jax.random.key(0))


@program
def eager_scalars(remat):
  g = remat(lambda a, b: (a * 2, b + 1, jnp.sin(a) * b))
  return g(2, 3.0), g(True, 1j), g(np.float64(2), 1), g(np.int8(3), 2)


@program
def sees_tracers_eagerly(remat):
  seen = []
  g = remat(lambda a: (seen.append(isinstance(a, jax.core.Tracer)), a * 2)[1])
  return g(X), seen


@program
def weak_types(remat):
  g = remat(lambda x, s: x * s)
  return jax.jit(lambda x: jax.grad(lambda x: g(x, 2.0).sum())(x))(X.astype(np.float16)), g(X.astype(np.float16), 2.0)


@program
def identity(remat):
  g = remat(lambda x: x)
  return g(X), jax.jit(jax.grad(lambda x: (g(x) ** 2).sum()))(X), jax.grad(lambda x: (g(x) ** 2).sum())(X)


@program
def unused_argument(remat):
  g = remat(lambda x, y: jnp.sin(x).sum())
  return jax.jit(jax.grad(g, argnums=(0, 1)))(X, W)


@program
def constant_output(remat):
  g = remat(lambda x: 3.0)
  return g(X), jax.jit(g)(X), jax.jit(jax.grad(g))(X)


@program
def zero_size(remat):
  g = remat(lambda x: jnp.sin(x @ W).sum())
  return jax.jit(jax.grad(g))(X[:0]), g(X[:0])


@program
def stop_gradient(remat):
  g = remat(lambda x: lax.stop_gradient(jnp.sin(x)).sum())
  return jax.jit(jax.grad(g))(X), jax.grad(g)(X)


@program
def outputs_dropped(remat):
  g = remat(lambda x: (jnp.sin(x @ W).sum(), jnp.cos(x)))
  return jax.jit(jax.grad(lambda x: (g(x)[1] * 0 + x).sum()))(X), jax.jit(lambda x: (g(x), x)[1])(X)


@program
def no_arguments(remat):
  g = remat(lambda: jnp.sin(jnp.ones(3)).sum())
  return g(), jax.jit(g)()


@program
def no_arguments_closure(remat):
  return jax.jit(jax.grad(lambda x: remat(lambda: jnp.sin(x @ W).sum())()))(X)


@program
def scalar_function(remat):
  g = remat(lambda x: x * x)
  return jax.jit(jax.grad(g))(2.0), jax.grad(g)(2.0), jax.grad(jax.grad(g))(2.0)


@program
def constant_folded(remat):
  g = remat(lambda x: jnp.zeros(3) + 2.0)
  return jax.jit(jax.grad(lambda x: g(x).sum() + x.sum()))(X)


@program
def unhashable_static(remat):
  class A:
    __hash__ = None

    def __eq__(s, o):
      return False

  g = remat(lambda x, a: jnp.sin(x), static_argnums=1)
  return jax.jit(jax.grad(lambda x: g(x, A())))(1.0), jax.grad(lambda x: g(x, A()))(1.0)


@program
def default_args(remat):
  return jax.jit(jax.grad(remat(lambda x, y=2.0, *, z=3.0: x * y * z)))(1.0)


@program
def varargs_static(remat):
  return jax.jit(jax.grad(lambda x: remat(lambda *a: jnp.sin(a[0]) * a[2], static_argnums=(2,))(x, x, 3)))(1.0)


@program
def exception_then_ok(remat):
  flag = [True]

  def g(x):
    if flag[0]:
      raise ValueError("first")
    return jnp.sin(x)

  h = remat(g)
  try:
    jax.jit(jax.grad(h))(1.0)
  except ValueError:
    flag[0] = False
  return jax.jit(jax.grad(h))(1.0)


@program
def closure_changes_under_jit(remat):
  def outer(x, k):
    h = lambda y: jnp.sin(y * k)
    return remat(h)(x)

  return jax.jit(jax.grad(outer), static_argnums=1)(1.0, 2), jax.jit(jax.grad(outer), static_argnums=1)(1.0, 3)


@program
def compile_time_eval(remat):
  def g(x):
    with jax.ensure_compile_time_eval():
      n = int(jnp.sum(jnp.arange(3)))
    return jnp.sin(x) * n

  return jax.jit(jax.grad(remat(g)))(1.0)
