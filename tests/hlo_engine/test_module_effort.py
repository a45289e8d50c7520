"""A module's plan and the effort that is asked of it: more never gives less, and what a fuse cut short says so."""

import itertools

import pytest

from coopjax.budget import Budget
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.module_plan import plan_module
from coopjax.planners import effort
from coopjax.xla.compile import module_of
from tests.support import scheduled


def test_what_a_fuse_cut_short_says_so():
  module = module_of(scheduled.plain("mlp"))
  assert plan_module(module, [Mark(Budget(share=0.7), time_limit_s=1e-6)]).is_cut_short
  assert not plan_module(module, [Mark(Budget(share=0.7), time_limit_s=1e6)]).is_cut_short


@pytest.mark.parametrize("model", ["mlp", pytest.param("gpt", marks=pytest.mark.sweep)])
def test_more_effort_never_gives_a_worse_plan(monkeypatch, model):
  steps = {effort.SKETCH: 200, "fast": 1_000, "normal": 5_000, "best": 25_000}
  monkeypatch.setattr(effort, "_STEPS_PER_INSTRUCTION", steps)
  monkeypatch.setattr(effort, "_LEAST_INSTRUCTIONS", 100)  # so few that every search is cut short
  module = module_of(scheduled.plain(model))
  for share in (0.8, 0.6, 0.4, 0.2):
    outcomes = [plan_module(module, [Mark(Budget(share=share), effort=each)]) for each in effort.EFFORTS]
    for less, more in itertools.pairwise(outcomes):
      if less.fits:
        assert more.fits and more.overhead <= less.overhead * (1 + 1e-9)
      else:
        assert more.fits or more.predicted.temp_bytes <= 1.01 * less.predicted.temp_bytes
