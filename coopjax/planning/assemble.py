"""A finished plan, put together: what was asked, what the compiler measured, and what the models say of it."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from coopjax import _core
from coopjax.hlo_engine.module_plan import Outcome
from coopjax.jaxpr.placement import Spread
from coopjax.jaxpr.trace import TracedFn
from coopjax.memory_profile import MemoryProfile
from coopjax.planning.choice import Choice
from coopjax.planning.decision import Decision
from coopjax.planning.remat_plan import RegionPlan, RematPlan
from coopjax.planning.request import Request
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.description import describe, layers_of_inputs
from coopjax.policy_engine.policy_plan import PolicyPlan
from coopjax.policy_engine.shards import Shards
from coopjax.program import explain
from coopjax.program.layers import layers_of_ops, parameters
from coopjax.program.step_program import StepProgram
from coopjax.xla.targets import Target

Sharing = Mapping[int | None, Shards]  # as from `shards_of`

STEP_OVER_FORWARD = 3  # FLOPs of a step over those of its forward pass, as usually counted


def assemble(
  request: Request,
  *,
  name: str,
  fingerprint: str,
  budget_bytes: int,
  engine: str,
  spread: Spread,
  choices: Sequence[tuple[TracedFn, Choice]],
  regions: tuple[RegionPlan, ...] = (),
  outcome: Outcome | None,
  found: PolicyPlan | None,
  baseline: MemoryProfile,
  measured: MemoryProfile,
  planning_s: float,
  existing: str = "replace",
  of_gradients: bool = False,
  plain_flops: float | None = None,
  runs: Sequence[tuple[float, float]] = ((1, 1),),
  shards: Sequence[Sharing] = ({},),
) -> RematPlan:
  """The plan of a function with its gradient, or of a whole step.

  Args:
    request: what was asked.
    name: of the program.
    fingerprint: of the program.
    budget_bytes: temporary bytes that the budget allows it.
    engine: what carries the plan out.
    spread: of its arguments.
    choices: for the function, or for the functions of the step's regions.
    regions: of the step.
    outcome: of the HLO engine on the planning module, if it was at work.
    found: by the policy engine, if it was at work.
    baseline: memory without the plan.
    measured: memory with it.
    planning_s: seconds spent planning.
    existing: of the step.
    of_gradients: same.
    plain_flops: of the program without the plan, where they were counted.
    runs: of each of those functions in a step, and how many of them are kept at once; of each example.
    shards: how devices share the values of each of those functions; {} where that is not known.
  """
  model = _model(outcome, found, baseline, plain_flops)
  return RematPlan(
    name=name,
    budget=request.budget,
    budget_bytes=budget_bytes,
    planner=request.planner,
    engine=engine,
    target=request.target,
    fingerprint=fingerprint,
    baseline=baseline,
    predicted=model.predicted,
    measured=measured,
    overhead=model.overhead,
    recompute_flops=model.recompute_flops,
    lower_bound_bytes=model.lower_bound_bytes,
    decisions=_decisions(choices, outcome, request.speeds, runs, shards, is_step=bool(regions)),
    policy=None if regions else choices[0][1].decisions,
    rounds=model.rounds,
    planning_s=planning_s,
    least_overhead=model.least_overhead,
    mesh=spread.mesh,
    num_devices=spread.num_devices,
    shards=spread.shards,
    regions=regions,
    effort=request.effort,
    time_limit_s=request.time_limit_s,
    is_cut_short=outcome is not None and outcome.is_cut_short,
    existing=existing,
    is_drafted=request.drafts,
    of_gradients=of_gradients,
  )


@dataclasses.dataclass(frozen=True)
class _Model:
  """The modelled fields of a `RematPlan`."""

  predicted: MemoryProfile
  overhead: float = 0.0
  recompute_flops: float = 0.0
  least_overhead: float = 0.0
  lower_bound_bytes: int = 0
  rounds: tuple[str, ...] = ()


def _model(
  outcome: Outcome | None, found: PolicyPlan | None, baseline: MemoryProfile, plain_flops: float | None
) -> _Model:
  if found is not None:
    extra_flops = found.recompute_flops + found.waiting_flops
    plain_flops = plain_flops or STEP_OVER_FORWARD * found.forward_flops
    return _Model(
      predicted=MemoryProfile(temp_bytes=found.temp_bytes),
      recompute_flops=found.recompute_flops,
      overhead=extra_flops / max(plain_flops, 1.0),
      rounds=tuple(map(str, found.rounds)),
    )
  if outcome is None:
    return _Model(baseline)
  predicted = MemoryProfile(temp_bytes=outcome.predicted.temp_bytes, peak_live_bytes=outcome.predicted.peak_live_bytes)
  model = _Model(predicted, rounds=outcome.rounds, lower_bound_bytes=_core.lower_bound(outcome.bound_program.core)[0])
  if outcome.result is None:
    return model
  return dataclasses.replace(
    model, overhead=outcome.overhead, recompute_flops=outcome.recompute_flops, least_overhead=outcome.least_overhead
  )


def _decisions(
  choices: Sequence[tuple[TracedFn, Choice]],
  outcome: Outcome | None,
  target: Target,
  runs: Sequence[tuple[float, float]],
  shards: Sequence[Sharing],
  *,
  is_step: bool,
) -> tuple[Decision, ...]:
  """What happens to each value: by the policy engine where it decided, else by the HLO engine."""
  decided = [
    (traced, choice.decisions, shared, *of)
    for (traced, choice), of, shared in zip(choices, runs, shards, strict=True)
    if choice.decisions is not None
  ]
  if not decided:
    of_entry = choices[0][0] if len(choices) == 1 else None
    return tuple(
      decision
      for i, (program, schedule) in enumerate(schedules(outcome))
      for decision in _module_decisions(program, schedule, None if i else of_entry)
    )
  return tuple(
    decision
    for traced, decisions, shared, num_runs, num_kept in decided
    for decision in jaxpr_decisions(
      traced, decisions, target, shared, traced.name if is_step else "", num_runs, num_kept
    )
  )


def jaxpr_decisions(
  traced: TracedFn,
  decisions: PolicyDecisions,
  target: Target,
  shards: Sharing | None = None,
  scope: str = "",
  num_runs: float = 1,
  num_kept: float = 1,
) -> tuple[Decision, ...]:
  """What happens to each value of a function where the policy engine decided.

  Args:
    traced: the function.
    decisions: for it.
    target: whose speed gives seconds.
    shards: how devices share its values.
    scope: says which function it is.
    num_runs: of the function, each over one example.
    num_kept: runs of which what is saved is kept at once.
  """
  return tuple(
    Decision(
      value=value.name or f"equation {value.equation_id}[{value.index}]",
      type=value.type,
      source=value.source,
      scope="/".join(filter(None, (scope, value.scope))),
      num_bytes=round(num_kept * value.num_bytes),
      decision=value.decision,
      times=int(value.decision == "recomputed"),
      cost_s=num_runs * value.flops / target.flops_per_s,
      op=value.op,
      made_of_layer=value.made_of_layer,
    )
    for value in describe(traced, decisions, shards)
  )


def schedules(outcome: Outcome | None) -> list[tuple[StepProgram, np.ndarray]]:
  """What the HLO engine planned, the module's entry first and then what that runs, each with its schedule."""
  if outcome is None or outcome.result is None:
    return []
  inner = [(plan.program, plan.result.schedule) for plan in outcome.inner]
  return [(outcome.program, outcome.result.schedule), *inner]


