"""MODeL (Steiner et al., "MODeL: Memory Optimizations for Deep Learning", ICML 2023): order, then addresses.

Two integer programs on an open solver: the order with the least peak of live bytes (``order_ilp.py``), then offsets for
that order (``address_ilp.py``). Nothing is recomputed. What differs from the paper:

- The warm start comes from list schedulers and from orders by minimum cuts (``xla_pass/planners/orders/order_cut.h``),
  which also bound the peak of every order. Where the two meet within the gap, which is the rule, the ILP has nothing
  left to decide.
- Ops that some best order runs side by side are one op of the ILP, and values too small to matter within the gap are
  left out of it (``contraction.py``): a tenth of the coefficients, or fewer. Where it is still too large, or was not
  finished, windows of consecutive steps around the peak are reordered by the same ILP, with everything else in place.
- Peaks are counted anew, and the bound that the gap refers to holds for every order of the program.

Known weakness: a window's optimum says nothing about orders that reach beyond it, so a gap may remain on an order that
is optimal.
"""

import dataclasses

import numpy as np

from coopjax.planners.base import PlannerResult
from coopjax.planners.effort import DEFAULT_STEPS, Allowance
from coopjax.planners.milp_solvers import MilpSolver, default_solver
from coopjax.planners.model.address_ilp import AddressOptions, plan_addresses
from coopjax.planners.model.control_edges import add_control_edges
from coopjax.planners.model.search import OrderOptions, OrderSearch
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch

HORIZONS = ("pruned", "num_ops")
_PART_OF_STEPS = 4  # of all of them, kept for addresses


@dataclasses.dataclass(frozen=True)
class ModelPlanner:
  """The order with the least peak, then addresses without fragmentation.

  Attributes:
    horizon: timesteps of the ILP over a whole program: ``"pruned"``, the longest path and 1% (the paper's; some orders
      can't be expressed), or ``"num_ops"`` (all orders; the solver's bound is one for the program).
    relative_gap: of the peak over its bound, at which an order counts as optimal; the paper's is 0.5%.
    updates_early: whether weight updates get control edges that make them early (``control_edges.py``).
    generators_late: whether ops without inputs get control edges that make them late.
    schedulers: whether the warm start uses list schedulers; without, it is the program's own order.
    cuts: whether the warm start uses orders by minimum cuts and their bound.
    max_branches: cases that such a bound is split into, by which of two ops runs first.
    anneals: whether FastSA polishes the warm start where a gap is left.
    window_ops: steps around the peak that the first window holds; 0 for no windows.
    max_windows: windows tried.
    max_entries: coefficients above which an ILP is not tried.
    contracts: whether ops that some best order runs side by side are one op of the ILP (``contraction.py``).
    places: whether addresses are planned.
    preplaces: whether the address ILP starts from values stacked as a pyramid, which stay where they are.
    alignment_bytes: of offsets.
    solver: of the ILPs; by default HiGHS, or SciPy's without it.
  """

  horizon: str = "pruned"
  relative_gap: float = 0.005
  updates_early: bool = False
  generators_late: bool = False
  schedulers: bool = True
  cuts: bool = True
  max_branches: int = 24
  anneals: bool = True
  window_ops: int = 32
  max_windows: int = 12
  max_entries: int = 60_000
  contracts: bool = True
  places: bool = True
  preplaces: bool = True
  alignment_bytes: int = 1
  solver: MilpSolver | None = None

  def __post_init__(self):
    if self.horizon not in HORIZONS:
      raise ValueError(f"horizon={self.horizon!r}: need one of {HORIZONS}")
    if not 0 <= self.relative_gap < 1:
      raise ValueError(f"relative_gap={self.relative_gap}: need a share below 1")

  def plan(
    self,
    program: StepProgram,
    budget_bytes: int,
    *,
    max_steps: int = DEFAULT_STEPS,
    order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`; ``order`` is one more to start from.

    The peak is minimised whatever the budget: above the budget the result is infeasible, as nothing is recomputed.

    ``counters``: ``bound_bytes`` that no order avoids, and the ``gap`` to it; ``is_proven`` when that is within
    ``relative_gap``; ``start_bytes``, the warm start's peak; ``cuts`` and ``branches`` it took; ``ilps`` solved,
    ``ilp_seconds``, ``ilp_cut_short``, ``ilp_too_large`` (not tried); ``ilp_ops`` and ``ilp_entries`` of the ILP over
    the whole program; ``ilp_gap`` of the last ILP, from what it found to what it proved of the orders that it can
    express; ``fell_back`` when an ILP was needed but none improved the best heuristic order; with ``places`` also
    ``heap_bytes``, ``fragmentation`` (heap over peak), ``address_ilps`` and ``address_cut_short``.
    """
    stopwatch, allowance = Stopwatch(), Allowance(max_steps)
    restricted = add_control_edges(program, updates_early=self.updates_early, generators_late=self.generators_late)
    solver = self.solver or default_solver()
    options = OrderOptions(
      self.horizon,
      self.relative_gap,
      self.schedulers,
      self.cuts,
      self.max_branches,
      self.anneals,
      self.window_ops,
      self.max_windows,
      self.max_entries,
      self.contracts,
      solver,
    )
    search = OrderSearch(program, restricted, options, Allowance(max_steps - self.places * max_steps // _PART_OF_STEPS))
    search.run(order)
    counters, placements = search.counters(), None
    if self.places:
      address_options = AddressOptions(self.alignment_bytes, self.preplaces, self.max_entries, allowance.left, solver)
      addresses = plan_addresses(program, search.order, address_options)
      placements, counters = addresses.placements, counters | addresses.counters
    result = PlannerResult.of(program, search.order, "model", budget_bytes, stopwatch.seconds, search.order, **counters)
    return dataclasses.replace(result, placements=placements)
