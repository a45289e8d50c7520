"""Effects and references under `jax.checkpoint`, or what stands in its place."""

import contextlib
import io

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify, io_callback

from tests.support.checkpoint_common import W, X, deep, program, scanned


def printed(fn):
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    fn()
    jax.effects_barrier()
  return out.getvalue()


@program
def debug_print(remat):
  g = remat(lambda x: (jax.debug.print("x={}", x[0, 0]), jnp.sin(x @ W).sum())[1])
  return [
    printed(lambda: jax.block_until_ready(h(X))).splitlines()[:1]
    for h in (g, jax.jit(g), jax.jit(jax.grad(g)), jax.grad(g))
  ]


@program
def debug_callback(remat):
  seen = []
  g = remat(lambda x: (jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0]), jnp.sin(x @ W).sum())[1])
  r = jax.jit(jax.grad(g))(X)
  jax.effects_barrier()
  return r, seen[:1]


@program
def debug_ordered(remat):
  g = remat(lambda x: (jax.debug.print("x={}", x[0, 0], ordered=True), jnp.sin(x @ W).sum())[1])
  return jax.jit(jax.grad(g))(X), g(X)


@program
def pure_callback(remat):
  g = remat(lambda x: jax.pure_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x) @ W)
  return jax.jit(g)(X), g(X), jax.jit(jax.grad(lambda w: remat(lambda w: jnp.sin(g(X) @ w).sum())(w)))(W)


@program
def pure_callback_grad_error(remat):
  return jax.jit(
    jax.grad(remat(lambda x: jax.pure_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x).sum()))
  )(X)


@program
def io_callback_unordered(remat):
  g = remat(lambda x: (io_callback(lambda v: None, None, x), jnp.sin(x @ W).sum())[1])
  return jax.jit(g)(X), jax.jit(jax.grad(g))(X)


@program
def io_callback_ordered(remat):
  g = remat(lambda x: (io_callback(lambda v: None, None, x, ordered=True), jnp.sin(x @ W).sum())[1])
  return jax.jit(g)(X)


@program
def io_callback_ordered_grad(remat):
  g = remat(lambda x: (io_callback(lambda v: None, None, x, ordered=True), jnp.sin(x @ W).sum())[1])
  return jax.jit(jax.grad(g))(X)


@program
def io_callback_eager(remat):
  seen = []
  g = remat(lambda x: (io_callback(lambda v: seen.append(1), None, x, ordered=True), jnp.sin(x @ W).sum())[1])
  return g(X), len(seen)


def checked(x):
  x = deep(x)
  checkify.check(jnp.all(x < 0.2), "too large: {}", x[0, 0])
  return jnp.sin(x).sum()


def checked_turns(x):
  def turn(x, w):
    x = jnp.tanh(x @ w)
    checkify.check(jnp.all(x < 0.3), "too large: {}", x[0, 0])
    return x, None

  return jnp.sin(scanned(turn, x)[0]).sum()


def told(checked_fn, *xs):
  """What each call says is wrong, and gives."""
  return [(error.get() or "", result) for error, result in map(checked_fn, xs)]


@program
def check_inside(remat):
  g = jax.value_and_grad(remat(checked))
  return told(jax.jit(checkify.checkify(g)), X, X / 9), told(checkify.checkify(jax.jit(g)), X, X / 9)


@program
def check_inside_forward(remat):
  return told(checkify.checkify(remat(checked)), X, X / 9), told(checkify.checkify(jax.jit(remat(checked))), X, X / 9)


@program
def check_inside_scan(remat):
  """Where a gradient is taken of it, JAX loses the check of a loop, whatever is wrapped."""
  g = remat(checked_turns)
  return [told(jax.jit(checkify.checkify(h)), X, X / 9) for h in (g, jax.value_and_grad(g))]


@program
def check_inside_unchecked(remat):
  return jax.jit(remat(checked))(X)


@program
def new_ref_inside(remat):
  def g(x):
    r = jax.new_ref(jnp.sin(x))
    r[...] += x
    r[0] = r[1] * 2
    return jnp.sin(r[...]).sum()

  return g and (jax.jit(remat(g))(X), jax.jit(jax.grad(remat(g)))(X))


@program
def new_ref_inside_eager(remat):
  def g(x):
    r = jax.new_ref(jnp.sin(x))
    r[...] += x
    return jnp.sin(r[...]).sum()

  return remat(g)(X), jax.grad(remat(g))(X)


@program
def freeze_ref_inside(remat):
  def g(x):
    r = jax.new_ref(jnp.sin(x))
    r[...] *= x
    return jnp.sin(jax.freeze(r)).sum()

  return jax.jit(jax.grad(remat(g)))(X)


@program
def ref_argument_read(remat):
  g = remat(lambda r, x: (r[...] * jnp.sin(x)).sum())

  def h(x):
    r = jax.new_ref(X)
    return g(r, x)

  return jax.jit(jax.grad(h))(X), jax.jit(h)(X), h(X)


def added(r, x):
  r[...] += x
  return jnp.sin(x).sum()


@program
def ref_argument_write(remat):
  g = remat(added)

  def h(x):
    r = jax.new_ref(jnp.zeros_like(X))
    y = g(r, x)
    return y, r[...]

  return jax.jit(h)(X), h(X)


@program
def ref_argument_write_grad(remat):
  g = remat(added)

  def h(x):
    r = jax.new_ref(jnp.zeros_like(X))
    y = g(r, x)
    return y + r[...].sum()

  return jax.jit(jax.grad(h))(X)


@program
def ref_argument_transformed(remat):
  g = remat(lambda r, x: (r[...] * jnp.sin(x)).sum())

  def h(x):
    r = jax.new_ref(X)
    return g(r.at[0], x)

  return jax.jit(h)(X), h(X)


@program
def ref_closed_over(remat):
  def h(x):
    r = jax.new_ref(X)
    return remat(lambda x: (r[...] * jnp.sin(x)).sum())(x)

  return jax.jit(jax.grad(h))(X), jax.jit(h)(X), h(X)


@program
def ref_closed_over_write(remat):
  def h(x):
    r = jax.new_ref(jnp.zeros_like(X))

    def g(x):
      r[...] = x * 2
      return jnp.sin(x).sum()

    return remat(g)(x), r[...]

  return jax.jit(h)(X), h(X)


@program
def ref_global_eager(remat):
  r = jax.new_ref(jnp.zeros(()))

  def g(x):
    r[...] += 1.0
    return jnp.sin(x).sum()

  y = remat(g)(X)
  return y, r[...]


@program
def ref_in_scan(remat):
  def h(x):
    r = jax.new_ref(jnp.zeros(4))

    def body(c, w):
      return remat(lambda c, w: jnp.sin(c @ w) + r[...])(c, w), None

    return scanned(body, x)[0].sum()

  return jax.jit(jax.grad(h))(X)


@program
def grad_accum_ref(remat):
  def h(x):
    r = jax.new_ref(jnp.zeros_like(X))
    _, pull = jax.vjp(remat(deep), x)
    r[...] += pull(jnp.ones_like(x))[0]
    return r[...]

  return jax.jit(h)(X)


@program
def ref_multiple(remat):
  def h(x):
    a, b = jax.new_ref(x), jax.new_ref(x * 2)

    def g(x):
      t = a[...]
      a[...] = b[...] + x
      b[...] = t
      return jnp.sin(x).sum()

    y = remat(g)(x)
    return y, a[...], b[...]

  return jax.jit(h)(X)


@program
def ref_returned(remat):
  def h(x):
    return remat(lambda x: jax.new_ref(x))(x)[...]

  return jax.jit(h)(X)
