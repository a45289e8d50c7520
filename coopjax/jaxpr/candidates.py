"""Candidates for the policy engine: ways to carry a function out, with estimated bytes and FLOPs.

For each segmentation (`segments.cut`), values are saved across all segments and scan bodies in order of FLOPs spared
per byte, which gives a ladder from least memory to least recompute. Scans come in three ways: between the segments,
each with a curve of its own; inside segments, that repeat them whole; and, inside segments, as the user wrote them.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools

import numpy as np

from coopjax import compat
from coopjax.jaxpr.residuals import ForwardGraph, forward_graph
from coopjax.jaxpr.rewrite import PolicyDecisions, Region, apply_to_scans
from coopjax.jaxpr.scan import Scan, find_scans
from coopjax.jaxpr.segments import CurvePoint, Segment, bytes_between, climb, cut, save_curve
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import TracedFn


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


class Candidates:
  """All candidates for one function.

  Attributes:
    found: the candidates; different ladders may share rungs.
    forward_flops: of the function, modelled.
    baseline_bytes: residuals of the function as it is, in JAX's bytes.
  """

  def __init__(self, traced: TracedFn, only_scans: bool):
    jaxpr, table = tag_jaxpr(traced.inlined)
    differentiable = traced.is_differentiable
    original = forward_graph(jaxpr, differentiable)
    self.forward_flops = sum(original.flops)
    self.baseline_bytes = float(original.residual_bytes().sum())
    self._effects = frozenset(i for i, equation in enumerate(jaxpr.eqns) if not compat.may_repeat(equation))
    self.found: list[Candidate] = []
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
      self.found += _Ladder(curves, bounds, scans, alone, is_cut).candidates()


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
    self.graph = graph
    self._known: dict[object, list[CurvePoint]] = {}

  def __call__(self, start: int, stop: int) -> list[CurvePoint]:
    key = self.graph.signature(start, stop)
    if key not in self._known:
      self._known[key] = [_shifted(point, -start) for point in save_curve(self.graph, start, stop)]
    return [_shifted(point, start) for point in self._known[key]]


def _shifted(point: CurvePoint, offset: int) -> CurvePoint:
  return dataclasses.replace(point, saved=tuple((position + offset, index) for position, index in point.saved))


class _Ladder:
  """One segmentation's candidates: from nothing saved upwards, the best FLOPs per byte at each rung."""

  def __init__(self, curves: _Curves, bounds: tuple[int, ...], scans: _Scans, alone: frozenset[int], is_cut: bool):
    graph = curves.graph
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
