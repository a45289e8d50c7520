"""What the models say of a plan: its cost, its bytes, and what happens to each value."""

from typing import Any

import numpy as np

from coopjax import _core
from coopjax.policy_engine import rewrite
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.search import PolicyPlan
from coopjax.jaxpr.trace import TracedFn
from coopjax.memory_profile import MemoryProfile
from coopjax.program import explain
from coopjax.program.step_program import StepProgram
from coopjax.planning.remat_plan import Decision
from coopjax.hlo_engine.module_plan import Outcome
from coopjax.xla.targets import Target

_STEP_OVER_FORWARD = 3  # FLOPs of a step over those of its forward pass, as usually counted


def fields(outcome: Outcome | None, found: PolicyPlan | None, baseline: MemoryProfile) -> dict[str, Any]:
  """The modelled fields of a `RematPlan`.

  Args:
    outcome: of the HLO engine on the planning module, if it was at work.
    found: by the policy engine, if it was at work.
    baseline: memory without a plan.
  """
  model: dict[str, Any] = {
    "predicted": baseline, "overhead": 0.0, "recompute_flops": 0.0, "rounds": (), "lower_bound_bytes": 0}
  if found is not None:
    extra_flops = found.recompute_flops + found.waiting_flops
    model |= {"overhead": extra_flops / (_STEP_OVER_FORWARD * max(found.forward_flops, 1.0)),
              "recompute_flops": found.recompute_flops, "rounds": tuple(map(str, found.rounds)),
              "predicted": MemoryProfile(temp_bytes=found.temp_bytes)}
  elif outcome is not None:
    predicted = MemoryProfile(
      temp_bytes=outcome.predicted.temp_bytes, peak_live_bytes=outcome.predicted.peak_live_bytes)
    model |= {"rounds": outcome.rounds, "lower_bound_bytes": _core.lower_bound(outcome.bound_program.core)[0],
              "predicted": predicted}
    if outcome.result is not None:
      model |= {"overhead": outcome.overhead, "recompute_flops": outcome.recompute_flops,
                "least_overhead": outcome.least_overhead}
  return model


def jaxpr_decisions(traced: TracedFn, decisions: PolicyDecisions, target: Target, scope: str = ""
                    ) -> tuple[Decision, ...]:
  """What happens to each value of a function where the policy engine decided.

  Args:
    traced: the function.
    decisions: for it.
    target: whose speed gives seconds.
    scope: says which function it is.
  """
  return tuple(
    Decision(
      value=f"equation {value.equation_id}[{value.index}]", type=value.type, source=value.source, scope=scope,
      num_bytes=value.num_bytes, decision=value.decision, times=int(value.decision == "recomputed"),
      cost_s=value.flops / target.flops_per_s)
    for value in rewrite.describe(traced, decisions))


def module_decisions(outcome: Outcome | None) -> tuple[Decision, ...]:
  """What happens to each value of a scheduled module where the HLO engine decided alone."""
  return tuple(decision for program, schedule in schedules(outcome) for decision in _plan_decisions(program, schedule))


def schedules(outcome: Outcome | None) -> list[tuple[StepProgram, np.ndarray]]:
  """What the HLO engine planned, the module's entry first and then what that runs, each with its schedule."""
  if outcome is None or outcome.result is None:
    return []
  return [(plan.program, plan.result.schedule) for plan in (outcome, *outcome.inner)]


def _plan_decisions(program: StepProgram, schedule: np.ndarray) -> list[Decision]:
  times = explain.times_recomputed(program, schedule)
  decisions = []
  for value in explain.decided_values(program, schedule):
    op = int(program.value_producer[value])
    decisions.append(Decision(
      value=f"{program.op_names[op]}[{list(program.outputs(op)).index(value)}]", type=program.value_types[value],
      source=program.op_sources[op], scope=program.op_scopes[op], num_bytes=int(program.value_bytes[value]),
      decision="recomputed" if times[op] else "saved", times=int(times[op]), cost_s=float(program.op_cost_s[op])))
  return decisions
