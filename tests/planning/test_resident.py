"""Arguments and results that alone exceed a total: what they are to a step, and what each way to have less gives."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

import coopjax
from coopjax.budget import format_bytes
from coopjax.memory_profile import MemoryProfile
from coopjax.planning import resident, steps

W = 64
WEIGHT = 4 * W * W  # bytes
OPTIMIZER = optax.adamw(1e-3)


def loss(params, x):
  layer = lambda h, weight: (jnp.tanh(h @ weight), None)
  return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, params["layers"])[0] ** 2)


def train_step(params, state, x, table):
  value, grads = jax.value_and_grad(loss)(params, x)
  updates, state = OPTIMIZER.update(grads, state, params)
  return optax.apply_updates(params, updates), state, value + table.sum()


@functools.cache
def arguments():
  params = {"layers": jnp.ones((4, W, W))}
  return params, OPTIMIZER.init(params), jnp.ones((8, W)), jnp.ones((W, 2 * W))


def ways(profile, platform="tpu"):
  step = steps.find_step(jax.jit(train_step), arguments(), {})
  return {what: gain for gain, what in resident.ways_out(step.arguments, profile, platform)}


def profile(arguments=0, outputs=0, aliased=0):
  return MemoryProfile(temp_bytes=0, argument_bytes=arguments, output_bytes=outputs, alias_bytes=aliased)


DONATED = profile(12 * WEIGHT, 12 * WEIGHT, 12 * WEIGHT)


def test_roles_are_read_from_the_trace():
  step = steps.find_step(jax.jit(train_step), arguments(), {})
  roles = {argument.path: argument.role for argument in step.arguments}
  assert roles.pop("args[0]['layers']") == "parameter"
  moments = {path for path, role in roles.items() if role == "state"}
  assert len(moments) == 2 and all("mu" in path or "nu" in path for path in moments)
  assert {roles[path] for path in roles.keys() - moments} == {"other"}  # a table that nobody updates is no state


def test_every_way_says_what_it_gives():
  found = ways(DONATED)
  assert found["the optimizer's state in the host's memory (coopjax.offload_state)"] == 8 * WEIGHT
  assert found["the optimizer's state in bfloat16 for float32"] == 4 * WEIGHT
  assert found["parameters in bfloat16 for float32"] == 2 * WEIGHT
  assert found["parameters and the optimizer's state split over two devices"] == 6 * WEIGHT
  assert not any("donate" in what for what in found)


def test_what_is_not_donated_counts_twice():
  found = ways(profile(12 * WEIGHT, 12 * WEIGHT))
  assert found["parameters and the optimizer's state donated (donate_argnums)"] == 12 * WEIGHT
  assert found["the optimizer's state in the host's memory (coopjax.offload_state)"] == 16 * WEIGHT


def test_a_cpu_has_no_other_memory():
  assert not any("host" in what for what in ways(DONATED, "cpu"))


def test_shards_of_an_axis_are_one_devices():
  axis = (("data", 4),)
  split = resident.Argument(1000, "float32[10,25]", "args[0]", "parameter", 4, axes=axis)
  whole = resident.Argument(1000, "float32[10,25]", "args[1]", "state", 4, whole_on=axis)
  found = {what: gain for gain, what in resident.ways_out([split, whole], profile(2000, 2000, 2000), "tpu")}
  assert found["8 devices on axis 'data' in place of 4"] == 500
  assert found["what is whole on axis 'data' split over its 4 devices"] == 750


def test_what_is_on_the_host_is_no_longer_there_to_go():
  on_host = resident.Argument(1000, "float32[10,25]", "args[1]", "state", 4, is_on_host=True)
  found = {what: gain for gain, what in resident.ways_out([on_host], profile(0, 0, 0), "tpu")}
  assert set(found.values()) == {0}


def test_what_is_enough_makes_room_for_temporaries_too():
  """Of a budget of 1,000, arguments take 1,200 and temporaries at least 300: 500 are missing."""
  split = resident.Argument(1200, "float32[300]", "args[0]", "parameter", 4)
  lines = resident.told([split], [(499, "one way"), (500, "another"), (1, "a crumb")], -200, 500, 1200)
  assert lines[0] == "arguments and outputs alone exceed it by 200 B; the largest arguments are:"
  assert "(500 B are missing, with the least temporaries reached)" in lines[2]
  assert [line.split(maxsplit=2)[2] for line in lines[3:]] == ["one way", "another, which is enough"]


def test_the_error_says_by_how_much_and_what_is_missing_in_all():
  memory = jax.jit(train_step, donate_argnums=(0, 1)).lower(*arguments()).compile().memory_analysis()
  resident_bytes = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(
      jax.jit(train_step, donate_argnums=(0, 1)),
      *arguments(),
      budget=coopjax.Budget.total(resident_bytes - WEIGHT),
      effort="fast",
    )
  error, lines = caught.value, str(caught.value).splitlines()
  assert any(line.startswith("arguments and outputs alone exceed it by 16.00 KiB") for line in lines)
  missing_bytes = error.smallest_bytes - error.budget_bytes  # with temporaries, of which there are some
  assert missing_bytes > 4 * WEIGHT and any(f"({format_bytes(missing_bytes)} are missing" in line for line in lines)
  (narrow,) = (line for line in lines if "state in bfloat16" in line)
  assert narrow.strip().startswith("64.00 KiB") and not narrow.endswith("enough")
