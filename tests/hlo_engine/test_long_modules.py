"""Modules of very many instructions are planned within their effort, or say what is out of reach."""

import pytest

from coopjax import _core
from coopjax.budget import Budget
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.module_plan import plan_module
from coopjax.planners import effort
from coopjax.xla.module import parse_module, predict_memory
from tests.support.long_modules import long_module

MOST_STEPS = 40_000  # an instruction: 0.4 ms, which is less than XLA takes


def steps_of(fn):
  start = _core.steps_taken()
  return fn(), _core.steps_taken() - start


@pytest.mark.parametrize("num_layers, body", [pytest.param(1_000, 0, marks=pytest.mark.sweep), (100, 8)])
def test_a_long_module_is_planned_within_its_effort(num_layers, body):
  data = long_module(num_layers, body=body)
  outcome, steps = steps_of(lambda: plan_module(data, [Mark(Budget(share=0.5))]))
  assert outcome.fits and outcome.num_recomputed and outcome.module_bytes is not None
  assert predict_memory(parse_module(outcome.module_bytes)).temp_bytes <= 0.5 * outcome.baseline.temp_bytes
  assert steps <= MOST_STEPS * parse_module(data).num_instructions


def test_what_is_out_of_reach_of_a_long_module_says_so():
  outcome, steps = steps_of(lambda: plan_module(long_module(500), [Mark(Budget(1_000))]))
  assert not outcome.fits and outcome.predicted.temp_bytes > 1_000
  assert steps <= MOST_STEPS * parse_module(long_module(500)).num_instructions


def test_steps_grow_with_a_module_until_there_are_very_many_instructions():
  taken = [effort.steps_of("normal", num_instructions) for num_instructions in (10_000, 100_000, 200_000)]
  assert taken == [taken[0], 10 * taken[0], 10 * taken[0]]


def test_reading_and_predicting_take_little_more_than_in_proportion():
  taken = [steps_of(lambda: predict_memory(parse_module(long_module(num_layers))))[1] for num_layers in (500, 4_000)]
  assert taken[1] <= 3 * 8 * taken[0]
