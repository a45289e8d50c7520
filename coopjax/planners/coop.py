"""Coop (Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023), with DTR and DTE as baselines.

The simulation is in ``xla_pass/coop_planner.h``, which says what differs from the paper and from OneFlow's code.
"""

import dataclasses
import time

import numpy as np

from coopjax import _core
from coopjax.planners.base import PlannerResult
from coopjax.program.step_program import StepProgram

EVICTIONS = ("window", "dtr", "dte")
COSTS = ("own", "neighbours", "chain")


@dataclasses.dataclass(frozen=True)
class CoopPlanner:
  """Simulates the order in an arena of the budget's size and evicts contiguous windows.

  The defaults are for quality: they use that a static order knows its future. :meth:`published` is the paper.

  Attributes:
    eviction: ``"window"`` (Coop), ``"dtr"`` (one value at a time) or ``"dte"`` (DTR counting neighbouring holes).
    cost: ``"own"`` op, ``"neighbours"`` (evicted components by union-find, as Coop and DTR) or the exact ``"chain"``.
    partitions_by_density: whether cheap and expensive values grow from opposite ends of the arena.
    cheap_below_s_per_byte: cost density of cheap values; 0 for the program's median, weighted by bytes.
    recomputes_in_place: whether a value that is overwritten, or overwrites, may be made again.
    knows_future: whether the distance to the next need replaces staleness (ours).
    alignment_bytes: of placements.
    max_overhead: recompute over the program's own cost at which thrashing is given up.
  """

  eviction: str = "window"
  cost: str = "chain"
  partitions_by_density: bool = True
  cheap_below_s_per_byte: float = 0.0
  recomputes_in_place: bool = True
  knows_future: bool = True
  alignment_bytes: int = 64
  max_overhead: float = 4.0

  def __post_init__(self):
    if self.eviction not in EVICTIONS or self.cost not in COSTS:
      raise ValueError(f"eviction={self.eviction!r}, cost={self.cost!r}: need one of {EVICTIONS} and one of {COSTS}")

  @classmethod
  def published(cls, **changes) -> "CoopPlanner":
    """The paper's planner: staleness, union-find costs, OneFlow's alignment."""
    return cls(**{"cost": "neighbours", "knows_future": False, "alignment_bytes": 512, **changes})

  def plan(
    self, program: StepProgram, budget_bytes: int, *, time_limit_s: float = 10.0, order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`; ``order`` is the order to simulate, the least peak by default.

    When an allocation can't be met the result is the order itself, and ``counters`` names the step (``failed_step``)
    and the bytes. The simulation is too quick to need ``time_limit_s``.
    """
    start = time.perf_counter()
    order = _core.schedule_for_memory(program.core) if order is None else order
    options = dataclasses.asdict(self)
    options |= {"eviction": EVICTIONS.index(self.eviction), "cost": COSTS.index(self.cost)}
    found = _core.plan_coop(program.core, order, budget_bytes, **options)
    schedule, placements = found.pop("schedule"), found.pop("placements").reshape(-1, 3)
    found.pop("is_feasible")
    result = PlannerResult.of(program, schedule, "coop", budget_bytes, time.perf_counter() - start, order, **found)
    return dataclasses.replace(result, placements=placements)
