"""One scheduled module: what is asked of it, the plan that answers, and the rewritten bytes.

The module is the very one that is about to be allocated (optimizer, donation and sharding included). It is read,
planned and rewritten, and the outcome is verified; on any doubt the module stays as it came, with the reason.
"""

import dataclasses
import math
from collections.abc import Collection

import numpy as np

from coopjax import _core
from coopjax.budget import format_bytes
from coopjax.errors import InvalidProgramError
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.recompute_order import (
  ORDERING_PLANNERS,
  Changes,
  InnerPlan,
  RecomputeOrderResult,
  Round,
  recompute_order,
)
from coopjax.planners import effort
from coopjax.planners.base import PlannerResult
from coopjax.program.cost import Roofline
from coopjax.program.scopes import KEPT_SCOPE
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch
from coopjax.xla import targets
from coopjax.xla.module import HeapResult, parse_module, predict_memory, read_step_program
from coopjax.xla.module_fields import has_results_on_host

_ON_HOST = (
  "its results lie in the host's memory, and of a module that a hook changes XLA:CPU forgets that: use engine='policy'"
)
_WORTH_REORDERING = 1 << 16  # bytes of temporaries; most programs of a process are single ops with less
_JUST_MISSED = 1.25  # of the budget; or
# Where there are other trials: on 34 that missed by less than a quarter, more effort gained 1.2% at most.
_JUST_MISSED_BY_SKETCH = 1.01
_MAYBE_BY_SKETCH = 1.02
_ONCE_MORE = 2  # times the steps, then
# A greater effort is made where the budget is missed, or where what is repeated is at least so much of the program's
# cost. On 76 modules of unlike programs at 50 and 25%, more of it than a sketch gained 0.6% of that cost at most where
# that repeated less than a tenth, and mostly nothing; all efforts alone gained nothing beside a sketch in sum.
_WORTH_MORE = {"fast": 0.1, "normal": 0.2, "best": 0.005}
_OUT_OF_REACH = 1  # bytes
_A_LITTLE_LESS = 0.93  # than the least: what is in reach may be found where what is out of it was not
_NEAR_SMALLEST = (
  1.01  # temporaries that count as the smallest where the budget can't be reached: the last percent costs
)


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
  """What the hook did to one module.

  Attributes:
    name: of the module.
    mark: what was asked.
    program: the module's entry as it came, with the workspaces that the plan was made for.
    bound_program: the same with a lower bound on each workspace: what holds for it holds for every plan.
    baseline: predicted memory of the module as it came.
    budget_bytes: temporary bytes allowed, None where only the order was asked for.
    result: the plan of the entry, or None when none was needed or possible.
    predicted: predicted memory of what was handed to XLA.
    module_bytes: the rewritten module, None if it was left as it came.
    reason: why it was left as it came, or "".
    rounds: one line per plan tried.
    seconds: time spent on the module, planning included.
    planning_s: time spent in the planner.
    inner: the plans of what the entry's loops, conditionals and calls run, the innermost first.
    is_cut_short: whether the mark's fuse blew.
  """

  name: str
  mark: Mark
  program: StepProgram
  bound_program: StepProgram
  baseline: HeapResult
  budget_bytes: int | None
  result: PlannerResult | None
  predicted: HeapResult
  module_bytes: bytes | None = None
  reason: str = ""
  rounds: tuple[str, ...] = ()
  seconds: float = 0.0
  planning_s: float = 0.0
  inner: tuple[InnerPlan, ...] = ()
  is_cut_short: bool = False

  @property
  def fits(self) -> bool:
    """Whether the predicted temporaries hold the budget, if there is one."""
    return self.budget_bytes is None or self.predicted.temp_bytes <= self.budget_bytes

  @property
  def num_recomputed(self) -> int:
    """How many repeats there are, in loops each once."""
    return sum(result.num_recomputed for result in self._results)

  @property
  def overhead(self) -> float:
    """Recompute cost, that of all runs of loops included, over the program's own cost."""
    total_s = float(self.program.op_cost_s.sum())
    return sum(result.recompute_cost_s for result in self._results) / total_s if total_s > 0 else 0.0

  @property
  def recompute_flops(self) -> float:
    """Floating-point operations of all repeats."""
    return sum(result.recompute_flops for result in self._results)

  @property
  def least_overhead(self) -> float:
    """A lower bound on the overhead of every plan with the bytes that this one may or does take."""
    return self.result.least_overhead(self.bound_program) if self.result else 0.0

  @property
  def _results(self) -> list[PlannerResult]:
    return [inner.result for inner in self.inner] + ([self.result] if self.result else [])

  def __str__(self) -> str:
    """One line: the module, its temporaries before and after, what was done or why nothing was."""
    budget = "" if self.budget_bytes is None else f", budget {format_bytes(self.budget_bytes)}"
    what = f"{self.name}: temporaries {format_bytes(self.baseline.temp_bytes)}{budget}"
    if self.module_bytes is None:
      return f"{what}, left as it came in {self.seconds:.3f} s: {self.reason}"
    assert self.result is not None  # by which the module was rewritten
    done = f"now {format_bytes(self.predicted.temp_bytes)} in another order"
    if self.num_recomputed:
      done += f" with {self.num_recomputed} recomputed, cost {self.overhead:+.2%}"
    return f"{what}, {done} ({self.result.planner}, {self.seconds:.3f} s)"


