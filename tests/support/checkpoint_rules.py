"""Loops, branches and custom rules under and over `jax.checkpoint`, or what stands in its place."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.support.checkpoint_common import W, X, f, program, scanned


@program
def remat_of_scan(remat):
  return jax.jit(jax.grad(remat(lambda x: scanned(lambda c, w: (jnp.sin(c @ w), c.sum()), x)[0].sum())))(X)


@program
def remat_of_scan_inner_jit(remat):
  step = jax.jit(lambda c, w: (jnp.sin(c @ w), c.sum()))
  return jax.jit(jax.grad(remat(lambda x: scanned(step, x)[0].sum())))(X)


@program
def remat_scan_length0(remat):
  return jax.jit(jax.grad(remat(lambda x: lax.scan(lambda c, _: (jnp.sin(c @ W), None), x, None, length=0)[0].sum())))(
    X
  )


@program
def scan_closed_over(remat):
  return jax.jit(
    jax.grad(lambda w: lax.scan(remat(lambda c, x: (jnp.sin(c @ w) * x, None)), X, jnp.arange(3.0))[0].sum())
  )(W)


@program
def cond_around(remat):
  return jax.jit(jax.grad(lambda x: lax.cond(x[0, 0] > 0, remat(f), lambda x: x.sum(), x)))(X), jax.grad(
    lambda x: lax.cond(x[0, 0] > 0, remat(f), lambda x: x.sum(), x)
  )(X)


@program
def while_forward(remat):
  return jax.jit(remat(lambda x: lax.while_loop(lambda c: c.sum() < 30, lambda c: c * 2, x)))(X)


@program
def while_reverse_error(remat):
  return jax.jit(jax.grad(remat(lambda x: lax.while_loop(lambda c: c.sum() < 30, lambda c: c * 2, x).sum())))(X)


@program
def custom_jvp_symbolic_zeros(remat):
  @jax.custom_jvp
  def c(x, y):
    return x * y

  seen = []

  def rule(p, t):
    seen.append([type(v).__name__ for v in t])
    z = jax.custom_derivatives.SymbolicZero
    out = sum((b * a for a, b in ((p[1], t[0]), (p[0], t[1])) if not isinstance(b, z)), jnp.zeros_like(p[0]))
    return p[0] * p[1], out * 2

  c.defjvp(rule, symbolic_zeros=True)
  return jax.jit(jax.grad(remat(lambda x: c(jnp.sin(x), W[:3]).sum())))(X)


@program
def custom_vjp_symbolic_zeros(remat):
  @jax.custom_vjp
  def c(x, y):
    return x * y

  def fwd(x, y):
    return x.value * y.value, (x.value, y.value, x.perturbed, y.perturbed)

  def bwd(res, g):
    x, y, px, py = res
    if isinstance(g, jax.custom_derivatives.SymbolicZero):
      return None, None
    return g * y * (2 if px else 1), g * x if py else None

  c.defvjp(fwd, bwd, symbolic_zeros=True)
  return jax.jit(jax.grad(remat(lambda x: c(jnp.sin(x), W[:3]).sum())))(X)


@program
def custom_vjp_nondiff(remat):
  @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
  def c(fn, x):
    return fn(x)

  c.defvjp(lambda fn, x: (fn(x), x), lambda fn, x, g: (jnp.cos(x) * g * 3,))
  return jax.jit(jax.grad(remat(lambda x: c(jnp.sin, x @ W).sum())))(X)


@program
def custom_vjp_closing_over_remat(remat):
  @jax.custom_vjp
  def c(x):
    return remat(f)(x)

  c.defvjp(lambda x: (f(x), x), lambda x, g: (jax.grad(remat(f))(x) * g,))
  return jax.jit(jax.grad(c))(X)


@program
def custom_vjp_int_residual(remat):
  @jax.custom_vjp
  def c(x, i):
    return x[i]

  c.defvjp(lambda x, i: (x[i], (x, i)), lambda r, g: (jnp.zeros_like(r[0]).at[r[1]].set(g), None))
  return jax.jit(jax.grad(remat(lambda x, i: jnp.sin(c(jnp.sin(x), i)).sum())))(X, 1)


@program
def custom_batching(remat):
  @jax.custom_batching.custom_vmap
  def c(x):
    return jnp.sin(x)

  @c.def_vmap
  def _(n, b, x):
    return jnp.cos(x), True

  return jax.jit(jax.vmap(remat(lambda x: c(x) * 2)))(X)


@program
def optimize_remat(remat):
  @jax.custom_vjp
  def c(x):
    return jnp.sin(x) * 2

  c.defvjp(lambda x: (jnp.sin(x) * 2, x), lambda x, g: (jnp.cos(x) * g * 3,), optimize_remat=True)
  return (
    jax.jit(jax.grad(remat(lambda x: c(c(x) @ W).sum())))(X),
    jax.jit(jax.grad(remat(lambda x: c(c(x) @ W).sum(), policy=jax.checkpoint_policies.dots_saveable)))(X),
    jax.jit(remat(c))(X),
  )


@program
def policy_cond_jit_scan_const(remat):
  w = jnp.asarray(W)
  br = jax.jit(lambda x: jnp.sin(x @ w))
  g = lambda x: lax.scan(lambda c, _: (lax.cond(c.sum() > 0, br, lambda x: x @ w, c), None), x, None, length=2)[0].sum()
  return jax.jit(jax.grad(remat(g, policy=jax.checkpoint_policies.everything_saveable)))(X)


@program
def inner_policy_outer_policy(remat):
  a = remat(
    lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "a") @ W), policy=jax.checkpoint_policies.save_only_these_names("a")
  )
  return jax.jit(jax.grad(remat(lambda x: a(a(x)).sum(), policy=jax.checkpoint_policies.dots_saveable)))(X)


@program
def name_pytree(remat):
  return jax.jit(
    jax.grad(
      remat(
        lambda x: sum(map(jnp.sum, jax.tree.leaves(checkpoint_name({"a": jnp.sin(x), "b": x}, "n")))),
        policy=jax.checkpoint_policies.save_only_these_names("n"),
      )
    )
  )(X)