def _layers(program: StepProgram, traced: TracedFn) -> list[str]:
  """Of each op of a function's module, whose parameters are the function's inputs but for constants, if they are."""
  inputs = slice(len(traced.consts), None)
  given, num_bytes = parameters(program), [aval.size * aval.dtype.itemsize for aval in traced.in_avals[inputs]]
  if list(program.value_bytes[given])[: len(num_bytes)] != num_bytes:
    return [""] * program.num_ops
  layers = layers_of_inputs(traced)[inputs]
  return layers_of_ops(program, layers + [""] * (len(given) - len(layers)))


def _module_decisions(program: StepProgram, schedule: np.ndarray, traced: TracedFn | None) -> list[Decision]:
  """Those in a module, which may be a function's."""
  layers = [""] * program.num_ops if traced is None else _layers(program, traced)
  times = explain.times_recomputed(program, schedule)
  decisions = []
  for value in explain.decided_values(program, schedule):
    op = int(program.value_producer[value])
    decisions.append(
      Decision(
        value=f"{program.op_names[op]}[{list(program.outputs(op)).index(value)}]",
        type=program.value_types[value],
        source=program.op_sources[op],
        scope=program.op_scopes[op],
        num_bytes=int(program.value_bytes[value]),
        decision="recomputed" if times[op] else "saved",
        times=int(times[op]),
        cost_s=float(program.op_cost_s[op]),
        op=program.op_kinds[op] if program.op_kinds else "",
        made_of_layer=layers[op],
      )
    )
  return decisions
