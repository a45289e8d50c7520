"""What a plan of a step says of each of its regions."""

from collections.abc import Mapping, Sequence

from coopjax.hlo_engine.module_plan import Outcome
from coopjax.planning import regions
from coopjax.planning.assemble import schedules
from coopjax.planning.choice import Choice
from coopjax.planning.policy_names import HLO_ENGINE, NOT_KNOWN, RegionNames, agreed
from coopjax.planning.region_names import region_names
from coopjax.planning.remat_plan import RegionPlan
from coopjax.planning.steps import Step, holds_checkpoint
from coopjax.policy_engine.division import Share
from coopjax.policy_engine.policy_plan import PolicyPlan
from coopjax.program import explain


def region_plans(
  step: Step,
  choices: Sequence[Choice],
  outcome: Outcome | None,
  found: PolicyPlan[tuple[Share, ...]] | None,
  repeated: Mapping[int | None, float],
  names_only: bool,
) -> tuple[RegionPlan, ...]:
  """What each region does, and its share of the budget; a step without regions is one itself.

  Args:
    step: that was planned.
    choices: one for each region.
    outcome: of the HLO engine, if it was at work.
    found: by the policy engine, if it was at work.
    repeated: FLOPs that each region then repeats as it is traced.
    names_only: it is one policy over names for all regions.
  """
  if not step.members:
    return (_whole_step(step, choices[0], outcome),)
  saved = [share.saved_bytes for share in found.decisions] if found else [0.0] * len(step.members)
  flops = [repeated.get(i, 0.0) for i in range(len(step.members))]
  for program, schedule in schedules(outcome):
    times = explain.times_recomputed(program, schedule)
    at = [regions.region_of(scope) for scope in program.op_scopes]
    for op, region in enumerate(at):
      if region is not None:
        flops[region] += float(times[op] * program.op_flops[op])
    for value in explain.decided_values(program, schedule) if found is None else ():
      op = int(program.value_producer[value])
      region = at[op]
      if region is not None and not times[op]:
        saved[region] += int(program.value_bytes[value])
  chosen = list(zip(step.members, choices, strict=True))
  names = [region_names(member.traced, choice, member.num_runs, member.num_examples) for member, choice in chosen]
  if names_only:
    names = agreed(names)
  return tuple(
    RegionPlan(member.key, member.traced.name, member.num_runs, choice.decisions, int(num_bytes), num_flops, of_region)
    for (member, choice), num_bytes, num_flops, of_region in zip(chosen, saved, flops, names, strict=True)
  )


def _whole_step(step: Step, choice: Choice, outcome: Outcome | None) -> RegionPlan:
  beyond = (HLO_ENGINE,) if choice.mark else ()
  names = RegionNames(step.name, beyond=beyond, keeps_all=True)
  if holds_checkpoint(step.jaxpr):  # of its own, that are kept: they say what is saved
    names = NOT_KNOWN
  return RegionPlan(step.fingerprint, step.name, 1, None, 0, outcome.recompute_flops if outcome else 0.0, names)
