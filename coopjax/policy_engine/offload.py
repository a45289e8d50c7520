"""Host offload: when a residual is worth a trip to the host's memory and back.

A residual that is offloaded takes no memory of the device between its forward and its backward pass. What that costs is
waiting, as far as no compute hides the transfers. The model is the one that the compiled programs show:

- Out: a copy starts when the value is made, and has to be over when its segment ends (in a scan: the step). The link is
  one queue. What is left in it at the end of the segment is waited for.
- Back: all copies of a segment start when its backward pass does, the one needed first first. A value is needed when
  its position has been reached by the recompute. The wait is the largest lateness, and no other order has a smaller one
  (Jackson's rule of earliest due dates, 1955). Inputs of the segment are needed at once, so nothing hides them.

Seconds of compute are those of fused ops (`cost.fused_seconds`) at the speed that a device reaches in training
(`planning.host_offload`). What is worth a trip `offload_curves` says.

Weaknesses: copies back are not started a segment ahead; an input that the segment only adds to something may count as
needed, and XLA drops its copies.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from jax.extend import core
from jax.extend.core import primitives

from coopjax.jaxpr import cost
from coopjax.jaxpr.user_policy import is_nameable
from coopjax.policy_engine.cuts import cut
from coopjax.policy_engine.decisions import Value, in_order
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.save_curves import CurvePoint, SavingRegion
from coopjax.policy_engine.shards import WHOLE, Shards
from coopjax.program.cost import Roofline

_MIN_BYTES = 4096  # of an input: smaller ones are not worth a transfer of their own


@dataclasses.dataclass(frozen=True)
class HostLink:
  """The way between a device and its host's memory.

  Attributes:
    bytes_per_s: in one direction; the two directions don't disturb each other.
    start_s: seconds before the first byte moves.
    roofline: of the device, as fast as it is in training.
    room_bytes: of one device, that the host's memory may hold.
    is_for_loops: only what a scan's body makes can be offloaded. XLA:TPU copies a value of straight-line code back at
      once, whatever the copy is tied to, and so it frees nothing.
  """

  bytes_per_s: float
  start_s: float
  roofline: Roofline
  room_bytes: float = math.inf
  is_for_loops: bool = False

  def seconds(self, num_bytes: int) -> float:
    """Of one transfer."""
    return self.start_s + num_bytes / self.bytes_per_s

  def of_turn(self, num_turns: int) -> "HostLink":
    """For one turn of a loop, all of whose turns are kept."""
    return dataclasses.replace(self, room_bytes=self.room_bytes / num_turns)

  def counted_bytes(self, temp_bytes: int, host_bytes: int, plain_bytes: int) -> int:
    """What a search takes for the temporaries of a compiled program: where it has more on the host than may lie there,
    so much more than the program as it is takes.
    """
    over_bytes = host_bytes - self.room_bytes
    return temp_bytes if over_bytes <= 0 else int(plain_bytes + over_bytes)

  def flops(self, seconds: float) -> float:
    """What the device would compute in the time: waiting in the unit of recompute."""
    return seconds * self.roofline.flops_per_s


@dataclasses.dataclass(frozen=True)
class Trip:
  """One value's way to the host and back, in seconds since its segment's forward and backward pass began.

  Attributes:
    num_bytes: one way.
    birth_s: the value is there.
    need_s: the backward pass needs it, if it never waits.
  """

  num_bytes: int
  birth_s: float
  need_s: float


def waiting_s(trips: Sequence[Trip], link: HostLink, end_s: float) -> float:
  """Seconds that one run of a segment waits for its transfers.

  Args:
    trips: of its values.
    link: to the host.
    end_s: the segment's forward pass is over, and with it the time to copy out.

  Example:
    >>> link = HostLink(bytes_per_s=10.0, start_s=0.0, roofline=None)
    >>> waiting_s([Trip(20, birth_s=1.0, need_s=2.0)], link, end_s=3.0)  # out from 1 to 3, back from 0 to 2
    0.0
    >>> waiting_s([Trip(20, birth_s=1.0, need_s=1.5)], link, end_s=2.5)  # half a second late, both ways
    1.0
  """
  is_free_s = 0.0
  for trip in sorted(trips, key=lambda trip: trip.birth_s):
    is_free_s = max(is_free_s, trip.birth_s) + link.seconds(trip.num_bytes)
  arrival_s = lateness_s = 0.0
  for trip in sorted(trips, key=lambda trip: trip.need_s):
    arrival_s += link.seconds(trip.num_bytes)
    lateness_s = max(lateness_s, arrival_s - trip.need_s)
  return max(is_free_s - end_s, 0.0) + lateness_s


Input = tuple[Value, int]  # a value that a segment reads, and its bytes


@dataclasses.dataclass(frozen=True, eq=False)
class HostTrips:
  """What a region needs to weigh offload.

  Attributes:
    link: to the host.
    forward_s: modelled seconds of the forward pass, by position.
    start: the first of these.
  """

  link: HostLink
  forward_s: np.ndarray
  start: int = 0

  @classmethod
  def of(cls, link: HostLink, jaxpr: core.Jaxpr, shards: Shards = WHOLE) -> "HostTrips":
    """For the region with this jaxpr, whose work devices share."""
    seconds = [cost.fused_seconds(equation, link.roofline) / shards.of_work for equation in jaxpr.eqns]
    return cls(link, np.array(seconds))

  def piece(self, start: int, stop: int) -> "HostTrips":
    """Of the positions ``[start, stop)`` of the region alone."""
    return dataclasses.replace(self, forward_s=self.forward_s[start - self.start : stop - self.start], start=start)

  def trips(self, whole: SavingRegion, kept: CurvePoint, inputs: Sequence[Input]) -> dict[Value, Trip]:
    """Of each value that a checkpoint around the region keeps, and of the region's inputs."""
    at = np.arange(self.start, self.start + len(self.forward_s))
    is_repeated = np.isin(at, list(whole.repeated_at(kept.saved)))
    starts_s, repeated_s = map(_starts, (self.forward_s, self.forward_s * is_repeated))

    def made(value: Value) -> Trip:
      position = value[0] - self.start
      return Trip(whole.num_bytes(value), float(starts_s[position + 1]), float(repeated_s[position]))

    return {value: made(value) for value in kept.saved} | {value: Trip(size, 0.0, 0.0) for value, size in inputs}

  def sent(self, kept: CurvePoint, trips: Mapping[Value, Trip], on_host: Collection[Value]) -> CurvePoint:
    """What a checkpoint keeps, with some of it, or of the inputs, on the host."""
    wait = self.waiting_flops([trips[value] for value in on_host])
    host_bytes = sum(trips[value].num_bytes for value in on_host)
    return dataclasses.replace(
      kept,
      saved_bytes=kept.saved_bytes - host_bytes,
      flops=kept.flops + wait,
      saved=tuple(value for value in kept.saved if value not in on_host),
      offloaded=in_order(on_host),
      waiting_flops=wait,
      host_bytes=host_bytes,
    )

  def waiting_flops(self, trips: Sequence[Trip]) -> float:
    """What the device would compute while it waits for these."""
    return self.link.flops(waiting_s(trips, self.link, float(self.forward_s.sum())))

  def point(
    self, whole: SavingRegion, saved: frozenset[Value], offloaded: frozenset[Value], inputs: Sequence[Input]
  ) -> CurvePoint:
    """All of the region under a policy that saves and offloads these values, the region's inputs among them."""
    kept = whole.choice(saved | offloaded)
    trips = self.trips(whole, kept, inputs)
    return self.sent(kept, trips, [value for value in trips if value in offloaded])


