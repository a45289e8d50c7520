"""The HLO pass as a whole: XLA compiles what it makes, in the memory that it predicts, to the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.hlo_engine.recompute_order import Changes, recompute_order
from coopjax.planners.base import first_runs
from coopjax.planners.coop import CoopPlanner
from coopjax.planners.peak import PeakPlanner
from coopjax.program.validate import validate
from coopjax.xla.module import read_step_program
from tests.support import models
from tests.support.hlo_hook import hook


@pytest.fixture(scope="module")
def decoder():
  """Lowered gradient of a small decoder, its arguments, the module XLA schedules, and the outcome without the pass."""
  loss, params, ids = models.gpt(depth=3)
  captured = []
  with hook(lambda module: captured.append(bytes(module))):
    compiled = _lower(loss, params, ids).compile()
  return lambda: _lower(loss, params, ids), (params, ids), captured[0], compiled


def _lower(loss, *args):
  return jax.jit(lambda *args: jax.value_and_grad(loss)(*args)).lower(*args)


def _clones(compiled):
  return compiled.as_text().count(".coop_remat")


@pytest.mark.parametrize("changes", Changes)
def test_compiled_with_what_the_pass_makes(decoder, changes):
  lower, args, module, plain = decoder
  temp_bytes = plain.memory_analysis().temp_size_in_bytes
  budget_bytes = int(0.6 * temp_bytes)
  result = recompute_order(module, budget_bytes, changes=changes)
  assert result.before.temp_bytes == temp_bytes
  with hook(lambda _: result.module_bytes):
    compiled = lower().compile()
  compiled_bytes = compiled.memory_analysis().temp_size_in_bytes
  assert compiled_bytes < temp_bytes
  assert compiled_bytes == pytest.approx(result.after.temp_bytes, rel=1e-3)  # XLA breaks ties of clones by other ids
  assert (result.after.temp_bytes <= budget_bytes) == (changes != Changes.ORDER)
  assert (_clones(compiled) > 0) == (changes != Changes.ORDER) == (result.recompute_cost_s > 0)
  for actual, expected in zip(jax.tree.leaves(compiled(*args)), jax.tree.leaves(plain(*args)), strict=True):
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("planner", [None, PeakPlanner()])
def test_clones_alone_keep_the_order(decoder, planner):
  module = decoder[2]
  program, _ = read_step_program(module)
  budget_bytes = int(0.6 * decoder[3].memory_analysis().temp_size_in_bytes)
  result = recompute_order(module, budget_bytes, changes=Changes.CLONES, planner=planner)
  np.testing.assert_array_equal(first_runs(result.schedule), program.schedule)
  assert result.after.temp_bytes <= budget_bytes
  validate(program, result.schedule)


@pytest.mark.parametrize("planner", [PeakPlanner(), CoopPlanner()])
def test_any_planner(decoder, planner):
  module = decoder[2]
  budget_bytes = int(0.7 * decoder[3].memory_analysis().temp_size_in_bytes)
  result = recompute_order(module, budget_bytes, planner=planner)
  assert result.after.temp_bytes <= budget_bytes
  assert result.after.temp_bytes in [made.temp_bytes for made in result.rounds]


def test_a_planner_that_fails_is_heard_of(decoder):
  class Broken:
    def plan(self, program, budget_bytes, **kwargs):
      raise RuntimeError("no plan today")

  with pytest.raises(RuntimeError, match="no plan today"):
    recompute_order(decoder[2], 1, planner=Broken())


def test_costs_and_ranks_of_buffers(decoder):
  program, _ = read_step_program(decoder[2])
  result = recompute_order(decoder[2])
  seconds, rank = _core.remake_costs(program.core, program.schedule)
  np.testing.assert_array_equal(result.remake_s, seconds)
  np.testing.assert_array_equal(result.cost_rank, rank)
  ranked = np.argsort(rank, kind="stable")[(rank < 0).sum() :]
  per_byte = seconds[ranked] / program.value_bytes[ranked]
  assert len(ranked) > 50
  assert np.all(np.diff(per_byte) >= 0)
  own_s = program.op_cost_s[program.value_producer[ranked]]
  assert np.all(seconds[ranked] >= own_s)
  assert np.any(seconds[ranked] > 2 * own_s)


@pytest.mark.parametrize("planner", [None, pytest.param("auto", marks=pytest.mark.sweep)])
def test_results_that_are_still_to_come_have_room(planner):
  """Eight products and their gradients: at a quarter, most of what the forward pass keeps lies where those will."""

  def loss(weights, x):
    for weight in weights:
      x = jnp.sin(x @ weight)
    return jnp.sum(x**2)

  args = [jnp.eye(128) + 0.01 * i for i in range(8)], jnp.linspace(-1.0, 1.0, 128 * 128).reshape(128, 128)
  captured = []
  with hook(lambda module: captured.append(bytes(module))):
    plain = jax.jit(jax.grad(loss)).lower(*args).compile()
  budget_bytes = plain.memory_analysis().temp_size_in_bytes // 4
  result = recompute_order(captured[0], budget_bytes, planner=planner)
  with hook(lambda _: result.module_bytes):
    compiled = jax.jit(jax.grad(lambda *args: loss(*args))).lower(*args).compile()
  assert compiled.memory_analysis().temp_size_in_bytes == result.after.temp_bytes <= budget_bytes
  assert _clones(compiled) > 0 and result.recompute_cost_s < 0.15 * result.program.op_cost_s.sum()
  for actual, expected in zip(compiled(*args), plain(*args), strict=True):
    np.testing.assert_array_equal(actual, expected)


def test_an_order_never_takes_more(decoder):
  result = recompute_order(decoder[2])
  assert result.after.temp_bytes < result.before.temp_bytes
  assert result.orders[0][1] == min(row[1] for row in result.orders)
  assert "given" in [row[0] for row in result.orders]
  assert result.rounds == ()


def test_damaged_bytes_are_an_error(decoder):
  with pytest.raises(InvalidProgramError):
    recompute_order(decoder[2][:1000])
