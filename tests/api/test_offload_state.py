"""Optimizer state in the host's memory: the same losses, where the state lies, and what that leaves on the device."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import coopjax
from coopjax.xla import targets
from tests.support import models, sweeps

LAYERS, WIDTH, BATCH = 4, 32, 8
PARAMS = {
  "in": (16, WIDTH),
  "down": (LAYERS, WIDTH, WIDTH),
  "up": (LAYERS, WIDTH, WIDTH),
  "norm": (WIDTH,),
  "scale": (),
}
FROZEN = ("up", "scale")
SCHEDULE = optax.cosine_decay_schedule(1e-2, 20)


def one_step_late():
  """Its updates are its states as they were."""
  zeros = lambda params: jax.tree.map(jnp.zeros_like, params)
  return optax.GradientTransformation(zeros, lambda updates, state, params=None: (state, updates))


OPTIMIZERS = {
  "adamw": optax.adamw(1e-2),
  "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(SCHEDULE)),
  "momentum": optax.sgd(1e-2, momentum=0.9),
  "mixed": optax.chain(optax.scale_by_adam(), optax.clip_by_global_norm(0.1), optax.scale(-1.0)),  # all states at once
  "lamb": optax.lamb(1e-2),
  "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=16),
  "rmsprop": optax.rmsprop(1e-3, momentum=0.9),  # the momentum is the update
  "frozen": optax.multi_transform(  # of a number, the update is a constant
    {
      True: optax.set_to_zero(),
      False: optax.inject_hyperparams(optax.rmsprop)(optax.linear_schedule(1e-3, 0, 20), momentum=0.9),
    },
    {name: name in FROZEN for name in PARAMS},
  ),
  "late": optax.chain(optax.sgd(1e-2), one_step_late()),
  "accumulated": optax.MultiSteps(optax.adamw(1e-2), 2),
  "skipping": optax.MultiSteps(optax.rmsprop(1e-3, momentum=0.9), 2, should_skip_update_fn=optax.skip_not_finite),
}


def loss(params, x):
  def layer(h, weights):
    down, up = weights
    return h + jnp.tanh(h @ down) @ up, None

  h, _ = jax.lax.scan(jax.checkpoint(layer), x @ params["in"], (params["down"], params["up"]))
  return jnp.mean((h * params["norm"] * params["scale"] - 1) ** 2)


def step_of(optimizer):
  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def train_step(params, state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value

  return train_step


def start_of(seed, *shape):
  return models.normal(seed, *shape) * shape[0] ** -0.5 if shape else jnp.ones(())


def start(optimizer, batch=BATCH):
  params = {name: start_of(i, *shape) for i, (name, shape) in enumerate(PARAMS.items())}
  return params, optimizer.init(params), models.normal(9, batch, 16)


def losses_of(optimizer, num_steps=20):
  params, state, x = start(optimizer)
  step = step_of(optimizer).lower(params, state, x).compile()
  losses = []
  for _ in range(num_steps):
    params, state, value = step(params, state, x)
    losses.append(float(value))
  return losses, state


@pytest.mark.parametrize(
  "name",
  sweeps.all_but(
    ("adamw", "clipped", "mixed", "late"), [name for name in OPTIMIZERS if name not in ("momentum", "lamb")]
  ),
)
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
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["rmsprop"])) == [2, 2]
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["frozen"])) == [2]
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["accumulated"])) == [3, 3]  # gradients, too
  assert loops_with_layers(coopjax.offload_state(OPTIMIZERS["skipping"])) == []  # on a number made of all gradients


def test_an_update_that_is_also_the_new_state_is_returned_in_both_places():
  params = {"layers": jnp.ones((LAYERS, WIDTH, WIDTH))}
  optimizer = coopjax.offload_state(optax.trace(0.5))
  updates, state = jax.jit(optimizer.update)(params, optimizer.init(params))
  kinds = [tree["layers"].sharding.memory_kind for tree in (updates, state.trace)]
  assert kinds == ["device", "pinned_host"]
  np.testing.assert_array_equal(updates["layers"], state.trace["layers"])


def test_what_an_update_prints_is_printed_once():
  seen = {"count": [], "largest": []}
  note = lambda name, value: jax.debug.callback(lambda value: seen[name].append(float(value)), value)

  def schedule(count):
    note("count", count)
    return 1e-2

  def watched(updates, state, params=None):
    note("largest", jnp.max(state.trace["layers"]))
    return trace.update(updates, state, params)

  params, trace = {"layers": jnp.ones((LAYERS, WIDTH, WIDTH))}, optax.trace(0.5)
  watching = optax.chain(optax.GradientTransformation(trace.init, watched), optax.scale_by_schedule(schedule))
  optimizer = coopjax.offload_state(watching)
  _, state = jax.jit(optimizer.update)(params, optimizer.init(params))
  jax.jit(optimizer.update)(params, state)
  jax.effects_barrier()
  assert seen == {"count": [0.0, 1.0], "largest": [0.0, 1.0]}


def test_an_object_stays_what_it_is():
  plain = optax.MultiSteps(optax.adamw(1e-2), 2)
  offloaded = coopjax.offload_state(plain)
  params = {"layers": jnp.ones((LAYERS, WIDTH, WIDTH))}
  kind_of = lambda optimizer: optimizer.init(params).acc_grads["layers"].sharding.memory_kind
  assert type(offloaded) is optax.MultiSteps and not offloaded.has_updated(offloaded.init(params))
  assert kind_of(offloaded) == kind_of(offloaded.gradient_transformation()) == "pinned_host"
  assert kind_of(plain) == "device"


def test_an_optimizer_of_ones_own():
  @dataclasses.dataclass(frozen=True)
  class Optimizer:
    init: Callable
    decay: float = 0.5

    def update(self, updates, state, params=None):
      state = jax.tree.map(lambda update, old: update + self.decay * old, updates, state)
      return jax.tree.map(jnp.negative, state), state

  params = {"layers": jnp.ones((LAYERS, WIDTH, WIDTH))}
  optimizer = coopjax.offload_state(Optimizer(lambda params: jax.tree.map(jnp.ones_like, params)))
  updates, state = optimizer.update(params, optimizer.init(params))
  assert state["layers"].sharding.memory_kind == "pinned_host" and optimizer.decay == 0.5
  np.testing.assert_array_equal(updates["layers"], -1.5)
  with pytest.raises(AttributeError, match="init"):
    coopjax.offload_state(lambda updates: updates)


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
