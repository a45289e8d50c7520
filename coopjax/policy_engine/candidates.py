"""Candidates for the policy engine: ways to carry a function out, with estimated bytes and FLOPs.

For each segmentation (`cuts.cut`), values are saved across all segments and scan bodies in order of FLOPs spared per
byte, which gives a ladder from least memory to least recompute. With a profile (`CompiledProfile`) each segmentation
also gets what Coop's windows would keep, segment by segment, at a range of limits, and all bytes that decide are XLA's:
what residuals take after fusion, and what else is live beside them. Scans come in three ways: between the segments,
each with a curve of its own; inside segments, that repeat them whole; and, inside segments, as the user wrote them.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np

from coopjax import compat
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.policy_engine.compiled_profile import CompiledProfile
from coopjax.policy_engine.cuts import bytes_between, cut, out_bytes
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.nesting import Chain, Nesting, nestings
from coopjax.policy_engine.offload import HostLink, cuts_for_offload
from coopjax.policy_engine.residuals import ForwardGraph, forward_graph
from coopjax.policy_engine.rewrite import apply_to_scans
from coopjax.policy_engine.save_curves import CurvePoint, climb
from coopjax.policy_engine.scan import DOTS, DOTS_WITHOUT_BATCH, Scan, find_scans
from coopjax.policy_engine.segment_curves import SegmentBytes, SegmentCurves, TopOffload

_LEAST_EXPLAINED = 0.75  # of the temporaries: below that, a profile says little of what checkpoints will do
_CUT_WEIGHT = 3  # saved values that a cut more in a body makes as much of a difference as
_MAX_NAMES = 9  # that a person may choose among: with more, all of them or one
_NUM_KEPT = 19  # limits for which residuals are evicted from the profile


Traits = frozenset[tuple]


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
  """One way to carry the function out.

  Attributes:
    make_decisions: what is done.
    estimated_bytes: JAX's bytes at the peak of the backward pass.
    kept_bytes: of these, what is there when the forward pass ends.
    flops: repeated, and what could be computed while it waits for the host.
    is_bare: nothing is saved beyond what its segments need: the least memory for this segmentation.
    waiting_flops: the part of `flops` that is waiting.
    num_segments: that it cuts the function into.
    kin: what the estimate's error depends on, beyond one level of segments: the segmentation around which checkpoints
      stand, and whether the last segment is under one, too, though the backward pass follows at once (nothing that an
      estimate shows, but XLA fuses otherwise). Between kin the difference is what passes between segments.
    is_by_hand: a policy that people pick: names or products saved in all scan bodies.
  """

  make_decisions: Callable[[], PolicyDecisions]
  estimated_bytes: float
  kept_bytes: float
  flops: float
  is_bare: bool
  waiting_flops: float = 0.0
  num_segments: int = 1
  kin: Hashable = None
  is_by_hand: bool = False

  @functools.cached_property
  def decisions(self) -> PolicyDecisions:
    """Made when first asked for: of the candidates that are weighed, few are tried."""
    return self.make_decisions()

  @property
  def scan_bodies(self) -> tuple[Region, ...]:
    """The decisions for scan bodies."""
    return self.decisions.scan_bodies

  @functools.cached_property
  def traits(self) -> Traits:
    """Of its scan bodies."""
    return traits_of(self.scan_bodies)

  @property
  def summary(self) -> str:
    """One line for the trace of rounds."""
    return summary_of(self.decisions)


def traits_of(scan_bodies: Iterable[Region]) -> Traits:
  """What the memory of one turn depends on: where bodies are cut, which counts more, and what they save.

  Example:
    >>> traits_of([Region(3, (Segment(0, 9, True, saved=((2, 0),)),))])
    frozenset({(3, 2, 0)})
  """
  found = set[tuple]()
  for region in scan_bodies:
    leaves = [leaf for leaf, _ in region.leaves]
    nested = any(segment.inner for segment in region.segments)
    found.update((region.equation_id, leaf.stop, nested, i) for leaf in leaves[:-1] for i in range(_CUT_WEIGHT))
    found.update((region.equation_id, *value) for leaf in leaves for value in (*leaf.saved, *leaf.offloaded))
  return frozenset(found)


def summary_of(decisions: PolicyDecisions) -> str:
  """What decisions do to a function, in a few words."""
  top = [leaf for region in decisions.regions if region.equation_id is None for leaf in region.leaves]
  groups = sum(bool(segment.inner) for region in decisions.regions for segment in region.segments)
  saved, offloaded = (
    sum(len(getattr(leaf, kind)) for region in decisions.regions for leaf, _ in region.leaves)
    for kind in ("saved", "offloaded")
  )
  return (
    f"{sum(is_repeated for _, is_repeated in top)} segments and {len(decisions.scan_bodies)} scan bodies under "
    f"checkpoints{f', {groups} groups' if groups else ''}, {saved} values saved"
    f"{f', {offloaded} offloaded' if offloaded else ''}"
  )


class Candidates:
  """All candidates for one function.

  Args:
    traced: the function.
    only_scans: decide on scan bodies alone.
    profile: of the function as it is; without one, or where it explains too little, bytes are JAX's.
    link: to the host, if values may be offloaded.
    planner: "coop" for what Coop's windows keep alone, "segments" for the ladders alone; all others both.
    ends_forward: the backward pass follows at once, so that the last segment is never worth repeating.

  Attributes:
    found: the candidates; different ladders may share rungs.
    forward_flops: of the function, modelled.
    baseline_bytes: of the function as it is, as the candidates' are estimated.
    undecided: the decisions that leave it so.
  """

  undecided = PolicyDecisions()

  def __init__(
    self,
    traced: TracedFn,
    only_scans: bool,
    profile: CompiledProfile | None = None,
    link: HostLink | None = None,
    *,
    planner: str = "auto",
    ends_forward: bool = True,
  ):
    jaxpr, table = tag_jaxpr(traced.inlined)
    differentiable = traced.is_differentiable
    if profile is not None and profile.explained < _LEAST_EXPLAINED:
      profile = None
    original = forward_graph(jaxpr, differentiable)
    self._profile = profile
    self._ends_forward = ends_forward
    self._planner = planner
    self._kept = [] if profile is None or planner == "segments" else list(_kept_by_windows(profile))
    self.forward_flops = sum(original.flops)
    everything = SegmentBytes(original, profile, frozenset())
    self.baseline_bytes = float(everything.inside_bytes(0, original.num_positions) - everything.slack_bytes)
    self._effects = frozenset(i for i, equation in enumerate(jaxpr.eqns) if not compat.may_repeat(equation))
    self.found: list[Candidate] = []
    scans = find_scans(jaxpr, table, link=link)
    # A checkpoint's own policy would save in the forward run that offload replaces (`host_copies`).
    host = None
    if link is not None and not link.is_for_loops and traced.policy is None:
      host = TopOffload.of(jaxpr, link)
    graphs: dict[PolicyDecisions, ForwardGraph] = {}  # bodies that are cut alike have the same
    for level in range(max((len(scan.bodies) for scan in scans), default=0)):
      barest = PolicyDecisions(tuple(region for scan in scans for region in scan.barest(level)))
      if barest not in graphs:
        graphs[barest] = forward_graph(apply_to_scans(jaxpr, barest), differentiable)
      looped = graphs[barest]
      self._add_ladders(looped, _Scans(scans, level, are_alone=True), is_cut=not only_scans)
      if link is not None:
        self._add_ladders(looped, _Scans(scans, level, True, may_offload=True), is_cut=not only_scans, host=host)
      if not only_scans:
        self._add_ladders(looped, _Scans(scans, level, are_alone=False))
      if level == 0:
        self._add_rungs(looped, scans)
    if not only_scans:
      self._add_ladders(original, _Scans())
    if host is not None and not only_scans and not scans:
      self._add_ladders(original, _Scans(may_offload=True), host=host)

  def _add_rungs(self, graph: ForwardGraph, scans: Sequence[Scan]) -> None:
    """What a person would pick: the same names saved in all scan bodies, each set of them, and nothing else done."""
    together = _Scans(scans, 0, are_alone=True)
    alone = self._effects | together.alone
    curves = SegmentCurves(graph, SegmentBytes(graph, self._profile, together.alone), None, self._ends_forward)
    ladder = _Ladder(curves, _uncut(graph, alone), together, alone, is_cut=False)
    names = sorted({name for scan in scans for name in scan.names} - {DOTS, DOTS_WITHOUT_BATCH})
    most = len(names) if len(names) <= _MAX_NAMES else 1
    sets = [names, [DOTS], [DOTS_WITHOUT_BATCH]]
    sets += [chosen for size in range(1, most + 1) for chosen in itertools.combinations(names, size)]
    found: dict[tuple, Candidate] = {}
    for chosen in sets:
      saved = [frozenset().union(*(scan.names.get(name, frozenset()) for name in chosen)) for scan in scans]
      points = [scan.choice_of(values) for scan, values in zip(scans, saved, strict=True)]
      found.setdefault(tuple(point.saved for point in points), ladder.saving(points))
    self.found += found.values()

  def _add_ladders(
    self, graph: ForwardGraph, scans: "_Scans", is_cut: bool = True, host: TopOffload | None = None
  ) -> None:
    """Candidates for one graph of the top region.

    Args:
      graph: with the barest decisions of `scans` carried out.
      scans: their decisions.
      is_cut: cut the top into segments, or leave it as it is.
      host: what the segments need to offload, if they may.
    """
    if not graph.num_positions:
      return
    alone = self._effects | scans.alone
    decided = frozenset(scan.position for scan in scans.scans)
    curves = SegmentCurves(graph, SegmentBytes(graph, self._profile, decided), host, self._ends_forward)
    cuts = cuts_for_offload if host else cut
    for bounds in cuts(graph, alone) if is_cut else [_uncut(graph, alone)]:
      ladder = _Ladder(curves, bounds, scans, alone, is_cut)
      self.found += (one for one in ladder.candidates() if one.is_bare or self._planner != "coop")
      if not scans.may_offload:
        self.found += map(ladder.keeping, self._kept)
        self.found += ladder.beyond() if is_cut else ()


def _kept_by_windows(profile: CompiledProfile) -> Iterator[np.ndarray]:
  """Residual bytes by position that Coop's windows keep, at one limit after another as long as they hold it."""
  for share in np.linspace(0.95, 0.05, _NUM_KEPT):
    kept_bytes = profile.kept_bytes(share * profile.temp_bytes)
    if kept_bytes is None:
      return
    yield kept_bytes


