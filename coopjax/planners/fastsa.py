"""FastSA (Imanishi et al., "A fast heuristic to optimize time-space tradeoff for large models", NeurIPS 2023).

The annealer is in ``xla_pass/planners/fastsa/anneal.h``, which says what the paper leaves open and what differs.
"""

import dataclasses

import numpy as np

from coopjax import _core
from coopjax.planners.base import PlannerResult, counters_of
from coopjax.planners.effort import DEFAULT_STEPS
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch


@dataclasses.dataclass(frozen=True)
class FastSAPlanner:
  """Anneals a sequence in which ops may repeat: add, remove and rotate, accepted on ``max(budget, peak) * cost``.

  The defaults are the paper's but for ``retry_ungrouped``. What finds cheaper plans is ``improved()``. To polish a
  plan, hand it in as ``order`` and take few slots, ``num_slots=0``, a low ``start_temperature`` and
  fewer ``stage2_iterations``.

  Attributes:
    group: whether stage 1 anneals ops grouped with the readers that would rather remake their inputs (App. C.1).
    retry_ungrouped: whether both stages run again without groups, hotter, when the budget was missed with them (ours).
    order_only: whether ops are only moved, never repeated (App. B.2).
    seed: of the random numbers.
    num_slots: places for ops, most of them empty; at least four per step are taken.
    stage1_iterations: mutations tried, at most, until the budget is met; 0 leaves the stage out.
    stage2_iterations: mutations tried after that.
    start_temperature: of the first stage, over its initial objective.
    stage2_temperature: of the second stage, over its initial objective; 0: the temperature that the first would end
      at, as in the paper.
    stays_within: whether stage 2 accepts nothing above the budget once it is under it (ours).
    cooling: a stage's last temperature over its first.
  """

  group: bool = True
  retry_ungrouped: bool = True
  order_only: bool = False
  seed: int = 0
  num_slots: int = 1 << 20
  stage1_iterations: int = 20_000_000
  stage2_iterations: int = 2_000_000
  start_temperature: float = 1e-3
  stage2_temperature: float = 0.0
  stays_within: bool = False
  cooling: float = 1e-4

  @classmethod
  def improved(cls, **options) -> "FastSAPlanner":
    """With a second stage that starts hot and stays within the budget, in place of the paper's cold one."""
    return cls(stage2_temperature=1e-2, stays_within=True, **options)

  def plan(
    self,
    program: StepProgram,
    budget_bytes: int,
    *,
    max_steps: int = DEFAULT_STEPS,
    order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`; ``order`` is the program's own by default.

    It may have repeats: then it is a plan to improve, and stage 2 alone runs.
    """
    stopwatch = Stopwatch()
    order = program.schedule if order is None else order
    found = _core.plan_fastsa(program.core, order, budget_bytes, max_steps=max_steps, **dataclasses.asdict(self))
    return PlannerResult.of(
      program, found["schedule"], "fastsa", budget_bytes, stopwatch.seconds, order, **counters_of(found)
    )
