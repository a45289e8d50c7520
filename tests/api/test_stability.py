"""A small change to a model is a small change to its plan: with one layer more, three others do something else at most.

At the same share of the temporaries. The layers are alike, so any of the thirteen may count as the new one.
"""

import collections
import functools

import numpy as np
import pytest

from coopjax.budget import Budget
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.module_plan import plan_module
from coopjax.jaxpr.tags import tagged_fn
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.compiled_profile import profile_of, read_profile
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.search import search
from coopjax.program import explain
from coopjax.xla.compile import compile_abstract
from tests.support import models, quick
from tests.support.checks import temp_bytes

DEPTHS = (12, 13)
FIRST_LAYER = 5  # equations before it: the embedding


@functools.cache
def decoder(depth):
  loss, *args = models.gpt(depth, width=32, batch=2, length=32)
  traced = differentiable(trace(loss, args))
  assert traced.inlined.eqns[FIRST_LAYER - 1].primitive.name == "gather"
  return traced


@functools.cache
def space(depth):
  """Profile and candidates."""
  traced = decoder(depth)
  profile = profile_of(traced, compile_abstract(*fn_and_gradient(traced, tagged_fn(traced))))
  return profile, Candidates(traced, False, profile)


@functools.cache
def module(depth):
  hook.install("cpu")
  traced = decoder(depth)
  return hook.capture(traced.name, lambda mark: compile_abstract(*fn_and_gradient(traced, tagged_fn(traced, mark))))


def by_layer(depth, decided):
  """What is decided per position, layer by layer."""
  few, many = (len(decoder(each).inlined.eqns) for each in DEPTHS)
  period = many - few
  starts = [FIRST_LAYER + i * period for i in range(depth)]
  return [tuple(decided.get(position) for position in range(start, start + period)) for start in starts]


def num_changed(old, new):
  """Layers of `old` that do something else in `new`, which has one more."""
  return min(sum(a != b for a, b in zip(old, new[:i] + new[i + 1 :], strict=True)) for i in range(len(new)))


def states(decisions):
  """Per position, what the policy engine does: inside which segments, and saved or not."""
  (top,) = decisions.regions
  return {
    position: (
      segment.is_wrapped,
      position == segment.start,
      tuple(index for at, index in segment.saved if at == position),
    )
    for segment, _ in top.leaves
    for position in range(segment.start, segment.stop)
  }


@pytest.mark.parametrize(
  ("share", "is_compiled"),
  [
    *((share, False) for share in (0.25, 0.6)),
    *(pytest.param(share, False, marks=pytest.mark.sweep) for share in (0.15, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55)),
    pytest.param(0.5, True, marks=pytest.mark.sweep),
  ],
)
def test_checkpoints_and_saved_values(share, is_compiled):
  # By a compiler that takes 5% more than estimated, or by XLA.
  decided = []
  for depth in DEPTHS:
    profile, candidates = space(depth)

    def temp_bytes_of(decisions, traced=decoder(depth), candidates=candidates):
      if is_compiled:
        return temp_bytes(compile_abstract(*fn_and_gradient(traced, rewrite(traced, decisions))))
      return int(1.05 * next(each.estimated_bytes for each in candidates.found if each.decisions == decisions))

    limit = int(share * profile.temp_bytes)
    plan = search(candidates, limit, temp_bytes_of, profile.temp_bytes)
    assert plan.is_feasible and plan.temp_bytes <= limit and len(plan.rounds) <= 4
    decided.append(by_layer(depth, states(plan.decisions)))
  assert num_changed(*decided) <= 3


@pytest.mark.sweep
def test_recomputed_values(monkeypatch):
  monkeypatch.setattr(quick.auto, "AutoPlanner", quick.ThoroughPlanner)
  # With effort enough for all its stages: what is cut off is cut off anywhere. The HLO engine looks for the least cost,
  # of whatever pattern: with little room (a half and less) layers may swap what they do, and how many of the cheapest
  # ops are repeated hangs on how buffers pack: they are counted by what all of them cost a layer.
  decided, costs_s = [], []
  for depth in DEPTHS:
    outcome = plan_module(module(depth), [Mark(Budget(share=0.6), "auto", "best")])
    assert outcome.fits
    decided.append(by_layer(depth, recomputed_products(decoder(depth), outcome)))
    costs_s.append(outcome.result.recompute_cost_s / depth)
    assert any(any(layer) for layer in decided[-1])
  assert num_changed(*decided) <= 3
  assert costs_s[1] == pytest.approx(costs_s[0], rel=0.1)


def recomputed_products(traced, outcome):
  """Per position, how many matrix products the HLO engine repeats of its forward pass."""
  program = outcome.program
  read = read_profile(traced, program, np.full(program.num_values, -1), temp_bytes=0)
  times = np.array(explain.times_recomputed(program, outcome.result.schedule))
  is_product = np.array([kind == "dot" for kind in program.op_kinds])
  ops = np.flatnonzero((times > 0) & is_product & ~read.op_is_backward)
  return collections.Counter(int(read.op_position[op]) for op in ops)