def plan_module(
  module_bytes: bytes,
  marks: Collection[Mark],
  *,
  reorders: bool = False,
  is_sketch: bool = False,
  may_give_up: bool = False,
) -> Outcome:
  """Plans one scheduled module and carries the plan out.

  Args:
    module_bytes: a serialized ``HloModuleProto`` at POST_SCHEDULER.
    marks: of the module, or of the process; the strictest is obeyed.
    reorders: whether the order is improved where the budget is held, too, and before anything is recomputed. Always
      so without a budget.
    is_sketch: for a trial: a greater effort is made only where the budget is just missed.
    may_give_up: where it is missed by more, and that is refused, another way is looked for.

  Returns:
    The outcome; ``module_bytes`` is None with a reason where nothing is gained or anything is in doubt.

  Raises:
    coopjax.errors.InvalidProgramError: the bytes can't be read as a scheduled module, or it must stay as it came.
  """
  stopwatch = Stopwatch()
  module = parse_module(module_bytes)
  baseline = predict_memory(module)
  device = targets.resolve(min(mark.target for mark in marks))
  if device.platform == "cpu" and has_results_on_host(module_bytes):
    raise InvalidProgramError(_ON_HOST)
  roofline = device.roofline
  mark, budget_bytes = _strictest(marks, baseline)
  fits = budget_bytes is None or baseline.temp_bytes <= budget_bytes
  reorders = reorders or budget_bytes is None
  searches_order = reorders and baseline.temp_bytes >= _WORTH_REORDERING
  if fits and not searches_order:
    program, _ = read_step_program(module, roofline, kept_scope=KEPT_SCOPE)
    bound_program = dataclasses.replace(program, op_workspace_bytes=np.zeros_like(program.op_workspace_bytes))
    reason = (
      "there is little to gain"
      if budget_bytes is None or reorders
      else f"{format_bytes(baseline.temp_bytes)} of temporaries already fit {format_bytes(budget_bytes)}"
    )
    outcome = Outcome(module.name, mark, program, bound_program, baseline, budget_bytes, None, baseline, reason=reason)
  else:
    with effort.fuse(mark.time_limit_s):
      gives_up = is_sketch or (may_give_up and mark.refuses)
      found = _search(module, mark, None if fits else budget_bytes, searches_order, roofline, is_sketch, gives_up)
      is_cut_short = _core.is_fuse_blown()
    bound_program = dataclasses.replace(found.program, op_workspace_bytes=found.least_workspaces)
    outcome = _told(
      Outcome(module.name, mark, found.program, bound_program, baseline, budget_bytes, None, baseline), found
    )
    outcome = dataclasses.replace(outcome, is_cut_short=is_cut_short)
  return dataclasses.replace(outcome, seconds=stopwatch.seconds)


def _strictest(marks: Collection[Mark], baseline: HeapResult) -> tuple[Mark, int | None]:
  """The mark that leaves the module least, and the bytes of temporaries that it leaves."""
  resolved = {mark: mark.budget.resolve(baseline.temp_bytes, baseline.resident_bytes) for mark in marks if mark.budget}
  if not resolved:
    return min(marks, key=repr), None
  mark = min(resolved, key=lambda mark: (resolved[mark], repr(mark)))
  return mark, resolved[mark]


