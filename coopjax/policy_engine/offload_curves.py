"""What a segment keeps on the device, and what on the host: the third choice beside saving and repeating.

A value on the host costs waiting, one on the device costs bytes, and what a checkpoint repeats depends on both together
alone. So each set of values that is worth saving, for whatever price of a byte (`save_curves`) or for what is waited
for its values, is the start of a chain: they, and what the segment is given, go to the host one after the other, those
first that make the device wait the least for their bytes. What no other point of any chain beats in bytes and time is
the segment's curve.

Weakness: of a chain each value is chosen for itself; two small ones that would be hidden together are not tried in
the place of one large one.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.offload import HostTrips, Input, Trip
from coopjax.policy_engine.save_curves import MIN_SHARE, CurvePoint, Form, SavingRegion

_MAX_AWAY = 16  # the largest values of a set
_MAX_POINTS = 24


def offload_curves(
  region: HostTrips,
  graph: ForwardGraph,
  start: int,
  stop: int,
  inputs: Sequence[Input] = (),
  *,
  is_stacked: bool = False,
) -> Iterator[list[CurvePoint]]:
  """Choices for one segment, from the fewest bytes on the device to not wrapped at all: bytes rise, FLOPs fall, waiting
  included. Where it is offered inputs, there is a second curve, with all of these on the host: what a loop carries may
  take more of the device than its bytes, and then what sends it is beaten by nothing.

  Args:
    region: the positions' seconds, of the region that the segment is in.
    graph: of the region.
    start: of the segment.
    stop: of the segment.
    inputs: that the segment may keep on the host.
    is_stacked: as for `save_curves.save_curve`.
  """
  piece, whole = region.piece(start, stop), SavingRegion(graph, start, stop)
  rungs = whole.points(Form.EVERY_OP, _MAX_POINTS)  # saving more than all that is kept now, too: it may go to the host
  residual_bytes = graph.stacked_bytes() if is_stacked else graph.residual_bytes()
  bare, everything = rungs[0].flops, int(residual_bytes[start:stop].sum())
  if not bare or not everything:
    yield rungs[:1]
    return
  # Of what is made before, the backward pass must read it, or what it repeats.
  read = {graph.named[value] for value in {*whole.inputs(), *graph.residuals}}
  offered = [(value, size) for value, size in inputs if not 0 <= value[0] < start or value in read]
  sets = dict.fromkeys([*rungs, *_fewer_and_fewer(piece, whole, rungs)])
  trips = {kept: piece.trips(whole, kept, offered) for kept in sets}
  for sent in ([], [value for value, _ in offered]) if offered else ([],):
    chains = (point for kept in sets for point in _chain(piece, kept, trips[kept], sent))
    found = [point for point in chains if point.host_bytes <= piece.link.room_bytes]
    if not found:  # what the loop carries is more than the host may hold
      return
    curve = list[CurvePoint]()
    for point in sorted(found, key=lambda point: (point.saved_bytes, point.flops, len(point.offloaded))):
      is_better = not curve or point.flops <= curve[-1].flops - MIN_SHARE * bare
      if is_better and point.saved_bytes < everything:
        curve.append(point)
    kept = np.unique(np.linspace(0, len(curve) - 1, _MAX_POINTS, dtype=int))
    yield [*(curve[i] for i in kept), CurvePoint(everything, 0.0, False, ())]


def _fewer_and_fewer(region: HostTrips, whole: SavingRegion, rungs: Sequence[CurvePoint]) -> Iterator[CurvePoint]:
  """Of the largest set that is not too large, one value less each time: the one that is best repeated, if all the
  others go to the host.
  """
  kept = next(kept for kept in reversed(rungs) if len(kept.saved) <= _MAX_AWAY)
  cost = lambda kept: region.sent(kept, region.trips(whole, kept, ()), kept.saved).flops
  while kept.saved:
    kept = min((whole.choice({*kept.saved} - {value}) for value in kept.saved), key=cost)
    yield kept


def _chain(
  region: HostTrips, kept: CurvePoint, trips: Mapping[Value, Trip], sent: Sequence[Value]
) -> Iterator[CurvePoint]:
  """With these on the host, and with one value more each time."""
  on_host = [*sent]
  left = sorted(trips.keys() - {*sent}, key=lambda value: (-trips[value].num_bytes, value))[:_MAX_AWAY]
  yield (last := region.sent(kept, trips, on_host))
  while left:
    waits = {value: region.waiting_flops([trips[each] for each in (*on_host, value)]) for value in left}
    # The largest of several.
    best = min(left, key=lambda value: (waits[value] - last.waiting_flops) / trips[value].num_bytes)
    left.remove(best)
    on_host.append(best)
    yield (last := region.sent(kept, trips, on_host))
