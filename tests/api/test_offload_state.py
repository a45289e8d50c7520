"""Optimizer state in the host's memory: the same losses, where the state lies, and what that leaves on the device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import coopjax
from coopjax.xla import targets
from tests.support import models

LAYERS, WIDTH, BATCH = 4, 32, 8
PARAMS = {"in": (16, WIDTH), "down": (LAYERS, WIDTH, WIDTH), "up": (LAYERS, WIDTH, WIDTH), "norm": (WIDTH,)}
OPTIMIZERS = {
  "adamw": optax.adamw(1e-2),
  "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(optax.cosine_decay_schedule(1e-2, 20))),
  "momentum": optax.sgd(1e-2, momentum=0.9),
  "mixed": optax.chain(optax.scale_by_adam(), optax.clip_by_global_norm(0.1), optax.scale(-1.0)),  # all states at once
  "lamb": optax.lamb(1e-2),
  "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=16),
}


def loss(params, x):
  def layer(h, weights):
    down, up = weights
    return h + jnp.tanh(h @ down) @ up, None

  h, _ = jax.lax.scan(jax.checkpoint(layer), x @ params["in"], (params["down"], params["up"]))
  return jnp.mean((h * params["norm"] - 1) ** 2)


def step_of(optimizer):
  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def train_step(params, state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value

  return train_step


def start(optimizer, batch=BATCH):
  params = {name: models.normal(i, *shape) * shape[0] ** -0.5 for i, (name, shape) in enumerate(PARAMS.items())}
  params = jax.tree.map(jnp.asarray, params)
  return params, optimizer.init(params), models.normal(9, batch, 16)


def losses_of(optimizer, num_steps=20):
  params, state, x = start(optimizer)
  step = step_of(optimizer).lower(params, state, x).compile()
  losses = []
  for _ in range(num_steps):
    params, state, value = step(params, state, x)
    losses.append(float(value))
  return losses, state


@pytest.mark.parametrize("name", ["adamw", "clipped", "mixed", "adafactor"])
def test_losses_are_the_same_and_the_state_stays_on_the_host(name):
  plain, _ = losses_of(OPTIMIZERS[name])
  offloaded, state = losses_of(coopjax.offload_state(OPTIMIZERS[name]))
  np.testing.assert_allclose(offloaded, plain, rtol=1e-5)
  assert plain[-1] < plain[0]
  kinds = {(leaf.ndim > 0, leaf.sharding.memory_kind) for leaf in jax.tree.leaves(state)}
  assert (True, "pinned_host") in kinds and (True, "device") not in kinds and (False, "pinned_host") not in kinds


def loops_with_layers(optimizer):
  """Of the update: loops over the layers, by how many arrays in the host's memory they carry."""
  params, state, _ = start(optimizer)
  jaxpr = jax.make_jaxpr(optimizer.update)(params, state, params)
  loops = [equation for equation in jaxpr.jaxpr.eqns if equation.primitive.name == "scan"]
  assert all(equation.params["length"] == LAYERS for equation in loops)
  on_host = lambda equation: sum(var.aval.memory_space == jax.memory.Space.Host for var in equation.outvars)
  return sorted(map(on_host, loops))


def test_stacked_moments_go_in_and_out_by_layer():
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["adamw"])) == [2, 2]
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["clipped"])) == [2, 2]  # the norm is of gradients alone
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["momentum"])) == [1, 1]
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["lamb"])) == []  # a norm of each parameter's own update
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["mixed"])) == []


def test_a_plan_of_such_a_step_holds_its_budget_and_leaves_the_state_there():
  optimizer = coopjax.offload_state(OPTIMIZERS["adamw"])
  args = start(optimizer, 256)
  step = step_of(optimizer)
  plan = coopjax.plan(step, *args, budget=0.7, effort="fast", existing="replace")
  assert plan.fits and plan.engine == "policy"  # of a module that a hook changes, XLA:CPU forgets where results lie
  params, state, value = plan.apply(step)(*args)
  assert state[0].mu["up"].sharding.memory_kind == "pinned_host" and np.isfinite(value)
  step(params, state, args[2])


def test_a_remat_that_leaves_such_a_step_as_it_came_says_so():
  optimizer = coopjax.offload_state(OPTIMIZERS["momentum"])

  @jax.jit
  def train_step(params, state, x):
    grads = jax.grad(coopjax.remat(loss, budget=0.9, engine="hlo"))(params, x)
    return optimizer.update(grads, state, params)[1]

  with pytest.warns(coopjax.RematNoEffectWarning, match="results lie in the host's memory"):
    state = train_step(*start(optimizer))
  assert state[0].trace["up"].sharding.memory_kind == "pinned_host"


def test_shapes_without_a_place_are_refused():
  with pytest.raises(ValueError, match="sharding"):
    coopjax.state_on_host(jax.eval_shape(OPTIMIZERS["adamw"].init, {"w": jnp.ones((4, 4))}))


@pytest.mark.targets
def test_on_a_tpu_the_state_is_no_longer_on_the_device():
  place = targets.resolve("tpu:v5e:2x2").sharding
  wider = lambda shape: tuple(8 * size if size == WIDTH else size for size in shape)
  placed = lambda leaf: jax.ShapeDtypeStruct(wider(leaf.shape), leaf.dtype, sharding=place)
  params, state, x = jax.tree.map(placed, jax.eval_shape(lambda: start(OPTIMIZERS["adamw"])))
  before, after = (
    step_of(optimizer).lower(params, state, x).compile().memory_analysis()
    for optimizer, state in (
      (OPTIMIZERS["adamw"], state),
      (coopjax.offload_state(OPTIMIZERS["adamw"]), coopjax.state_on_host(state)),
    )
  )
  state_bytes = sum(leaf.size * 4 for leaf in jax.tree.leaves(state) if leaf.shape)
  assert after.host_argument_size_in_bytes == after.host_alias_size_in_bytes >= state_bytes
  assert before.argument_size_in_bytes - after.argument_size_in_bytes >= state_bytes
  assert after.temp_size_in_bytes - before.temp_size_in_bytes <= state_bytes / 2 / LAYERS + 2**20