def _search(
  module: _core.HloModule,
  mark: Mark,
  budget_bytes: int | None,
  searches_order: bool,
  roofline: Roofline,
  is_sketch: bool,
  gives_up: bool,
) -> RecomputeOrderResult:
  """What is found within the bytes, or by a better order alone where None are given.

  The efforts up to the mark's are made, the least first, while more may be worth it, and the best of what they find is
  taken: more of it never gives less. A search that ended by itself would end the same with more. Where the budget is
  just missed, one greater effort is made, and one for the least that there is: what a budget out of reach was told can
  be reached, is reached when it is asked for.
  """
  found: list[RecomputeOrderResult] = []

  def search(max_steps: int, within_bytes: int | None = budget_bytes) -> bool:
    """Whether more steps might find more."""
    num_cuts = _core.num_cuts()
    found.append(_search_once(module, mark.planner, within_bytes, searches_order, roofline, max_steps))
    return _core.num_cuts() > num_cuts

  def reached_bytes() -> int:
    return min(result.after.temp_bytes for result in found)

  def is_just_missed(by: float = _JUST_MISSED_BY_SKETCH if gives_up else _JUST_MISSED) -> bool:
    return budget_bytes is not None and budget_bytes < reached_bytes() <= by * budget_bytes

  def is_worth(each: str) -> bool:
    held = [result for result in found if budget_bytes is not None and result.after.temp_bytes <= budget_bytes]
    if is_sketch or (gives_up and not held):
      return is_just_missed(_MAYBE_BY_SKETCH)
    enough_s = _WORTH_MORE[each] * float(found[0].program.op_cost_s.sum())
    return not held or min(result.recompute_cost_s for result in held) > enough_s

  efforts = (effort.SKETCH, *effort.up_to(mark.effort))
  steps = [effort.steps_of(each, module.num_instructions) for each in efforts]
  is_open = search(steps[0])
  for each, max_steps in zip(efforts[1:], steps[1:]):
    is_open = is_open and (not is_worth(each) or search(max_steps))
  if is_open and is_just_missed():
    search(_ONCE_MORE * steps[-1])
  if is_just_missed():
    # If all miss, the least is what is told: of whatever budget was asked, what it searches for is the same.
    found, missed = [], found
    for max_steps in steps:
      search(max_steps, _OUT_OF_REACH)
    least_bytes = math.inf
    while not is_sketch and reached_bytes() < least_bytes:
      least_bytes = reached_bytes()
      for within_bytes in (int(_A_LITTLE_LESS * least_bytes), least_bytes - 1):
        search(steps[-1], within_bytes)
    if is_sketch or reached_bytes() <= (budget_bytes or 0):
      found = [*missed, *found]
  near_bytes = int(_NEAR_SMALLEST * reached_bytes())

  def rank(result: RecomputeOrderResult) -> tuple[int, float, int]:
    """Within the budget, then cheap, then small; above it small before cheap, by the percent."""
    temp_bytes = result.after.temp_bytes
    is_over = budget_bytes is not None and temp_bytes > budget_bytes
    return max(temp_bytes, near_bytes) if is_over else 0, result.recompute_cost_s, temp_bytes

  return min(found, key=rank)


def _search_once(
  module: _core.HloModule,
  planner: str,
  budget_bytes: int | None,
  searches_order: bool,
  roofline: Roofline,
  max_steps: int,
) -> RecomputeOrderResult:
  if budget_bytes is None:
    ordering = planner if planner in ORDERING_PLANNERS else None
    return recompute_order(module, changes=Changes.ORDER, planner=ordering, roofline=roofline, max_steps=max_steps)
  return recompute_order(
    module,
    budget_bytes,
    planner=planner,
    searches_order=searches_order,
    near_smallest=_NEAR_SMALLEST,
    roofline=roofline,
    max_steps=max_steps,
  )


def _told(outcome: Outcome, found: RecomputeOrderResult) -> Outcome:
  """The outcome with what was found in it."""
  program = found.program
  total_s = float(program.op_cost_s.sum())
  orders = [
    f"order {name}: live {format_bytes(live_bytes)}, heap {format_bytes(temp_bytes)}"
    for name, temp_bytes, live_bytes in found.orders
  ]
  rounds = [f"round {i}: {_round(each, total_s)}" for i, each in enumerate(found.rounds, 1)]
  planning_s = found.timing_s["order"] + found.timing_s["plan"]
  outcome = dataclasses.replace(outcome, rounds=(*orders, *rounds), planning_s=planning_s, reason=found.reason)
  if found.module_bytes is None:
    return outcome
  result = PlannerResult.of(program, found.schedule, found.planner, found.limit_bytes, planning_s, found.order)
  return dataclasses.replace(
    outcome, result=result, inner=found.inner, predicted=found.after, module_bytes=found.module_bytes
  )


def _round(made: Round, total_s: float) -> str:
  inside = "".join(f", {name} {format_bytes(peak)} ({planner})" for name, peak, planner in made.inside)
  return (
    f"live limit {format_bytes(made.limit_bytes)}, live {format_bytes(made.peak_live_bytes)}, heap "
    f"{format_bytes(made.temp_bytes)}, cost {made.recompute_cost_s / max(total_s, 1e-30):+.2%} ({made.planner})"
    + (f", share {made.share}{inside}" if inside else "")
  )
