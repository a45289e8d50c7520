"""Ways to carry out what a loop runs turn by turn: cuttings of its body, with what each saves, in curves.

What is kept inside counts once for each turn, in bytes and in FLOPs spared.
"""

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from coopjax.policy_engine.by_hand import Offloading
from coopjax.policy_engine.cuts import bytes_between
from coopjax.policy_engine.decisions import Region, in_order
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.save_curves import CurvePoint, Form, climb, save_curve, tradeoffs
from coopjax.policy_engine.working_set import WorkingSets

MAX_CUTTINGS = 4
MAX_POINTS = 64  # of a curve: steps are taken once for each layer


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
  """One cutting of a loop's body.

  Attributes:
    bounds: of its segments.
    stacked_bytes: passed between the segments, of all steps.
    curve: bytes and FLOPs of all steps; the first point keeps nothing but the segments' inputs, the last may leave
      the loop as the user wrote it.
    offload_curves: the same with values offloaded, in the second all that the loop carries; none where nothing can be.
    mixed_curve: where some pieces stay as they are, between the same ends; made when asked for, and empty where there
      is one piece, or loops inside.
    is_nested: what passes between the segments is repeated, too, step by step: they lie in one more (`Segment.inner`).
    inner: decisions for scans inside the body, carried out whenever the body is wrapped.
    group_size: as of `Region`.
    is_peeled: same.
    loops: those inside that choose apart, each with a cutting of its own body, by position: then so do all pieces.
  """

  bounds: tuple[int, ...]
  stacked_bytes: int
  curve: tuple[CurvePoint, ...]
  offload_curves: tuple[tuple[CurvePoint, ...], ...] = ()
  mixed_curve: Callable[[], tuple[CurvePoint, ...]] = tuple
  is_nested: bool = False
  inner: tuple[Region, ...] = ()
  group_size: int = 1
  is_peeled: bool = False
  loops: Mapping[int, tuple["Loop", "Body"]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Loop(abc.ABC):
  """A loop that is decided on.

  Attributes:
    equation_id: its tag; None for a region that loops and calls around run many times, as if it were a scan's body.
    position: in the region that holds it.
    bodies: cuttings of its body, the first as people decide on it.
    names: that the user gave to values of the body, and what a policy may name besides.
    saving: the first cutting under checkpoints that save the values of these names.
    opened: what is decided on where this one stays as it is, in several ways (`apart`); none where neither scans nor
      layers are inside.
    offloading: the first cutting, saving the values of some names and keeping those of others on the host; None where
      nothing can be there.
  """

  equation_id: int | None
  position: int
  bodies: tuple[Body, ...]
  names: Collection[str]
  saving: Callable[[Iterable[str]], CurvePoint]
  opened: tuple["Loop", ...]
  offloading: Offloading | None = dataclasses.field(default=None, kw_only=True)

  def body(self, level: int) -> Body:
    """The cutting at this level of fineness, or the finest."""
    return self.bodies[min(level, len(self.bodies) - 1)]

  def same_outside(self, level: int) -> int:
    """The coarsest level at which the loop keeps what it does at this one, turn by turn."""
    return level

  @abc.abstractmethod
  def regions(self, body: Body, choice: CurvePoint) -> tuple[Region, ...]:
    """The decisions that carry a choice out; none for a loop left as it is."""

  @property
  @abc.abstractmethod
  def has_scans(self) -> bool:
    """There is more to decide on than what a policy around the body says: scans inside, or blocks."""

  def barest(self, level: int = 0) -> tuple[Region, ...]:
    """The decisions that keep nothing but inputs of the body's segments."""
    return self.regions(self.body(level), self.body(level).curve[0])


def of_pieces(
  turns: WorkingSets,
  bounds: tuple[int, ...],
  length: int,
  form: Form,
  *,
  choose_apart: bool = False,
  num_blocks: int | None = None,
) -> Body:
  """Cut at these bounds, each piece under a checkpoint, or with `num_blocks` the first so many and the rest as it is;
  with `choose_apart`, some may also stay as they are.
  """
  graph = turns.graph
  curves = [save_curve(graph, *piece, form, MAX_POINTS, is_stacked=True) for piece in itertools.pairwise(bounds)]
  if num_blocks is not None:
    curves[num_blocks:] = (curve[-1:] for curve in curves[num_blocks:])
  body = Body(bounds, int(length * bytes_between(graph, bounds).sum()), joint_curve(turns, bounds, curves, length))
  if not choose_apart or len(curves) == 1:
    return body

  def mixed_curve() -> tuple[CurvePoint, ...]:
    pieces, (bare, *_, as_it_is) = list(itertools.pairwise(bounds)), body.curve
    mixed = (joined(turns, pieces, points, length) for points in tradeoffs(curves))
    return ladder((bare, *(point for point in mixed if point.pieces and point.is_wrapped)), as_it_is)

  return dataclasses.replace(body, mixed_curve=functools.cache(mixed_curve))


def nested(graph: ForwardGraph, body: Body, length: int) -> Body:
  """A cutting with a checkpoint around it: each step keeps its carry, and is run twice more, first as far as the last
  piece's inputs, then by pieces.
  """
  between_bytes = body.stacked_bytes // length
  flops = body.curve[0].flops + length * sum(graph.flops[: body.bounds[-2]])
  bare = CurvePoint(0, flops, True, (), inside_bytes=between_bytes + body.curve[0].inside_bytes)
  curve = (bare, body.curve[-1])
  return Body(body.bounds, 0, curve, (curve,), is_nested=True)


def in_groups(
  graph: ForwardGraph, body: Body, length: int, size: int, *, is_peeled: bool, carried_bytes: int, constant_bytes: int
) -> Body:
  """A body in one piece, whose turns lie in groups.

  Args:
    graph: of the body.
    body: how the turns of a group are carried out: they keep what a point says, until the group is done.
    length: turns of the loop.
    size: of a group.
    is_peeled: the last turn of a group is no part of its loop: what it keeps is not stacked, it is differentiated at
      once, and has gradients of its own for what no turn changes.
    carried_bytes: by a turn to the next.
    constant_bytes: of what has a gradient, and no turn changes.
  """
  *wrapped, as_it_is = body.curve
  num_early = size - is_peeled
  early, bare = num_early / size, body.curve[0]
  again = early * length * sum(graph.flops) + (bare.flops / size if is_peeled else 0.0)
  if not (is_peeled or body.inner):
    wrapped.append(dataclasses.replace(as_it_is, is_wrapped=True, pieces=(as_it_is,)))
  curve = [
    dataclasses.replace(
      point,
      saved_bytes=num_early * point.saved_bytes // length,
      flops=again + early * point.flops,
      inside_bytes=num_early * carried_bytes + is_peeled * constant_bytes + max(bare.inside_bytes, point.inside_bytes),
    )
    for point in wrapped
  ]
  return dataclasses.replace(body, curve=tuple(curve), offload_curves=(), group_size=size, is_peeled=is_peeled)


def around_checkpoints(body: Body, inner_flops: float, as_it_is: CurvePoint) -> Body:
  """With what checkpoints inside of the body repeat once more; as it is, the loop has none inside either."""

  def curve(points: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    return tuple(
      dataclasses.replace(point, flops=point.flops + inner_flops) if point.is_wrapped else as_it_is for point in points
    )

  return dataclasses.replace(body, curve=curve(body.curve), offload_curves=tuple(map(curve, body.offload_curves)))


def joint_curve(
  turns: WorkingSets, bounds: Sequence[int], curves: Sequence[Sequence[CurvePoint]], length: int
) -> tuple[CurvePoint, ...]:
  """The choices for all pieces of a body together, of all steps; the last leaves the scan as it is."""
  wrapped = [[point for point in points if point.is_wrapped] or points for points in curves]
  pieces = list(itertools.pairwise(bounds))
  as_it_is = CurvePoint(int(length * turns.graph.stacked_bytes().sum()), 0.0, False, ())
  return ladder((joined(turns, pieces, points, length) for points in climb(wrapped)), as_it_is)


def ladder(rungs: Iterable[CurvePoint], as_it_is: CurvePoint) -> tuple[CurvePoint, ...]:
  """A curve of these, by rising bytes, and of the loop as it is."""
  by_bytes = {rung.saved_bytes: rung for rung in rungs}
  return (*(by_bytes[saved] for saved in sorted(by_bytes) if saved < as_it_is.saved_bytes), as_it_is)


def joined(
  turns: WorkingSets, pieces: Sequence[tuple[int, int]], points: Sequence[CurvePoint], length: int
) -> CurvePoint:
  """The choices for the pieces of one turn, as one for all turns."""
  are_wrapped = all(point.is_wrapped for point in points)
  return CurvePoint(
    length * sum(point.saved_bytes for point in points),
    length * sum(point.flops for point in points),
    any(point.is_wrapped for point in points),
    in_order(value for point in points for value in point.saved),
    in_order(value for point in points for value in point.offloaded),
    length * sum(point.waiting_flops for point in points),
    max(inside_bytes(turns, *piece, point) for piece, point in zip(pieces, points, strict=True)),
    length * sum(point.host_bytes for point in points),
    pieces=() if are_wrapped else tuple(points),
  )


def inside_bytes(turns: WorkingSets, start: int, stop: int, point: CurvePoint) -> int:
  """What is held while this piece of a turn is differentiated, repeated or not."""
  if not point.is_wrapped:
    return turns.plain_bytes(start, stop)
  return turns.peak_bytes(start, stop, (*point.saved, *(value for value in point.offloaded if value[0] >= start)))
