"""The search for MODeL's order: heuristics and their bound, the lifetime ILP, and the same ILP on windows."""

import dataclasses
import heapq
import itertools

import numpy as np

from coopjax import _core
from coopjax.planners.effort import Allowance
from coopjax.planners.fastsa import FastSAPlanner
from coopjax.planners.milp_solvers import MilpSolver
from coopjax.planners.model.contraction import contracted, without_small
from coopjax.planners.model.control_edges import with_edges
from coopjax.planners.model.graph import order_graph
from coopjax.planners.model.order_ilp import OrderIlp, pruned_horizon
from coopjax.program.step_program import StepProgram

_ANNEAL_ITERATIONS = 200_000
_LARGEST_WINDOW = 4  # times the first
_SOLVER_TOLERANCE = 1e-6  # how far from a whole number of units a proven bound may be and mean it
_ROUNDING = 1e-12  # of bytes that are a product
_SMALL = 0.5  # of the gap of the best order so far: so many bytes together are too few to matter
_MAX_GRAPH_OPS = 20_000  # the bit sets of a graph take ops^2 / 8 bytes


@dataclasses.dataclass(frozen=True)
class OrderOptions:
  """What the search may do; the fields are those of :class:`coopjax.planners.model.planner.ModelPlanner`."""

  horizon: str
  relative_gap: float
  schedulers: bool
  cuts: bool
  max_branches: int
  anneals: bool
  window_ops: int
  max_windows: int
  max_entries: int
  contracts: bool
  solver: MilpSolver


