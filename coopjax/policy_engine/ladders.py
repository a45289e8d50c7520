"""The candidates of one segmentation, rung by rung: from nothing saved upwards, the best FLOPs per byte next."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence

import numpy as np

from coopjax.policy_engine.blocks import Block
from coopjax.policy_engine.bodies import Loop
from coopjax.policy_engine.by_hand import NESTED, PRODUCTS, HandRung
from coopjax.policy_engine.cuts import bytes_between, kept_between, out_bytes
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment, merged
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.nesting import Chain, Nesting, nested_by_hand, nestings
from coopjax.policy_engine.save_curves import CurvePoint, climb
from coopjax.policy_engine.segment_curves import SegmentCurves

_GROUPS = "groups"  # the trait of turns that lie in groups, before their number
AS_IT_IS = "as it is"  # the trait of a piece of a body under no checkpoint, before its end
CUT_WEIGHT = 3  # saved values that a cut more in a body makes as much of a difference as


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
    host_bytes: kept in the host's memory.
    num_segments: that it cuts the function into.
    kin: what the estimate's error depends on, beyond one level of segments: the segmentation around which checkpoints
      stand, and whether the last segment is under one, too, though the backward pass follows at once (nothing that an
      estimate shows, but XLA fuses otherwise). Between kin the difference is what passes between segments.
    name_sets: of a policy that people pick, the names, or products, that it saves in all scan bodies and all blocks:
      every set of them that comes to this.
    policy: one of these, where it is all that a person would say: checkpoints stand around scan bodies alone, and no
      loop is inside.
    home: as of `PolicyDecisions`.
    is_nested: checkpoints stand around checkpoints.
  """

  make_decisions: Callable[[], PolicyDecisions]
  estimated_bytes: float
  kept_bytes: float
  flops: float
  is_bare: bool
  waiting_flops: float = 0.0
  host_bytes: int = 0
  num_segments: int = 1
  kin: Hashable = None
  name_sets: tuple[frozenset[str], ...] = ()
  policy: tuple[str, ...] | None = None
  home: int = 0
  is_nested: bool = False

  def behind_barriers(self, scans: Container[int | None]) -> "Candidate":
    """The same, with `Region.has_barrier` for the bodies of these scans."""

    def decisions() -> PolicyDecisions:
      regions = self.decisions.regions
      return PolicyDecisions(
        tuple(dataclasses.replace(region, has_barrier=region.equation_id in scans) for region in regions)
      )

    return dataclasses.replace(self, make_decisions=decisions)

  @property
  def twin(self) -> "Candidate | None":
    """The same as most people write it, who leave the body's calls and, in loops, too, `prevent_cse` as they are; of
    that, where a policy says it, as those do who turn `prevent_cse` off in loops; None of the last of these forms.
    """
    if any(region.policy is not None for region in self.scan_bodies):
      has_barriers = any(region.has_barrier for region in self.scan_bodies)
      return self.behind_barriers(()) if has_barriers else None
    as_written = self.behind_barriers(self.loops)
    if self.policy is not None:
      regions = tuple(dataclasses.replace(region, policy=self.policy) for region in as_written.scan_bodies)
      as_written = dataclasses.replace(self, make_decisions=lambda: PolicyDecisions(regions))
    return None if as_written.decisions == self.decisions else as_written

  @property
  def is_by_hand(self) -> bool:
    """A policy that people pick."""
    return bool(self.name_sets)

  @property
  def is_plain_policy(self) -> bool:
    """Such a policy without any name of the user's, as everybody tries it: nothing is saved, or products."""
    return not self.is_nested and any(names <= PRODUCTS for names in self.name_sets)

  @functools.cached_property
  def decisions(self) -> PolicyDecisions:
    """Made when first asked for: of the candidates that are weighed, few are tried."""
    made = self.make_decisions()
    return made if made.top is None else dataclasses.replace(made, home=self.home)

  @functools.cached_property
  def scan_bodies(self) -> tuple[Region, ...]:
    """The decisions for scan bodies."""
    return self.decisions.scan_bodies

  @functools.cached_property
  def has_loops(self) -> bool:
    """It decides on scan bodies."""
    return bool(self.scan_bodies)

  @functools.cached_property
  def has_straight_code(self) -> bool:
    """It decides on what stands outside of scans."""
    return self.decisions.top is not None

  @functools.cached_property
  def loops(self) -> tuple[int | None, ...]:
    """The scans whose bodies it decides on: all others are left as they are."""
    return tuple(region.equation_id for region in self.scan_bodies)

  @functools.cached_property
  def is_grouped(self) -> bool:
    """Turns of a loop lie in groups, which no estimate of others tells of."""
    return any(region.group_size > 1 for region in self.scan_bodies)

  @functools.cached_property
  def traits(self) -> Traits:
    """Of its scan bodies."""
    return traits_of(self.scan_bodies)

  @property
  def summary(self) -> str:
    """One line for the trace of rounds."""
    return summary_of(self.decisions)


