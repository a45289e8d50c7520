"""`coopjax.remat` wherever `jax.checkpoint` goes, by what is compiled: bytes within the budget, work done again for it.

`test_transforms` compares numbers of small functions, all of them under both engines; here functions are large enough
to have a budget. The gradients are compared with those under `jax.checkpoint`, the compiled temporaries with a share of
those without either.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

from tests.support import sweeps
from tests.support.checks import assert_same, flags, temp_bytes
from tests.support.layered import WEIGHTS, X, assert_recomputes_within, layer, remat, step


def layers(x, weights, layer=layer):
  for weight in weights:
    x = layer(x, weight)
  return x


def scanned(x, weights, layer=layer):
  return jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)[0]


def nested_scans(x, weights):
  return jax.lax.scan(lambda x, group: (scanned(x, group), None), x, weights.reshape(2, 3, 64, 64))[0]


def top_buffer_carry(x, weights):
  """The carry, of all steps, is what the memory goes to."""
  wide = jnp.concatenate([x] * 4)
  return jax.lax.scan(lambda c, weight: (jnp.sin(c @ weight), None), wide, weights)[0]


def conditionals(x, weights):
  return layers(x, weights, lambda x, w: jax.lax.cond(x[0, 0] > 9.0, jnp.cos, lambda x: layer(layer(x, w), w), x))


def switches(x, weights):
  choose = lambda x, w: jax.lax.switch(
    jnp.int32(x[0, 0] < 9.0) * 2, [jnp.sin, jnp.tanh, lambda x: layer(layer(x, w), w)], x
  )
  return layers(x, weights, choose)


def while_beside(x, weights):
  start = jax.lax.stop_gradient(x).sum() ** 2 + 1.0
  return layers(x, weights) / jax.lax.while_loop(lambda c: c < 100, lambda c: c * 2, start)


def nested_jits(x, weights):
  return layers(x, weights, jax.jit(lambda x, weight: jax.jit(layer)(x, weight)))


@jax.custom_jvp
def softsign(x):
  return x / (1 + jnp.abs(x))


softsign.defjvp(lambda primals, tangents: (softsign(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2))


def custom_jvps(x, weights):
  return layers(x, weights, lambda x, weight: softsign(jax.nn.softplus(x @ weight)))


@jax.custom_vjp
def scaled_layer(x, weight):
  return layer(x, weight)


scaled_layer.defvjp(
  lambda x, w: (layer(x, w), (jnp.cos(x @ w), x, w)),
  lambda kept, ct: ((ct * kept[0]) @ kept[2].T, kept[1].T @ (ct * kept[0])),
)


def custom_vjps(x, weights):
  return layers(x, weights, lambda x, weight: jnp.sin(scaled_layer(x, weight)))


def typed_keys(x, weights):
  keys = jax.random.split(jax.random.key(0, impl="rbg"), len(weights))
  return layers(x, list(zip(weights, keys, strict=True)), dropout)


def raw_keys(x, weights):
  keys = jax.random.split(jax.random.PRNGKey(0), len(weights))
  return layers(x, list(zip(weights, keys, strict=True)), dropout)


def dropout(x, pair):
  weight, key = pair
  return layer(x, weight) * jax.random.bernoulli(key, 0.9, x.shape)


def bfloat16(x, weights):
  return layers(x.astype(jnp.bfloat16), weights.astype(jnp.bfloat16)).astype(jnp.float32)


def complex64(x, weights):
  turned = layers(jnp.exp(1j * x), weights.astype(jnp.complex64), lambda x, weight: jnp.sin(x @ weight))
  return jnp.abs(turned) ** 2


def integers_and_booleans(x, weights):
  return layers(x, weights, lambda x, w: jax.nn.relu(jnp.take_along_axis(x, jnp.argsort(x, 0), 0)) @ w)


def zero_size(x, weights):
  def beside_nothing(x, weight):
    nothing = jnp.sin(x[:0] @ weight)
    return jnp.concatenate([nothing, layer(x, weight)]) + nothing.sum()

  return layers(x, weights, beside_nothing)


def user_checkpoints(x, weights):
  return layers(layers(x, weights[:3], jax.checkpoint(layer)), weights[3:])


def prints(x, weights):
  def printing(x, weight):
    jax.debug.callback(lambda _: None, x[0, 0])
    return layer(x, weight)

  return scanned(x, weights, printing)


STRAIGHT = {"hlo": 0.6, "policy": 0.7}  # engines, and the share of the temporaries that is asked of each
INLINED = {"policy": 0.7}  # XLA's module shows nothing of it
STACKED = {"auto": 0.7}  # what a loop stacks or a branch keeps the HLO engine can't reach; the policy engine goes first
SHARES = {
  scanned: STACKED,
  nested_scans: STACKED,
  top_buffer_carry: STACKED,
  prints: STACKED,
  conditionals: STACKED,
  switches: STACKED,
  while_beside: STRAIGHT,
  nested_jits: INLINED,
  custom_jvps: INLINED,
  custom_vjps: INLINED,
  typed_keys: STRAIGHT,
  raw_keys: INLINED,
  bfloat16: STRAIGHT,
  complex64: STRAIGHT,
  integers_and_booleans: {"hlo": 0.4, "policy": 0.7},  # half is had by another order alone
  zero_size: STRAIGHT,
  user_checkpoints: STRAIGHT,
}


@functools.cache
def plain_bytes(fn):
  return temp_bytes(step(fn).lower(X, WEIGHTS).compile())


TELLING = (scanned, conditionals, nested_jits, while_beside, custom_vjps, bfloat16, user_checkpoints, prints)


@pytest.mark.parametrize("fn", sweeps.all_but(TELLING, SHARES), ids=lambda fn: fn.__name__)
def test_fits_its_budget_by_recomputing(fn):
  expected = step(jax.checkpoint(fn))(X, WEIGHTS)
  for engine, share in SHARES[fn].items():
    fitted = step(fn, remat(share, engine)).lower(X, WEIGHTS).compile()
    assert_recomputes_within(share * plain_bytes(fn), fitted)
    assert_same(fitted(X, WEIGHTS), expected, rtol=2e-2 if fn is bfloat16 else 1e-4, atol=1e-6)


def mean_square(fn):
  return lambda x, w: jnp.mean(fn(x, w) ** 2)


def with_aux(wrap):
  def loss(x, weights):
    out = wrap(layers)(x, weights)
    return jnp.mean(out**2), out[0]

  return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)


def vjp(wrap):
  def pulled_back(x, weights):
    out, pullback = jax.vjp(wrap(layers), x, weights)
    return out, pullback(jnp.cos(out))

  return pulled_back


def linearize(wrap):
  def pushed_forward(x, weights):
    out, push = jax.linearize(wrap(layers), x, weights)
    return out, push(jnp.cos(x), jnp.cos(weights)), jax.linear_transpose(push, x, weights)(jnp.sin(out))

  return pushed_forward


def hessian(wrap):
  """Forward over reverse, times a vector."""
  gradient = jax.grad(mean_square(wrap(layers)), argnums=(0, 1))
  return lambda x, weights: jax.jvp(gradient, (x, weights), (jnp.cos(x), jnp.cos(weights)))


def vmap_before(wrap):
  batched = wrap(jax.vmap(layers, in_axes=(0, None)))
  return lambda x, weights: jax.grad(mean_square(batched), argnums=(0, 1))(x.reshape(4, 64, 64), weights)


def vmap_after(wrap):
  batched = jax.vmap(wrap(layers), in_axes=(0, None))
  return lambda x, weights: jax.grad(mean_square(batched), argnums=(0, 1))(x.reshape(4, 64, 64), weights)


def vmap_of_gradient(wrap):
  gradients = jax.vmap(jax.grad(mean_square(wrap(layers))), in_axes=(0, None))
  return lambda x, weights: gradients(x.reshape(4, 64, 64), weights)


def closed_over_tracers(wrap):
  return jax.grad(lambda x, weights: jnp.mean(wrap(lambda: layers(x, weights))() ** 2), argnums=(0, 1))


def static_arguments(wrap):
  def repeated(x, weights, num_turns):
    for _ in range(num_turns):
      x = layers(x, weights[:3])
    return x

  call = wrap(repeated, static_argnums=2)
  return jax.grad(lambda x, weights: jnp.mean(call(x, weights, 2) ** 2), argnums=(0, 1))


def remat_inside_remat(wrap):
  return jax.grad(wrap(mean_square(lambda x, w: layers(wrap(layers)(x, w[:4]), w[4:]))), argnums=(0, 1))


TRANSFORMS = (
  with_aux,
  vjp,
  linearize,
  hessian,
  vmap_before,
  vmap_after,
  vmap_of_gradient,
  closed_over_tracers,
  static_arguments,
  remat_inside_remat,
)


def compiled(transform, wrap):
  return jax.jit(transform(wrap)).lower(X, WEIGHTS).compile()


def plainly(fn, **_):
  return fn


CHEAPEST = (vjp, vmap_before, vmap_of_gradient, closed_over_tracers, static_arguments, remat_inside_remat)


@pytest.mark.parametrize("transform", sweeps.all_but(CHEAPEST, TRANSFORMS), ids=lambda fn: fn.__name__)
def test_transformed_it_fits_its_budget_by_recomputing(transform):
  """The policy engine plans what it sees, the function with its gradient: of what is made of it, less is asked."""
  plain, expected = compiled(transform, plainly), jax.jit(transform(jax.checkpoint))(X, WEIGHTS)
  by_policy = 0.9 if transform is linearize else 0.8  # what is linearized once and used twice is held in between
  for engine, allowed in (("hlo", 0.6), ("policy", by_policy)):
    fitted = compiled(transform, remat(0.6, engine))
    assert_recomputes_within(allowed * temp_bytes(plain), fitted)
    assert_same(fitted(X, WEIGHTS), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["hlo", "policy"])
def test_forward_mode_keeps_nothing(engine):
  pushed = lambda wrap: lambda x, weights: jax.jvp(wrap(layers), (x, weights), (jnp.cos(x), jnp.cos(weights)))
  plain, fitted = compiled(pushed, plainly), compiled(pushed, remat(0.6, engine, on_infeasible="best_effort"))
  assert temp_bytes(fitted) <= temp_bytes(plain)
  assert_same(fitted(X, WEIGHTS), jax.jit(pushed(jax.checkpoint))(X, WEIGHTS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  ("remat3", "no_cotangents"), [pytest.param(True, False, marks=pytest.mark.sweep), (False, True), (True, True)]
)
@pytest.mark.parametrize(
  ("fn", "engines"), [pytest.param(layers, STRAIGHT, marks=pytest.mark.sweep), (scanned, STACKED)]
)
def test_fits_its_budget_with_the_new_flags(fn, engines, remat3, no_cotangents):
  with flags(jax_remat3=remat3, jax_remat_barrier_no_cotangents=no_cotangents):
    fitted = {engine: step(fn, remat(share, engine)).lower(X, WEIGHTS).compile() for engine, share in engines.items()}
    expected = step(jax.checkpoint(fn))(X, WEIGHTS)
  for engine, share in engines.items():
    assert_recomputes_within(share * plain_bytes(fn), fitted[engine])
    assert_same(fitted[engine](X, WEIGHTS), expected, rtol=1e-4, atol=1e-6)
