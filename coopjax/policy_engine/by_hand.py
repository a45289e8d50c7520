"""What people pick by hand: the same names, or products, saved in every layer, under a checkpoint around each.

A layer is the body of a scan, or a block of straight-line code (`blocks`). Every set of the program's names is a rung,
as far as there are few names, and so is all of it on the host, where that may be; so are all products, those without
batch dimensions, and nothing at all. Whatever else a search finds, these are its candidates, too: at the bytes of one
of them, its answer repeats no more than that one does.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
from jax.extend import core
from jax.extend.core import primitives

from coopjax.jaxpr import user_policy
from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.inside import is_inside
from coopjax.policy_engine.save_curves import CurvePoint

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
  return rungs_of(layers, sets | _all_on_host(layers, sets))


def rungs_of(layers: Sequence[Layer], sets: Mapping[frozenset[str], list[CurvePoint]]) -> Iterator[HandRung]:
  """One for each of the ways that these sets come to."""
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
