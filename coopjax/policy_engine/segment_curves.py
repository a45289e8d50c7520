"""Save curves of a graph's segments, and the bytes that they hold: as profiled, where there is a profile."""

import dataclasses

import numpy as np
from jax.extend import core

from coopjax.policy_engine.compiled_profile import CompiledProfile
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.offload import HostLink, HostTrips, Input, inputs_between
from coopjax.policy_engine.offload_curves import offload_curves
from coopjax.policy_engine.save_curves import CurvePoint, save_curve, shifted
from coopjax.policy_engine.shards import Shards


@dataclasses.dataclass(frozen=True, eq=False)
class TopOffload:
  """What the segments of the top region need to offload.

  Attributes:
    jaxpr: of the region.
    trips: of the region.
    effects: positions with side effects; segments with one don't offload, because that takes a second forward run.
    shards: how devices share its values.
  """

  jaxpr: core.Jaxpr
  trips: HostTrips
  effects: frozenset[int]
  shards: Shards

  @classmethod
  def of(cls, jaxpr: core.Jaxpr, link: HostLink, shards: Shards) -> "TopOffload":
    effects = frozenset(i for i, equation in enumerate(jaxpr.eqns) if equation.effects)
    return cls(jaxpr, HostTrips.of(link, jaxpr, shards), effects, shards)

  def curve(self, graph: ForwardGraph, start: int, stop: int, inputs: tuple[Input, ...]) -> list[CurvePoint] | None:
    """Of one segment; None if it must not offload."""
    is_pure = self.effects.isdisjoint(range(start, stop))
    return next(offload_curves(self.trips, graph, start, stop, inputs)) if is_pure else None


class SegmentBytes:
  """Bytes of a graph's segments: as profiled where there is a profile, but for the scans that are `decided` on."""

  def __init__(self, graph: ForwardGraph, profile: CompiledProfile | None, decided: frozenset[int]):
    self.residual_bytes = graph.residual_bytes()
    if profile is not None:
      is_decided = np.isin(np.arange(graph.num_positions), list(decided))
      self.residual_bytes = np.where(is_decided, self.residual_bytes, profile.residual_bytes)
    self._profile = profile
    self._decided = decided
    self._known: dict[tuple[int, int], int] = {}
    self.slack_bytes = profile.slack_bytes if profile else 0

  def inside_bytes(self, start: int, stop: int) -> int:
    """Held while a segment is repeated and differentiated: its residuals, and what else is live then."""
    if self._profile is None:
      return int(self.residual_bytes[start:stop].sum())
    if (start, stop) not in self._known:
      modelled = sum(int(self.residual_bytes[position]) for position in self._decided if start <= position < stop)
      self._known[start, stop] = modelled + self._profile.inside_bytes(start, stop, self._decided)
    return self._known[start, stop]


class SegmentCurves:
  """Save curves of segments, computed once for segments that are alike (the layers of a model), in all graphs that
  share what is `known`.
  """

  def __init__(
    self,
    graph: ForwardGraph,
    measured: SegmentBytes,
    host: TopOffload | None,
    ends_forward: bool,
    known: dict[object, list[CurvePoint]],
  ):
    self.graph = graph
    self.ends_forward = ends_forward
    self.measured = measured
    self._host = host
    self._known = known
    self._curves: dict[tuple[int, int, tuple[Input, ...]], list[CurvePoint]] = {}

  def inputs(self, bounds: tuple[int, ...]) -> list[tuple[Input, ...]]:
    """Per segment, the values made before it that it could keep on the host."""
    return inputs_between(self._host.jaxpr, bounds, self._host.shards) if self._host else [()] * (len(bounds) - 1)

  def __call__(self, start: int, stop: int, inputs: tuple[Input, ...]) -> list[CurvePoint]:
    if (start, stop, inputs) not in self._curves:
      self._curves[start, stop, inputs] = [shifted(point, start) for point in self._from_zero(start, stop, inputs)]
    return self._curves[start, stop, inputs]

  def _from_zero(self, start: int, stop: int, inputs: tuple[Input, ...]) -> list[CurvePoint]:
    """As if the segment began at position 0."""
    offered = tuple(((at - start, index), size) for (at, index), size in inputs)
    key = self._host is not None, self.graph.signature(start, stop), offered
    if key not in self._known:
      curve = (self._host and self._host.curve(self.graph, start, stop, inputs)) or save_curve(self.graph, start, stop)
      self._known[key] = [shifted(point, -start) for point in curve]
    return self._known[key]