@dataclasses.dataclass(frozen=True)
class _Scans:
  """Scans with their bodies cut at one level of fineness.

  Attributes:
    scans: at the top of the jaxpr.
    level: of fineness.
    are_alone: they stand between segments and climb their own curves; otherwise they stand inside segments, which
      repeat them whole, with their barest decisions.
    may_offload: the curves are those with values offloaded.
  """

  scans: Sequence[Scan] = ()
  level: int = 0
  are_alone: bool = False
  may_offload: bool = False

  @property
  def alone(self) -> frozenset[int]:
    return frozenset(scan.position for scan in self.scans if self.are_alone)

  def curve(self, scan: Scan) -> Sequence[CurvePoint]:
    """Of a scan between segments."""
    body = scan.body(self.level)
    return body.offload_curve if self.may_offload else body.curve

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


class _Ladder:
  """One segmentation's candidates: from nothing saved upwards, the best FLOPs per byte at each rung."""

  def __init__(
    self, curves: SegmentCurves, bounds: tuple[int, ...], scans: _Scans, alone: frozenset[int], is_cut: bool
  ):
    graph = curves.graph
    self._bounds = bounds
    self._scans = scans
    self._scan_at = {scan.position: scan for scan in scans.scans if scans.are_alone}
    pieces = list(itertools.pairwise(bounds))
    self._is_scan = np.array([start in self._scan_at for start in bounds[:-1]])
    residuals = curves.measured.residual_bytes
    self._residuals = np.array([residuals[start:stop].sum() for start, stop in pieces], np.float64)
    self._repeated = np.zeros(len(pieces))  # held while a step of a scan inside the segment is repeated
    for scan in scans.scans if not scans.are_alone else ():
      segment = int(np.searchsorted(bounds, scan.position, side="right")) - 1
      self._repeated[segment] = max(self._repeated[segment], scan.body(scans.level).curve[0].inside_bytes)
    self._inside = np.array([curves.measured.inside_bytes(start, stop) for start, stop in pieces], np.float64)
    self._inside[self._is_scan] -= self._residuals[self._is_scan]
    self._out = bytes_between(graph, bounds) if is_cut else np.zeros(len(pieces))
    self._slack = curves.measured.slack_bytes
    self._curves = []
    inputs = curves.inputs(bounds)
    for i, (start, stop) in enumerate(pieces):
      if start in self._scan_at:
        self._curves.append(scans.curve(self._scan_at[start]))
      elif not is_cut or start in alone or (curves.ends_forward and i == len(pieces) - 1):
        self._curves.append((CurvePoint(int(self._residuals[i]), 0.0, False, ()),))
      else:
        self._curves.append(curves(start, stop, inputs[i]))
    is_open = is_cut and curves.ends_forward and pieces[-1][0] not in alone
    self._closed = curves(*pieces[-1], inputs[-1])[0] if is_open else None
    self._graph = graph

  def candidates(self) -> list[Candidate]:
    """All rungs; the last one may undo everything."""
    return [self._candidate(points, is_bare=i == 0) for i, points in enumerate(climb(self._curves))]

  def keeping(self, kept_bytes: np.ndarray) -> Candidate:
    """The candidate that keeps so many bytes of residuals, by position: a segment that loses none is not wrapped."""
    points = []
    for curve, start, stop in zip(self._curves, self._bounds, self._bounds[1:], strict=False):
      room = kept_bytes[start:stop].sum()
      points.append(
        max(
          (point for point in curve if point.saved_bytes <= room), default=curve[0], key=lambda point: point.saved_bytes
        )
      )
    return self._candidate(points, is_bare=False)

  def saving(self, choices: Sequence[CurvePoint]) -> Candidate:
    """The candidate that makes these choices for its scans, and leaves everything else as it is."""
    at = dict(zip(self._scan_at, choices, strict=True))
    points = [at.get(start, curve[-1]) for start, curve in zip(self._bounds, self._curves)]
    return dataclasses.replace(self._candidate(points, False), is_by_hand=True)

  def beyond(self) -> Iterator[Candidate]:
    """Below what segments take: the last one under a checkpoint, too, and checkpoints around checkpoints."""
    closed = [curve[0] for curve in self._curves]
    if self._closed is not None:
      closed[-1] = self._closed
      yield dataclasses.replace(self._candidate(closed, is_bare=True), kin="closed")
    if not self._is_scan.any():
      yield from map(self._nested, nestings(self._chain([point.flops for point in closed])))

  def _chain(self, repeated_flops: list[float]) -> Chain:
    bounds, flops = self._bounds, np.concatenate([[0.0], np.cumsum(self._graph.flops)])
    plain_bytes = np.where([curve[0].is_wrapped for curve in self._curves], -1, self._residuals)
    return Chain(
      bounds,
      out_bytes(self._graph, np.array(bounds)),
      self._inside + self._repeated,
      np.diff(flops[list(bounds)]),
      np.array(repeated_flops),
      plain_bytes,
      self._closed is not None,
    )

  def _nested(self, nesting: Nesting) -> Candidate:
    regions = (*self._scans.inside_regions, Region(None, _merged(nesting.segments)))
    return Candidate(
      lambda: PolicyDecisions(regions),
      nesting.peak_bytes - self._slack,
      nesting.kept_bytes,
      nesting.flops + self._scans.inside_flops,
      True,
      num_segments=len(self._curves),
      kin=(self._bounds, nesting.is_closed),
    )

  def _candidate(self, points: list[CurvePoint], is_bare: bool) -> Candidate:
    kept = np.array([point.saved_bytes for point in points], np.float64)
    is_wrapped = np.array([point.is_wrapped for point in points])
    is_plain = ~self._is_scan & ~is_wrapped
    kept[is_plain] = self._residuals[is_plain]
    kept[self._is_scan] += self._residuals[self._is_scan]  # stacked by the barest decisions
    turn = np.array([point.inside_bytes for point in points])
    inside = np.where(self._is_scan, kept + self._inside + turn, self._inside + self._repeated)
    before = np.concatenate([[0], np.cumsum(kept + self._out)])[:-1]
    return Candidate(
      lambda: self._decisions(points),
      float((before + inside).max() - self._slack),
      float((kept + self._out).sum()),
      sum(point.flops for point in points) + self._scans.inside_flops,
      is_bare,
      sum(point.waiting_flops for point in points),
      len(points),
    )

  def _decisions(self, points: list[CurvePoint]) -> PolicyDecisions:
    regions, segments = list(self._scans.inside_regions), []
    for start, stop, point in zip(self._bounds, self._bounds[1:], points, strict=False):
      if scan := self._scan_at.get(start):
        regions += scan.regions(scan.body(self._scans.level), point)
        segments.append(Segment(start, stop))
      else:
        segments.append(Segment(start, stop, point.is_wrapped, point.saved, point.offloaded))
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