class OrderSearch:
  """The best order so far, the bound on all orders, and the ways to bring them together.

  Attributes:
    order: the best order found, int32 ``[num_ops]``.
    bound_bytes: no order of the program has a smaller peak.
  """

  def __init__(self, program: StepProgram, restricted: StepProgram, options: OrderOptions, allowance: Allowance):
    """Starts with the given order, or the nearest to it.

    Args:
      program: whose peak counts, and whose orders the bound is about.
      restricted: the same with control edges (maybe none) that the ILP is to respect.
      options: see there.
      allowance: at its end the search ends with what it has.
    """
    self._program = program
    self._restricted = restricted
    self._options = options
    self._allowance = allowance
    self.order = restricted.schedule
    self._rank = self._rank_of(self.order)
    self.bound_bytes = int(_core.lower_bound(program.core)[0])
    counted = "cuts branches ilps ilp_seconds ilp_too_large ilp_cut_short ilp_ops ilp_entries ilp_gap fell_back"
    self._counters: dict[str, float] = dict.fromkeys(counted.split(), 0)

  def run(self, order: np.ndarray | None) -> None:
    """Heuristics, then the ILP, then windows, each while the gap is open and steps are left."""
    self._start(order)
    self._counters["start_bytes"] = self.peak_bytes
    if self._is_done():
      return
    before, is_solved = self._rank, self._solve_program()
    if self._options.window_ops:
      self._solve_windows()  # orders that the timesteps of the ILP can't express
    self._counters["fell_back"] = int(not is_solved and self._rank == before and not self._is_proven())

  @property
  def peak_bytes(self) -> int:
    return self._rank[0]

  def counters(self) -> dict[str, float]:
    """See :class:`coopjax.planners.model.planner.ModelPlanner`."""
    return {
      **self._counters,
      "bound_bytes": self.bound_bytes,
      "is_proven": int(self._is_proven()),
      "gap": 1 - self.bound_bytes / self.peak_bytes if self.peak_bytes else 0.0,
    }

  def _rank_of(self, order: np.ndarray) -> tuple[int, int]:
    live = _core.live_bytes(self._program.core, order)
    peak = int(live.max(initial=0))
    return peak, int((live == peak).sum())

  def _offer(self, order: np.ndarray) -> bool:
    rank = self._rank_of(order)
    is_better = rank < self._rank
    if is_better:
      self.order, self._rank = order, rank
    return is_better

  def _is_proven(self) -> bool:
    return (1 - self._options.relative_gap) * self.peak_bytes <= self.bound_bytes

  def _is_done(self) -> bool:
    return self._is_proven() or self._allowance.is_over

  def _start(self, order: np.ndarray | None) -> None:
    core = self._restricted.core
    rules = range(_core.NUM_ORDER_RULES) if self._options.schedulers else ()
    orders = [_core.schedule_by_rule(core, rule) for rule in rules] or [self.order]
    if order is not None and not _core.check_schedule(core, order):
      orders.append(np.asarray(order, np.int32))
    for candidate in orders:
      self._offer(candidate)
    if self._options.cuts:
      self._start_by_cuts({candidate.tobytes(): candidate for candidate in sorted(orders, key=self._rank_of)})
    if self._options.anneals and not self._is_done():
      annealer = FastSAPlanner(order_only=True, stage1_iterations=0, stage2_iterations=_ANNEAL_ITERATIONS)
      annealed = annealer.plan(
        self._restricted, self.bound_bytes, max_steps=self._allowance.left // 4, order=self.order
      )
      self._offer(annealed.schedule)

  def _start_by_cuts(self, orders: dict[bytes, np.ndarray]) -> None:
    is_free = self._restricted is self._program
    for order in orders.values():
      if not self._is_done():
        found = self._cut(self._restricted, order)
        self._offer(found["schedule"])
        self._raise_bound(found["bound_bytes"] if is_free else 0)
    if not is_free:
      # What bounds the orders with more control edges need not bound those without: cut once more, at the peak.
      self._raise_bound(self._cut(self._program, self.order, max_cuts=1, max_descents=2)["bound_bytes"])
    elif not self._is_done() and self._program.num_ops <= _MAX_GRAPH_OPS:
      self._branch()

  def _branch(self) -> None:
    """Proves more than one cut can: of two ops that the cuts can't reconcile, either may run first.

    Both cases are programs with one more control edge, with orders and bounds of their own; the smaller bound holds for
    all orders. The case with the smallest bound is split further.
    """
    found = self._cut(self._program, self.order)
    cases, count = [(found["bound_bytes"], 0, self._program, found["stuck_at"])], 0
    while cases and not self._is_done() and count < self._options.max_branches:
      bound_bytes, _, case, stuck_at = heapq.heappop(cases)
      self._raise_bound(bound_bytes)
      pair = self._unordered_pair(case, stuck_at)
      if pair is None:
        break
      for edge in (pair, (pair[1], pair[0])):
        count += 1
        child = with_edges(case, self.order, [edge])
        found = self._cut(child, child.schedule)
        self._offer(found["schedule"])
        heapq.heappush(cases, (max(bound_bytes, found["bound_bytes"]), count, child, found["stuck_at"]))
    else:
      self._raise_bound(min(cases)[0])
    self._counters["branches"] = count

  def _unordered_pair(self, case: StepProgram, stuck_at: np.ndarray) -> tuple[int, int] | None:
    """The first two ops that cuts got stuck at, or the peak's, of which either may come first in ``case``."""
    graph = order_graph(case, case.schedule)
    local = {op: index for index, op in enumerate(graph.ops)}
    peak_op = int(self.order[np.argmax(_core.live_bytes(self._program.core, self.order))])
    ops = dict.fromkeys([*stuck_at[::-1].tolist(), peak_op])
    for one, other in itertools.combinations(ops, 2):
      first, second = sorted((local[one], local[other]))
      if not graph.is_before(first, second):
        return one, other
    return None

  def _raise_bound(self, bound_bytes: int) -> None:
    self.bound_bytes = max(self.bound_bytes, bound_bytes)

  def _cut(self, program: StepProgram, order: np.ndarray, **options) -> "_core.OrderCutResult":
    found = _core.reorder_by_cuts(
      program.core,
      order,
      relative_gap=self._options.relative_gap,
      bound_bytes=self.bound_bytes,
      max_steps=self._allowance.left // 2,
      **options,
    )
    self._counters["cuts"] += found["num_cuts"]
    return found

  def _solve_program(self) -> bool:
    """The ILP over all ops; whether it was solved."""
    if self._program.num_ops > _MAX_GRAPH_OPS:
      self._counters["ilp_too_large"] += 1
      return False
    whole = order_graph(self._restricted, self._restricted.schedule)
    graph, members = whole, [(op,) for op in range(whole.num_ops)]
    start = np.argsort(np.asarray(whole.ops))[self.order]
    if self._options.contracts:
      smaller = contracted(without_small(whole, int(_SMALL * self._options.relative_gap * self.peak_bytes)))
      graph, members = smaller.graph, smaller.members
      start = np.argsort(np.argsort(start)[list(smaller.anchors)])
    horizon = pruned_horizon(graph) if self._options.horizon == "pruned" else graph.num_ops
    ilp = OrderIlp(graph, horizon, self.bound_bytes, self.peak_bytes)
    self._counters["ilp_ops"], self._counters["ilp_entries"] = graph.num_ops, ilp.num_entries
    groups = [[whole.ops[op] for op in group] for group in members]
    status, bound_bytes = self._solve(ilp, groups, start, self._allowance.left // 2)
    if horizon == graph.num_ops and self._restricted is self._program:
      self._raise_bound(bound_bytes)
    return status in ("optimal", "infeasible")

  def _solve_windows(self) -> None:
    """Windows around the peak, larger when one can't be improved."""
    size = self._options.window_ops
    for _ in range(self._options.max_windows):
      if self._is_done() or size > _LARGEST_WINDOW * self._options.window_ops:
        return
      step = int(np.argmax(_core.live_bytes(self._program.core, self.order)))
      begin = max(min(step - size // 2, self._program.num_ops - size), 0)
      graph = order_graph(self._restricted, self.order, begin, begin + size)
      before = self._rank
      ilp = OrderIlp(graph, graph.num_ops, self.bound_bytes, self.peak_bytes)
      self._solve(ilp, [[op] for op in graph.ops], np.arange(graph.num_ops), self._allowance.left // 2, begin)
      if self._rank == before:
        size *= 2

  def _solve(
    self,
    ilp: OrderIlp,
    groups: list[list[int]],
    start: np.ndarray,
    max_steps: int,
    begin: int = 0,
  ) -> tuple[str, int]:
    """Solves one ILP and takes what it finds; its status and, in bytes, its bound.

    Args:
      ilp: of an order problem.
      groups: ops of the program that each op of the problem stands for, in the order in which they run.
      start: the order to start from, as ops of the problem.
      max_steps: of the solver.
      begin: step of the first of these ops in the best order.
    """
    if ilp.num_entries > self._options.max_entries:
      self._counters["ilp_too_large"] += 1
      return "too_large", 0
    problem = ilp.build()
    result = self._options.solver.solve(
      problem, max_steps=max_steps, relative_gap=self._options.relative_gap, start=ilp.start_of(start)
    )
    self._counters["ilps"] += 1
    self._counters["ilp_seconds"] += result.seconds
    self._counters["ilp_gap"] = min(result.gap, 1.0)
    self._counters["ilp_cut_short"] += int(result.status in ("feasible", "cut_short"))
    for found in ilp.orders_of(result.x) if result.x is not None else ():
      order = self.order.copy()
      ops = np.concatenate([groups[op] for op in found])
      order[begin : begin + len(ops)] = ops
      self._offer(order)
    if result.status == "infeasible":
      return result.status, self.peak_bytes
    if not np.isfinite(result.bound):
      return result.status, 0
    nearest = np.round(result.bound)
    units = nearest if abs(result.bound - nearest) <= _SOLVER_TOLERANCE else result.bound - _SOLVER_TOLERANCE
    # A peak is a number of bytes: one that a bound lies just below is the next.
    return result.status, int(np.ceil(max(units * ilp.unit_bytes * (1 - _ROUNDING), 0)))
