"""What people pick by hand: the same names, or products, saved in every layer, under a checkpoint around each.

A layer is the body of a scan, or a block of straight-line code that the region repeats (`repeats`) or that a function
of the user's makes (`calls`). Every set of the program's names is a rung, as far as there are few names; so are all
products, those without batch dimensions, and nothing at all. Whatever else a search finds, these are its candidates,
too: at the bytes of one of them, its answer repeats no more than that one does.
"""

import collections
import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import primitives

from coopjax.jaxpr import user_policy
from coopjax.policy_engine.calls import repeated_calls
from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.inside import is_inside
from coopjax.policy_engine.repeats import repeated_blocks
from coopjax.policy_engine.save_curves import CurvePoint, SavingRegion, shifted

DOTS, DOTS_WITHOUT_BATCH = "all products", "products without batch dimensions"
PRODUCTS = frozenset((DOTS, DOTS_WITHOUT_BATCH))
NESTED = frozenset(["checkpoints around checkpoints"])  # of what saves nothing inside of what saves nothing, no names
_POLICIES = {
  DOTS: jax.checkpoint_policies.dots_saveable,
  DOTS_WITHOUT_BATCH: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
_ON_HOST = "on the host: "  # before a name
_MAX_NAMES = 11  # that a person may choose among: with more, one, or the best of each number
_FEW_NAMES = 8  # of which each set may be tried; of more, those that no other beats by far:
_BY_FAR = 0.1  # of the bytes, repeating no more
_MOSTLY = 3 / 4  # of a block, that the first and the last one have in common with it; and that is as long


# The names that MaxText's layers give, and the sets of them that its `remat_policy` saves.
_QKV, _OUT = {"query_proj", "key_proj", "value_proj", "qkv_proj"}, {"out_proj"}
_MLP = {"mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo"}
_PUBLISHED = (
  _OUT,
  _QKV,
  _QKV | _OUT,
  _QKV | _OUT | {"context"},
  _QKV | _OUT | {"mlpwo"},
  _QKV | _OUT | _MLP,
  _QKV | _OUT | _MLP | {"context"},
)


def published_sets(names: Iterable[str]) -> set[frozenset[str]]:
  """The sets that most people choose among, of these names."""
  known = frozenset(names)
  return {known & chosen for chosen in _PUBLISHED} - {frozenset()}


def on_host(name: str) -> str:
  """What stands in a set of names for one that is offloaded."""
  return _ON_HOST + name


def user_name(name: str) -> str:
  """The name itself, of one that is `on_host`, too."""
  return name.removeprefix(_ON_HOST)


def policy_of(chosen: Iterable[str]) -> Callable[..., Any]:
  """The policy of a `jax.checkpoint` that saves these names, or kinds of products; some `on_host`."""
  products = [_POLICIES[name] for name in chosen if name in _POLICIES]
  offloaded = [user_name(name) for name in chosen if name.startswith(_ON_HOST)]
  saved = [name for name in chosen if name not in _POLICIES and not name.startswith(_ON_HOST)]
  if offloaded:
    assert not products  # JAX has no policy of both
    return user_policy.over_names(saved, offloaded)
  return functools.reduce(
    jax.checkpoint_policies.save_from_both_policies, products, jax.checkpoint_policies.save_only_these_names(*saved)
  )


Offloading = Callable[[Iterable[str], Iterable[str]], CurvePoint]


class Layer(Protocol):
  """Where a checkpoint stands.

  Attributes:
    position: in the region: of the scan, or where the block starts.
    names: that the user gave to values in it, and what a policy may name besides.
    offloading: the layer under a checkpoint that saves the values of some names and keeps those of others on the host;
      None where nothing can be there.
  """

  @property
  def position(self) -> int: ...
  @property
  def names(self) -> Collection[str]: ...
  @property
  def offloading(self) -> "Offloading | None": ...
  def saving(self, names: Iterable[str], /) -> CurvePoint:
    """The layer under a checkpoint that saves the values of these names."""
    ...


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
  """A layer of straight-line code, ``[position, stop)`` of the region; `Layer` has the other words. Its names come with
  the values.
  """

  position: int
  stop: int
  names: dict[str, frozenset[Value]]
  graph: ForwardGraph
  kind: int  # blocks that are alike have the same, and choose alike
  known: dict[tuple[int, frozenset[Value]], CurvePoint]  # of all blocks of the graph
  offloading: Offloading | None = None

  def saving(self, names: Iterable[str], /) -> CurvePoint:
    """As of `Layer`."""
    saved = values_of(self.names, names)
    here = frozenset((at - self.position, index) for at, index in saved)
    key = self.kind, here
    if key not in self.known:
      self.known[key] = shifted(self._region.choice(saved), -self.position)
    return shifted(self.known[key], self.position)

  @functools.cached_property
  def _region(self) -> SavingRegion:
    return SavingRegion(self.graph, self.position, self.stop)


def ways_to_tell_blocks(
  jaxpr: core.Jaxpr, graph: ForwardGraph, alone: AbstractSet[int], is_layer: bool = False
) -> Iterator[list[Block]]:
  """The blocks that a region repeats, once for each way to tell them; without those that hold a position which must
  stand alone.

  Args:
    jaxpr: the region.
    graph: of the region.
    alone: positions.
    is_layer: a region most of which does not repeat itself is a block.
  """
  ways, residual_bytes = repeated_calls(jaxpr, graph), graph.residual_bytes()
  held = lambda blocks: sum(residual_bytes[start:stop].sum() for start, stop in blocks)
  pieces = _pieces(graph)
  if is_layer and not alone and 2 * held(pieces) < residual_bytes.sum():
    pieces = [(0, graph.num_positions)]
  for blocks in (pieces, _merged(graph)):
    if not any(_are_much_the_same(blocks, known) for known in ways):
      ways.append(blocks)
  for blocks in ways:
    apart = [block for block in blocks if alone.isdisjoint(range(*block))]
    others = [gap for gap in _large_gaps(apart, residual_bytes) if alone.isdisjoint(range(*gap))]
    for told in filter(None, (apart, others and sorted([*apart, *others]))):
      yield blocks_of(jaxpr, graph, told)


def _are_much_the_same(blocks: Sequence[tuple[int, int]], calls: Sequence[tuple[int, int]]) -> bool:
  """Whether what is told in two ways differs by its ends alone, where people's own functions have them."""
  common = lambda one, other: min(one[1], other[1]) - max(one[0], other[0])
  is_like = lambda one, other: common(one, other) >= _MOSTLY * max(one[1] - one[0], other[1] - other[0])
  return len(blocks) == len(calls) and all(map(is_like, blocks, calls))


def _large_gaps(blocks: Sequence[tuple[int, int]], residual_bytes: np.ndarray) -> list[tuple[int, int]]:
  """What lies between blocks and is about as long and holds as much as one of them does: a model's one attention
  between convolutions is a block to a person, too.
  """
  gaps = [(end, start) for (_, end), (start, _) in itertools.pairwise(blocks) if end < start]
  held = lambda span: residual_bytes[slice(*span)].sum()
  length = lambda span: span[1] - span[0]
  is_as_large = lambda gap: (
    held(gap) >= statistics.median(map(held, blocks))
    and length(gap) >= _MOSTLY * statistics.median(map(length, blocks))
  )
  return list(filter(is_as_large, gaps))


def blocks_of(jaxpr: core.Jaxpr, graph: ForwardGraph, spans: Sequence[tuple[int, int]]) -> list[Block]:
  """These positions ``[start, stop)`` of a region as blocks."""
  named = named_values(jaxpr, graph)
  kinds, known = dict[tuple, int](), dict[tuple[int, frozenset[Value]], CurvePoint]()
  return [
    Block(
      start,
      stop,
      {name: frozenset(v for v in values if start <= v[0] < stop) for name, values in named.items()},
      graph,
      kinds.setdefault(graph.signature(start, stop), len(kinds)),
      known,
    )
    for start, stop in spans
  ]


def _pieces(graph: ForwardGraph) -> list[tuple[int, int]]:
  """Where blocks start and stop: those that come again, and what is next to them and much the same (the first, whose
  input is a constant).
  """
  bounds = repeated_blocks(graph, as_by_hand=True)
  pieces = list(itertools.pairwise((0, *bounds, graph.num_positions))) if bounds else []
  lengths = [stop - start for start, stop in pieces]
  made_of = [collections.Counter(graph.primitives[start:stop]) for start, stop in pieces]
  beside = [[j for j in (i - 1, i + 1) if 0 <= j < len(pieces)] for i in range(len(pieces))]
  is_alike = lambda i, j: lengths[i] == lengths[j] and (made_of[i] & made_of[j]).total() >= _MOSTLY * lengths[i]
  again = {i for i, others in enumerate(beside) if any(is_alike(i, j) for j in others)}

  def is_like(i: int, j: int) -> bool:
    return j in again and made_of[j] <= made_of[i] and lengths[i] < 2 * lengths[j]

  blocks = [piece for i, piece in enumerate(pieces) if i in again or any(is_like(i, j) for j in beside[i])]
  made = {graph.primitives[start:stop] for start, stop in blocks}
  return [_without_ends(piece, made, graph) for piece in blocks]


def _merged(graph: ForwardGraph) -> list[tuple[int, int]]:
  """Blocks of what comes again, merged: of a network, a convolution with its norm comes again, and a block has two of
  them and what skips both. They need not lie next to each other (the first of each stage has one more); none where
  nothing is merged.
  """
  bounds, crossed = repeated_blocks(graph, as_by_hand=True), graph.crossed_bytes()
  passed = [0, *crossed[list(bounds)].tolist(), 0]
  # A level of bytes goes on over boundaries that as many cross; what rises to it and falls behind it is no end.
  level = list[int]()
  for i in range(1, len(passed) - 1):
    before = next((each for each in reversed(passed[1:i]) if each != passed[i]), math.inf)
    behind = next((each for each in passed[i + 1 : -1] if each != passed[i]), math.inf)
    if passed[i] < before and passed[i] < behind:
      level.append(bounds[i - 1])
  if len(level) < 2 or len(level) == len(bounds):
    return []
  ends = []
  for end in level:
    while end + 1 < graph.num_positions and crossed[end + 1] == crossed[end]:
      end += 1
    ends.append(end)
  pieces = list(itertools.pairwise(sorted({0, *ends, graph.num_positions})))
  made_of = [collections.Counter(graph.primitives[start:stop]) for start, stop in pieces]

  def is_again(i: int) -> bool:
    others = (made for j, made in enumerate(made_of) if j != i)
    return any((made_of[i] & made).total() >= _MOSTLY * made.total() for made in others)

  blocks = [piece for i, piece in enumerate(pieces) if is_again(i)]
  made = {graph.primitives[start:stop] for start, stop in blocks}
  return [_without_ends(piece, made, graph) for piece in blocks]


def _without_ends(piece: tuple[int, int], made: Iterable[tuple[str, ...]], graph: ForwardGraph) -> tuple[int, int]:
  """The part of the first block that is made as another is, without what a network does before its blocks; of the last,
  without what it does behind them.
  """
  start, stop = piece
  ours = graph.primitives[start:stop]
  if start == 0:
    return stop - _in_common(ours[::-1], [theirs[::-1] for theirs in made]), stop
  return (start, start + _in_common(ours, made)) if stop == graph.num_positions else piece


def _in_common(ours: tuple[str, ...], made: Iterable[tuple[str, ...]]) -> int:
  """How far a block goes as the one does that it follows furthest, or all the way if that is not most of that one."""
  follows = lambda theirs: sum(itertools.takewhile(bool, (a == b for a, b in zip(ours, theirs, strict=False))))
  found = [(common, len(theirs)) for theirs in made if theirs != ours and (common := follows(theirs))]
  common, size = max(found, default=(0, 1))
  return common if common >= _MOSTLY * size else len(ours)


@dataclasses.dataclass(frozen=True, eq=False)
class HandRung:
  """What a person would pick.

  Attributes:
    names: all sets of names that come to this.
    choices: by the layers' positions.
  """

  names: tuple[frozenset[str], ...]
  choices: dict[int, CurvePoint]


def rungs(layers: Sequence[Layer]) -> Iterator[HandRung]:
  """All rungs; those that come to the same once."""
  sets = name_sets(layers)
  return _rungs(layers, sets | _all_on_host(layers, sets))


def _rungs(layers: Sequence[Layer], sets: Mapping[frozenset[str], list[CurvePoint]]) -> Iterator[HandRung]:
  found: dict[tuple, tuple[list[CurvePoint], list[frozenset[str]]]] = {}
  for chosen, points in sets.items():
    found.setdefault(tuple(points), (points, []))[1].append(chosen)
  for points, same in found.values():
    yield HandRung(tuple(same), {layer.position: point for layer, point in zip(layers, points, strict=True)})


def _all_on_host(layers: Sequence[Layer], sets: Iterable[frozenset[str]]) -> dict[frozenset[str], list[CurvePoint]]:
  """The same sets, all of each on the host, and with it what loops carry under a name."""
  ways = [layer.offloading for layer in layers if layer.offloading is not None]
  if not layers or len(ways) < len(layers):
    return {}
  carried = frozenset[str]().union(*map(carried_names, layers))
  away = {chosen | more for chosen in sets if chosen.isdisjoint(PRODUCTS) for more in (frozenset[str](), carried)}
  return {
    frozenset(map(on_host, chosen)): [way((), chosen) for way in ways] for chosen in sorted(away, key=sorted) if chosen
  }


def carried_names(layer: Layer) -> frozenset[str]:
  """What a loop carries under a name, and may keep on the host."""
  if layer.offloading is None:
    return frozenset()
  names = frozenset(layer.names) - PRODUCTS
  return frozenset(name for name in names if layer.offloading((), [name]).saved_bytes < 0)


def merged_blocks(
  jaxpr: core.Jaxpr, graph: ForwardGraph, blocks: Sequence[Block]
) -> Iterator[tuple[list[Block], list[HandRung]]]:
  """The same blocks by twos, threes and so on, where that comes out even, with products saved in them: what a person
  takes for one block may come again inside of it.
  """
  for groups in grouped(blocks):
    merged = blocks_of(jaxpr, graph, [(group[0].position, group[-1].stop) for group in groups])
    points = {frozenset([name]): saving(merged, [name]) for name in sorted(PRODUCTS)}
    yield merged, list(_rungs(merged, points))


def grouped(blocks: Sequence[Block]) -> Iterator[list[tuple[Block, ...]]]:
  """Blocks by twos, threes and so on, where that comes out even and those of a group lie next to each other."""
  for size in range(2, len(blocks) // 2 + 1):
    groups = list(itertools.batched(blocks, size))
    if len(groups[-1]) == size and all(a.stop == b.position for group in groups for a, b in itertools.pairwise(group)):
      yield groups


def name_sets(layers: Sequence[Layer]) -> dict[frozenset[str], list[CurvePoint]]:
  """What a person would save, and what that is in each layer: each set of the names, or of many a few; the products;
  nothing.
  """
  names = sorted({name for layer in layers for name in layer.names} - PRODUCTS)
  # The others spare nothing.
  names = [name for name in names if any(point.saves_values for point in saving(layers, [name]))]
  if len(names) <= _MAX_NAMES:
    sets = [chosen for size in range(1, len(names) + 1) for chosen in itertools.combinations(names, size)]
  else:
    sets = [*((name,) for name in names), *_best_first(names, layers)]
  chosen_sets = dict.fromkeys(map(frozenset, (names, [DOTS], [DOTS_WITHOUT_BATCH], (), *sets)))
  found = {chosen: saving(layers, chosen) for chosen in chosen_sets}
  return found if len(names) <= _FEW_NAMES else _worth_a_try(found, frozenset(names))


def _worth_a_try(
  found: Mapping[frozenset[str], list[CurvePoint]], names: frozenset[str]
) -> dict[frozenset[str], list[CurvePoint]]:
  """Without the sets that another beats by far; one of these names, or all, people pick whatever is better."""
  by_flops, worth, least = list[tuple[float, int, frozenset[str]]](), {names}, math.inf
  for chosen, points in found.items():
    num_bytes = sum(each.saved_bytes for each in points) + max(each.inside_bytes for each in points)
    by_flops.append((sum(each.flops for each in points), num_bytes, chosen))
  for _, num_bytes, chosen in sorted(by_flops, key=lambda each: each[:2]):
    least = min(least, num_bytes)
    if len(chosen) <= 1 or (1 - _BY_FAR) * num_bytes <= least:
      worth.add(chosen)
  return {chosen: points for chosen, points in found.items() if chosen in worth}


def saving(layers: Sequence[Layer], names: Iterable[str]) -> list[CurvePoint]:
  """Each layer under a checkpoint that saves the values of these names."""
  names = frozenset(names)
  return [layer.saving(names) for layer in layers]


def _best_first(names: Sequence[str], layers: Sequence[Layer]) -> list[Sequence[str]]:
  """Sets that grow by the name that spares the most FLOPs per byte, until all are in."""

  def rate(name: str) -> float:
    now, then = saving(layers, chosen), saving(layers, [*chosen, name])
    gained = sum(point.flops for point in now) - sum(point.flops for point in then)
    return gained / max(1, sum(point.saved_bytes for point in then) - sum(point.saved_bytes for point in now))

  sets, chosen = list[Sequence[str]](), list[str]()
  while len(chosen) < len(names):
    chosen = [*chosen, max((name for name in names if name not in chosen), key=rate)]
    sets.append(chosen)
  return sets


def values_of(names: Mapping[str, frozenset[Value]], chosen: Iterable[str]) -> frozenset[Value]:
  """The values of the chosen names."""
  return frozenset[Value]().union(*(names.get(name, ()) for name in chosen))


def named_values(body: core.Jaxpr, graph: ForwardGraph) -> dict[str, frozenset[Value]]:
  """What a person would save of a body: what has names there, and the products that policies know without one."""
  found: dict[str, set[Value]] = {name: set() for name in _POLICIES}
  for position, equation in enumerate(body.eqns):
    if equation.primitive is primitives.name_p:
      found.setdefault(equation.params["name"], set()).add((position, 0))
  for value, equation in graph.makers.items():
    for name, policy in _POLICIES.items():
      if user_policy.is_kept(user_policy.answer_of(equation, policy)):
        found[name].add(value)
  for value in graph.named:
    if value is not None and isinstance(value[1], str) and not is_inside(value):
      found.setdefault(value[1], set()).add(value)
  return {name: frozenset(values) for name, values in found.items() if values}