def _starts(seconds: np.ndarray) -> np.ndarray:
  """When each of a row of ops starts, and when the last one ends."""
  return np.concatenate([[0.0], np.cumsum(seconds)])


def cuts_for_offload(graph: ForwardGraph, alone: frozenset[int]) -> list[tuple[int, ...]]:
  """Segmentations as `cuts.cut` makes them, with few bytes across each cut.

  On the device a value is kept once, however many segments it passes. To the host goes only what a single later segment
  reads, so here a value counts at every cut that it crosses.
  """
  at_cuts = graph.crossed_bytes()[1:-1]  # a value made at a position crosses the cut behind it
  positions = np.arange(len(at_cuts))
  return cut(dataclasses.replace(graph, crossing=np.stack([positions, positions + 1, at_cuts], axis=1)), alone)


def inputs_between(jaxpr: core.Jaxpr, bounds: Sequence[int], shards: Shards = WHOLE) -> list[tuple[Input, ...]]:
  """Per segment of straight-line code, the values made before it that no other later segment reads."""
  made = {
    var: (position, index) for position, equation in enumerate(jaxpr.eqns) for index, var in enumerate(equation.outvars)
  }
  return _sole_inputs(jaxpr, bounds, made, shards)


def carried_inputs(
  body: core.Jaxpr, bounds: Sequence[int], carried: Sequence[core.Var], shards: Shards = WHOLE
) -> tuple[Input, ...]:
  """The carries of a scan that only the first segment of its body reads; as values of position -1, or as what the body
  reads in their place: a policy of the user's can name that.

  Args:
    body: of the scan.
    bounds: of its segments.
    carried: those of its inputs that are carries.
    shards: how devices share its values.
  """
  made = {var: (-1, index) for index, var in enumerate(body.invars) if var in carried}
  found = _sole_inputs(body, bounds, made, shards)[0]
  return tuple((_named_in(body, value) or value, num_bytes) for value, num_bytes in found)


def _named_in(body: core.Jaxpr, carry: Value) -> Value | None:
  """The user's name for a carry that nothing else reads."""
  var = body.invars[int(carry[1])]
  readers = [position for position, equation in enumerate(body.eqns) if var in equation.invars]
  is_named = len(readers) == 1 and body.eqns[readers[0]].primitive is primitives.name_p
  return (readers[0], 0) if is_named else None


def _sole_inputs(
  jaxpr: core.Jaxpr, bounds: Sequence[int], made: Mapping[core.Var, Value], shards: Shards
) -> list[tuple[Input, ...]]:
  readers: dict[core.Var, set[int]] = {var: set() for var in made}
  for position, equation in enumerate(jaxpr.eqns):
    segment = int(np.searchsorted(bounds, position, side="right")) - 1
    for atom in equation.invars:
      if isinstance(atom, core.Var) and atom in made and made[atom][0] < bounds[segment]:
        readers[atom].add(segment)
  found: list[list[Input]] = [[] for _ in bounds[1:]]
  returned = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var) and made.get(atom, (-1, 0))[0] >= 0}
  for var, segments in readers.items():
    num_bytes = shards.num_bytes(var.aval, made[var][0])
    if len(segments) == 1 and num_bytes >= _MIN_BYTES and is_nameable(var) and var not in returned:
      found[segments.pop()].append((made[var], num_bytes))
  return [tuple(inputs) for inputs in found]
