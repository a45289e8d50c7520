"""Plans the policy engine: the least recompute whose compiled temporaries hold the budget.

Candidates are built from the jaxpr: a segmentation (see `segments.cut`), then saved values across all segments and
scan bodies in order of FLOPs spared per byte, which gives a ladder from least memory to least recompute for every
segmentation. Their bytes are JAX's, before fusion, so they only order candidates and choose which to try; the
compiler's `temp_size_in_bytes` decides. Each compile is a point on a curve from estimated to compiled bytes, and the
next try is the cheapest candidate that the curve puts inside the budget. A handful of compiles suffices.

Known weaknesses: one level of segments, so nothing below about the square root of a uniform chain's residuals;
transient bytes inside a segment are not in the estimate until a compile has shown them.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools

import jax
from jax.extend import core
import numpy as np

from coopjax.jaxpr.residuals import ForwardGraph, forward_graph
from coopjax.jaxpr.rewrite import PolicyDecisions, Region, apply_to_scans, rewrite
from coopjax.jaxpr.scan import Scan, find_scans
from coopjax.jaxpr.segments import CurvePoint, Segment, bytes_between, climb, cut, save_curve
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import TracedFn, fn_and_gradient

_MARGIN = 0.98       # of the budget that a prediction has to leave after one has been wrong
_CLOSE_ENOUGH = 0.95  # of the budget: no further try for less recompute
_MAX_BARE = 3        # tries at the least memory before the budget counts as out of reach
_WITHIN_REACH = 1.1  # of the budget: worth more tries
_MIN_GAIN = 0.02     # of the forward FLOPs: what a further compile has to promise

CompileFn = Callable[[Callable, Sequence[jax.ShapeDtypeStruct]], jax.stages.Compiled]


@dataclasses.dataclass(frozen=True)
class PolicyRound:
  """One compile of the verify-and-replan loop: what was tried, and bytes estimated and compiled."""

  summary: str
  estimated_bytes: int
  temp_bytes: int

  def __str__(self) -> str:
    return f"{self.summary}: {self.temp_bytes:,} bytes compiled, {self.estimated_bytes:,} estimated"


@dataclasses.dataclass(frozen=True)
class PolicyPlan:
  """The outcome.

  Attributes:
    decisions: of the best candidate that holds the budget; of the smallest one if none does.
    rounds: the compiles made, in order.
    temp_bytes: compiled temporaries of fn and its gradient under `decisions`.
    recompute_flops: forward work repeated, modelled.
    forward_flops: forward work, modelled.
    is_feasible: `temp_bytes` is within the budget.
    smallest_bytes: the smallest compiled temporaries seen.
  """

  decisions: PolicyDecisions
  rounds: tuple[PolicyRound, ...]
  temp_bytes: int
  recompute_flops: float
  forward_flops: float
  is_feasible: bool
  smallest_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
  """One way to carry the function out.

  Attributes:
    make_decisions: what is done.
    estimated_bytes: JAX's bytes at the peak of the backward pass.
    flops: repeated.
    is_bare: nothing is saved beyond what its segments need: the least memory for this segmentation.
  """

  make_decisions: Callable[[], PolicyDecisions]
  estimated_bytes: float
  flops: float
  is_bare: bool

  @functools.cached_property
  def decisions(self) -> PolicyDecisions:
    """Made when first asked for: of the candidates that are weighed, few are tried."""
    return self.make_decisions()

  @property
  def summary(self) -> str:
    """One line for the trace of rounds."""
    top = [segment for region in self.decisions.regions if region.equation_id is None for segment in region.segments]
    bodies = [region for region in self.decisions.regions if region.equation_id is not None]
    saved = sum(len(segment.saved) for region in self.decisions.regions for segment in region.segments)
    return (f"{sum(segment.is_wrapped for segment in top)} segments and {len(bodies)} scan bodies "
            f"under checkpoints, {saved} values saved")


def plan_policy(traced: TracedFn, budget_bytes: int, compile_fn: CompileFn, baseline_temp_bytes: int,
                max_rounds: int = 6, *, mark: str | None = None, only_scans: bool = False) -> PolicyPlan:
  """Finds checkpoint segments and saved values that make fn and its gradient fit.

  Args:
    traced: the function.
    budget_bytes: for the temporaries of fn and its gradient compiled together.
    compile_fn: from a function of flat arrays and their types to the compiled program.
    baseline_temp_bytes: compiled temporaries of the function as it is.
    max_rounds: compiles at most.
    mark: for the HLO engine; with one, each compile is of both engines' combined work.
    only_scans: decide on scan bodies alone and leave straight-line code to the HLO engine.

  Returns:
    The plan; without decisions if the function fits as it is or nothing can be decided.

  Raises:
    NotDifferentiableError: no gradient.
  """
  fn_and_gradient(traced)  # raises here, with the function's name, rather than inside the planner
  space = _Space(traced, only_scans)
  if baseline_temp_bytes <= budget_bytes or not space.candidates:
    return PolicyPlan(PolicyDecisions(), (), baseline_temp_bytes, 0.0, space.forward_flops,
                      baseline_temp_bytes <= budget_bytes, baseline_temp_bytes)
  search = _Search(space, budget_bytes, baseline_temp_bytes)
  for rounds_left in range(max_rounds, 0, -1):
    candidate = search.next_candidate(is_last=rounds_left == 1)
    if candidate is None:
      break
    fn, avals = fn_and_gradient(traced, rewrite(traced, candidate.decisions, mark))
    search.record(candidate, compile_fn(fn, avals).memory_analysis().temp_size_in_bytes)
  return search.result()


class _Search:
  """Chooses what to compile next, from the compiles so far."""

  def __init__(self, space: "_Space", budget_bytes: int, baseline_temp_bytes: int):
    self._space = space
    self._budget = budget_bytes
    self._tried: list[tuple[Candidate, int]] = []
    self._passed: set[Candidate] = set()
    self._baseline = float(baseline_temp_bytes)

  def record(self, candidate: Candidate, temp_bytes: int) -> None:
    self._tried.append((candidate, temp_bytes))

  def next_candidate(self, is_last: bool) -> Candidate | None:
    """The cheapest candidate that should fit; before the first that does, and on the last try, the smallest."""
    best = self._best()
    untried = [candidate for candidate in self._space.candidates if candidate not in self._passed]
    if best is not None:
      if best[1] >= _CLOSE_ENOUGH * self._budget:
        return None
      untried = [c for c in untried if c.flops < best[0].flops - _MIN_GAIN * self._space.forward_flops]
    within = self._budget * (_MARGIN if self._tried else 1.0)
    fitting = [candidate for candidate in untried if self._predict(candidate) <= within]
    if fitting and not (is_last and best is None):
      return self._first(fitting, lambda candidate: (candidate.flops, candidate.estimated_bytes))
    bare = [candidate for candidate in untried if candidate.is_bare]
    bare_tried = [temp_bytes for candidate, temp_bytes in self._tried if candidate.is_bare]
    is_hopeless = len(bare_tried) >= _MAX_BARE and min(bare_tried) > _WITHIN_REACH * self._budget
    if best is not None or is_hopeless:
      return None
    return self._first(bare, lambda candidate: (candidate.estimated_bytes, candidate.flops))

  def _first(self, candidates: list[Candidate], key: Callable) -> Candidate | None:
    """The first by `key` that decides something, and something new: different ladders share rungs."""
    tried = {candidate.decisions for candidate, _ in self._tried} | {PolicyDecisions()}
    for candidate in sorted(candidates, key=key):
      self._passed.add(candidate)
      if candidate.decisions not in tried:
        return candidate
    return None

  def result(self) -> PolicyPlan:
    rounds = tuple(PolicyRound(candidate.summary, int(candidate.estimated_bytes), temp)
                   for candidate, temp in self._tried)
    if not self._tried:
      return PolicyPlan(PolicyDecisions(), (), int(self._baseline), 0.0, self._space.forward_flops, False,
                        int(self._baseline))
    smallest = min(self._tried, key=lambda entry: entry[1])
    candidate, temp_bytes = self._best() or smallest
    return PolicyPlan(candidate.decisions, rounds, temp_bytes, candidate.flops, self._space.forward_flops,
                      temp_bytes <= self._budget, smallest[1])

  def _best(self) -> tuple[Candidate, int] | None:
    feasible = [entry for entry in self._tried if entry[1] <= self._budget]
    return min(feasible, key=lambda entry: entry[0].flops, default=None)

  def _predict(self, candidate: Candidate) -> float:
    """Compiled bytes: between two compiled candidates by the line through them, beyond them byte for byte.

    The program without checkpoints is scheduled differently, so it lends its ratio only until there is a candidate.
    """
    num_bytes = candidate.estimated_bytes
    if not self._tried:
      return num_bytes * self._baseline / max(self._space.baseline_bytes, 1.0)
    points = sorted((tried.estimated_bytes, temp_bytes) for tried, temp_bytes in self._tried)
    estimated, compiled = zip(*points, strict=True)
    if estimated[0] < num_bytes < estimated[-1]:
      return float(np.interp(num_bytes, estimated, compiled))
    nearest = 0 if num_bytes <= estimated[0] else -1
    slope = min(1.0, compiled[nearest] / max(estimated[nearest], 1.0))
    return compiled[nearest] + slope * (num_bytes - estimated[nearest])


class _Space:
  """All candidates for one function, least recompute per byte first within each segmentation."""

  def __init__(self, traced: TracedFn, only_scans: bool):
    jaxpr, table = tag_jaxpr(traced.jaxpr)
    differentiable = traced.is_differentiable
    original = forward_graph(jaxpr, differentiable)
    self.forward_flops = sum(original.flops)
    self.baseline_bytes = float(original.residual_bytes().sum())
    self._effects = frozenset(i for i, equation in enumerate(jaxpr.eqns) if equation.effects)
    self.candidates: list[Candidate] = []
    scans = find_scans(jaxpr, table)
    for level in range(max((len(scan.bodies) for scan in scans), default=0)):
      barest = tuple(region for scan in scans for region in scan.barest(level))
      looped = forward_graph(apply_to_scans(jaxpr, PolicyDecisions(barest)), differentiable)
      self._add_ladders(looped, _Scans(scans, level, are_alone=True), is_cut=not only_scans)
      if not only_scans:
        self._add_ladders(looped, _Scans(scans, level, are_alone=False))
    if not only_scans:
      self._add_ladders(original, _Scans())

  def _add_ladders(self, graph: ForwardGraph, scans: "_Scans", is_cut: bool = True) -> None:
    """Candidates for one graph of the top region.

    Args:
      graph: with the barest decisions of `scans` carried out.
      scans: their decisions.
      is_cut: cut the top into segments, or leave it as it is.
    """
    if not graph.num_positions:
      return
    alone = self._effects | scans.alone
    curves = _Curves(graph)
    for bounds in cut(graph, alone) if is_cut else [_uncut(graph, alone)]:
      self.candidates += _Ladder(graph, curves, bounds, scans, alone, is_cut).candidates()


@dataclasses.dataclass(frozen=True)
class _Scans:
  """Scans with their bodies cut at one level of fineness.

  Attributes:
    scans: at the top of the jaxpr.
    level: of fineness.
    are_alone: they stand between segments and climb their own curves; otherwise they stand inside segments, which
      repeat them whole, with their barest decisions.
  """

  scans: Sequence[Scan] = ()
  level: int = 0
  are_alone: bool = False

  @property
  def alone(self) -> frozenset[int]:
    return frozenset(scan.position for scan in self.scans if self.are_alone)

  @property
  def inside_regions(self) -> tuple[Region, ...]:
    """Decisions for the scans that stand inside segments."""
    return () if self.are_alone else tuple(region for scan in self.scans for region in scan.barest(self.level))

  @property
  def inside_flops(self) -> float:
    """What their bodies repeat, on top of what the segments around them do."""
    return 0.0 if self.are_alone else sum(scan.body(self.level).curve[0].flops for scan in self.scans)


def _uncut(graph: ForwardGraph, alone: frozenset[int]) -> tuple[int, ...]:
  return tuple(sorted({0, graph.num_positions} | alone | {position + 1 for position in alone}))


class _Curves:
  """Save curves of segments, computed once for segments that are alike (the layers of a model)."""

  def __init__(self, graph: ForwardGraph):
    self._graph = graph
    self._known: dict[object, list[CurvePoint]] = {}

  def __call__(self, start: int, stop: int) -> list[CurvePoint]:
    key = self._graph.signature(start, stop)
    if key not in self._known:
      self._known[key] = [_shifted(point, -start) for point in save_curve(self._graph, start, stop)]
    return [_shifted(point, start) for point in self._known[key]]


def _shifted(point: CurvePoint, offset: int) -> CurvePoint:
  return dataclasses.replace(point, saved=tuple((position + offset, index) for position, index in point.saved))


class _Ladder:
  """One segmentation's candidates: from nothing saved upwards, the best FLOPs per byte at each rung."""

  def __init__(self, graph: ForwardGraph, curves: _Curves, bounds: tuple[int, ...], scans: _Scans,
               alone: frozenset[int], is_cut: bool):
    self._bounds = bounds
    self._scans = scans
    self._scan_at = {scan.position: scan for scan in scans.scans if scans.are_alone}
    pieces = list(zip(bounds, bounds[1:], strict=False))
    self._is_scan = np.array([start in self._scan_at for start in bounds[:-1]])
    residuals = graph.residual_bytes()
    self._residuals = np.array([residuals[start:stop].sum() for start, stop in pieces], np.float64)
    self._repeated = np.zeros(len(pieces))  # held while a step of a scan inside the segment is repeated
    for scan in scans.scans:
      segment = int(np.searchsorted(bounds, scan.position, side="right")) - 1
      self._repeated[segment] = max(self._repeated[segment], scan.body(scans.level).inside_bytes)
    self._out = bytes_between(graph, bounds) if is_cut else np.zeros(len(pieces))
    self._curves = []
    for i, (start, stop) in enumerate(pieces):
      if start in self._scan_at:
        self._curves.append(self._scan_at[start].body(scans.level).curve)
      elif not is_cut or start in alone or i == len(pieces) - 1:
        self._curves.append((CurvePoint(int(self._residuals[i]), 0.0, False, ()),))
      else:
        self._curves.append(curves(start, stop))

  def candidates(self) -> list[Candidate]:
    """All rungs; the last one may undo everything."""
    return [self._candidate(points, is_bare=i == 0) for i, points in enumerate(climb(self._curves))]

  def _candidate(self, points: list[CurvePoint], is_bare: bool) -> Candidate:
    kept = np.array([point.saved_bytes for point in points], np.float64)
    is_wrapped = np.array([point.is_wrapped for point in points])
    kept[self._is_scan] += self._residuals[self._is_scan]  # stacked by the barest decisions
    inside = np.where(self._is_scan, kept + is_wrapped * self._repeated, self._residuals + self._repeated)
    before = np.concatenate([[0], np.cumsum(kept + self._out)])[:-1]
    return Candidate(lambda: self._decisions(points), float((before + inside).max()),
                     sum(point.flops for point in points) + self._scans.inside_flops, is_bare)

  def _decisions(self, points: list[CurvePoint]) -> PolicyDecisions:
    regions, segments = list(self._scans.inside_regions), []
    for start, stop, point in zip(self._bounds, self._bounds[1:], points, strict=False):
      if scan := self._scan_at.get(start):
        regions += scan.regions(scan.body(self._scans.level), point)
        segments.append(Segment(start, stop))
      else:
        segments.append(Segment(start, stop, point.is_wrapped, point.saved))
    if any(segment.is_wrapped for segment in segments):
      regions.append(Region(None, _merged(segments)))
    return PolicyDecisions(tuple(regions))


def _merged(segments: Sequence[Segment]) -> tuple[Segment, ...]:
  """Neighbours that are not wrapped become one."""
  merged: list[Segment] = []
  for segment in segments:
    if merged and not merged[-1].is_wrapped and not segment.is_wrapped:
      merged[-1] = Segment(merged[-1].start, segment.stop)
    else:
      merged.append(segment)
  return tuple(merged)