def traits_of(scan_bodies: Iterable[Region]) -> Traits:
  """What the memory of one turn depends on: where bodies are cut and what is left as it is, which counts more, and what
  they save.

  Example:
    >>> traits_of([Region(3, (Segment(0, 9, True, saved=((2, 0),)),))])
    frozenset({(3, 2, 0)})
  """
  found = set[tuple]()
  for region in scan_bodies:
    leaves = [leaf for leaf, _ in region.leaves]
    plain = [leaf.stop for leaf, is_repeated in region.leaves if not is_repeated]
    nested = any(segment.inner for segment in region.segments)
    found.update((region.equation_id, leaf.stop, nested, i) for leaf in leaves[:-1] for i in range(CUT_WEIGHT))
    if region.group_size > 1:
      groups = region.group_size, region.is_peeled
      found.update((region.equation_id, _GROUPS, groups, i) for i in range(CUT_WEIGHT))
    found.update((region.equation_id, AS_IT_IS, stop, i) for stop in plain for i in range(CUT_WEIGHT))
    found.update((region.equation_id, *value) for leaf in leaves for value in (*leaf.saved, *leaf.offloaded))
  return frozenset(found)


def summary_of(decisions: PolicyDecisions) -> str:
  """What decisions do to a function, in a few words."""
  top = [leaf for region in decisions.regions if region.equation_id is None for leaf in region.leaves]
  groups = sum(bool(segment.inner) for region in decisions.regions for segment in region.segments)
  turns = [f" in groups of {region.group_size} turns" for region in decisions.regions if region.group_size > 1]
  saved, offloaded = (
    sum(len(getattr(leaf, kind)) for region in decisions.regions for leaf, _ in region.leaves)
    for kind in ("saved", "offloaded")
  )
  return (
    f"{sum(is_repeated for _, is_repeated in top)} segments and {len(decisions.scan_bodies)} scan bodies under "
    f"checkpoints{turns[0] if turns else ''}{f', {groups} groups' if groups else ''}, {saved} values saved"
    f"{f', {offloaded} offloaded' if offloaded else ''}"
  )


@dataclasses.dataclass(frozen=True)
class ScanLevel:
  """Scans with their bodies cut at one level of fineness.

  Attributes:
    scans: at the top of the jaxpr.
    level: of fineness.
    are_alone: they stand between segments and climb their own curves; otherwise they stand inside segments, which
      repeat them whole, with their barest decisions.
    offloads: the curves are those with values offloaded: which (`Body.offload_curves`); None for none.
    are_mixed: pieces of bodies may stay as they are, where there are curves for that.
  """

  scans: Sequence[Loop] = ()
  level: int = 0
  are_alone: bool = False
  offloads: int | None = None
  are_mixed: bool = False

  @property
  def alone(self) -> frozenset[int]:
    return frozenset(scan.position for scan in self.scans if self.are_alone)

  def curve(self, scan: Loop) -> Sequence[CurvePoint]:
    """Of a scan between segments."""
    body = scan.body(self.level)
    if self.offloads is not None:
      return body.offload_curves[min(self.offloads, len(body.offload_curves) - 1)]
    return (self.are_mixed and body.mixed_curve()) or body.curve

  @property
  def inside_regions(self) -> tuple[Region, ...]:
    """Decisions for the scans that stand inside segments."""
    return () if self.are_alone else tuple(region for scan in self.scans for region in scan.barest(self.level))

  @property
  def inside_flops(self) -> float:
    """What their bodies repeat, on top of what the segments around them do."""
    return 0.0 if self.are_alone else sum(scan.body(self.level).curve[0].flops for scan in self.scans)


def uncut(graph: ForwardGraph, alone: frozenset[int]) -> tuple[int, ...]:
  """Bounds of as few segments as stand alone and what lies between."""
  return tuple(sorted({0, graph.num_positions} | alone | {position + 1 for position in alone}))


class Ladder:
  """One segmentation's candidates: from nothing saved upwards, the best FLOPs per byte at each rung."""

  def __init__(
    self, curves: SegmentCurves, bounds: tuple[int, ...], scans: ScanLevel, alone: frozenset[int], is_cut: bool
  ):
    graph = curves.graph
    self._bounds = bounds
    self._scans = scans
    self._scan_at = {scan.position: scan for scan in scans.scans if scans.are_alone}
    pieces = list(itertools.pairwise(bounds))
    self._is_scan = np.array([start in self._scan_at for start in bounds[:-1]])
    in_groups = {at for at, scan in self._scan_at.items() if scan.body(scans.level).group_size > 1}
    self._is_in_groups = np.array([start in in_groups for start in bounds[:-1]])
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
    self._kept_between: dict[tuple[bool, ...], np.ndarray] = {}

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

  def by_hand(self, rung: HandRung) -> Candidate:
    """The candidate that makes a rung's choices, and leaves everything else as it is."""
    at = rung.choices
    as_they_are = [
      curve[-1] if is_scan else CurvePoint(int(num_bytes), 0.0, False, ())
      for curve, is_scan, num_bytes in zip(self._curves, self._is_scan, self._residuals, strict=True)
    ]
    points = [at.get(start, point) for start, point in zip(self._bounds, as_they_are)]
    kin = None if self._is_scan.any() else ("by hand", self._bounds, tuple(at))
    is_wrapped = tuple(point.is_wrapped and not is_scan for point, is_scan in zip(points, self._is_scan, strict=True))
    if is_wrapped not in self._kept_between:
      self._kept_between[is_wrapped] = kept_between(self._graph, self._bounds, is_wrapped)
    out = self._kept_between[is_wrapped]
    is_plain = not (any(is_wrapped) or self._is_in_groups.any() or any(scan.has_scans for scan in self._scans.scans))
    policy = tuple(sorted(min(rung.names, key=len))) if is_plain else None
    found = self._candidate(points, frozenset() in rung.names, out)
    return dataclasses.replace(found, name_sets=rung.names, kin=kin, policy=policy)

  def beyond(self) -> Iterator[Candidate]:
    """Below what segments take: the last one under a checkpoint, too, and checkpoints around checkpoints."""
    closed = [curve[0] for curve in self._curves]
    if self._closed is not None:
      closed[-1] = self._closed
      yield dataclasses.replace(self._candidate(closed, is_bare=True), kin="closed")
    if not self._is_scan.any():
      yield from map(self._nested, nestings(self._chain([point.flops for point in closed])))

  def nested_by_hand(self, groups: Sequence[Sequence[Block]]) -> Candidate:
    """The candidate with a checkpoint around each group of blocks, and one around each block inside."""
    chain = self._chain([curve[0].flops for curve in self._curves])
    nesting = nested_by_hand(chain, [(chain.at[group[0].position], chain.at[group[-1].stop]) for group in groups])
    return dataclasses.replace(self._nested(nesting), name_sets=(NESTED,))

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
    regions = (*self._scans.inside_regions, Region(None, merged(nesting.segments)))
    return Candidate(
      lambda: PolicyDecisions(regions),
      nesting.peak_bytes - self._slack,
      nesting.kept_bytes,
      nesting.flops + self._scans.inside_flops,
      True,
      num_segments=len(self._curves),
      kin=(self._bounds, nesting.is_closed),
      is_nested=True,
    )

  def _candidate(self, points: list[CurvePoint], is_bare: bool, out: np.ndarray | None = None) -> Candidate:
    out = self._out if out is None else out
    kept = np.array([point.saved_bytes for point in points], np.float64)
    is_wrapped = np.array([point.is_wrapped for point in points])
    is_plain = ~self._is_scan & ~is_wrapped
    kept[is_plain] = self._residuals[is_plain]
    kept[self._is_scan] += self._residuals[self._is_scan]  # stacked by the barest decisions
    turn = np.array([point.inside_bytes for point in points])
    inside = np.where(self._is_scan, kept + self._inside + turn, self._inside + self._repeated)
    kept[self._is_in_groups] = self._residuals[self._is_in_groups]  # what turns of a group save is gone with it
    before = np.concatenate([[0], np.cumsum(kept + out)])[:-1]
    return Candidate(
      lambda: self._decisions(points),
      float((before + inside).max() - self._slack),
      float((kept + out).sum()),
      sum(point.flops for point in points) + self._scans.inside_flops,
      is_bare,
      sum(point.waiting_flops for point in points),
      sum(point.host_bytes for point in points),
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
      regions.append(Region(None, merged(segments)))
    return PolicyDecisions(tuple(regions))
