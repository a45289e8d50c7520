"""Ways to carry all runs of one region of a step out: its rungs, from which `division` takes one for each region.

A region that a loop around runs is to the loop what a body is to a scan: what it keeps is stacked, once per turn. So
its rungs are those of a scan's body (`scan.layer`); others have the candidates of a function. To both come what people
pick by hand: each set of the names that the user gave, the products, and what the user's own policy says.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from jax.extend import core
from jax.extend.core import primitives

from coopjax.jaxpr import cost, user_policy
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.policy_engine.bodies import Body, Loop
from coopjax.policy_engine.by_hand import PRODUCTS, Offloading, carried_names, name_sets, on_host
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.decisions import PolicyDecisions, Value
from coopjax.policy_engine.description import RESHAPES
from coopjax.policy_engine.ladders import Candidate
from coopjax.policy_engine.offload import HostLink
from coopjax.policy_engine.save_curves import CurvePoint
from coopjax.policy_engine.scan import Scan, layer
from coopjax.policy_engine.shards import Shards

_OWN_POLICY = ""
NO_NAMES = PRODUCTS | {_OWN_POLICY}  # that stand for sets of values, too


@dataclasses.dataclass(frozen=True, eq=False)
class Member:
  """A region that takes part.

  Attributes:
    key: names it in the decisions.
    traced: the region.
    num_runs: how often a step runs it for a gradient; 0 if nobody differentiates it, and nothing of it is repeated.
    num_kept: how many of these runs are kept at once: in a loop that holds the backward pass, too, one per turn.
    is_looped: a loop around stacks what it keeps.
    policy: of the user's `jax.checkpoint` that it is, which does not bind; None if it is none.
    num_examples: that a run is over, on average, where `traced` is one's: of a `vmap` around.
  """

  key: str
  traced: TracedFn
  num_runs: int
  num_kept: int
  is_looped: bool = False
  policy: Callable | None = None
  num_examples: float = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Rung:
  """One way to carry all runs of a region out.

  Attributes:
    saved_bytes: kept for the backward pass, of all runs that are kept at once.
    inside_bytes: held on top of that while one run is differentiated.
    flops: repeated, of all runs.
    is_bare: nothing is saved beyond what its segments need.
    make_decisions: what is done in each run.
    waiting_flops: the part of `flops` that is waiting for the host.
    host_bytes: kept in the host's memory, of all runs that are kept at once.
    candidate: that it is of, where the region is a function to the search.
  """

  saved_bytes: float
  inside_bytes: float
  flops: float
  is_bare: bool
  make_decisions: Callable[[], PolicyDecisions] = dataclasses.field(repr=False)
  waiting_flops: float = 0.0
  host_bytes: float = 0.0
  candidate: Candidate | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Rungs:
  """All rungs of a region.

  Attributes:
    found: the user's own among them.
    by_hand: those that save the values of a set of names under a checkpoint around the region, by the set; some are no
      names (`NO_NAMES`).
    by_hand_inside: the same, under checkpoints around the layers inside the region, once for each way to tell layers.
    forward_flops: of all runs, modelled.
    baseline_bytes: what the region keeps as it is.
  """

  found: Sequence[Rung]
  by_hand: Mapping[frozenset[str], Rung]
  by_hand_inside: Sequence[Mapping[frozenset[str], Rung]]
  forward_flops: float
  baseline_bytes: float

  def of_examples(self, num_examples: float) -> "Rungs":
    """The same for so many in place of one."""

    @functools.cache  # what people do by hand is among those that are found
    def of_all(rung: Rung) -> Rung:
      return dataclasses.replace(
        rung,
        saved_bytes=num_examples * rung.saved_bytes,
        inside_bytes=num_examples * rung.inside_bytes,
        flops=num_examples * rung.flops,
        waiting_flops=num_examples * rung.waiting_flops,
        host_bytes=num_examples * rung.host_bytes,
      )

    def by_names(rungs: Mapping[frozenset[str], Rung]) -> dict[frozenset[str], Rung]:
      return {names: of_all(rung) for names, rung in rungs.items()}

    return Rungs(
      [of_all(rung) for rung in self.found],
      by_names(self.by_hand),
      [by_names(rungs) for rungs in self.by_hand_inside],
      num_examples * self.forward_flops,
      num_examples * self.baseline_bytes,
    )


def rungs_of(
  member: Member,
  only_scans: bool,
  link: HostLink | None,
  shards: Mapping[int | None, Shards] | None,
  ends_forward: bool,
  *,
  is_deep: bool = False,
  is_wide: bool = False,
) -> Rungs:
  """All rungs of a differentiable region; the arguments are those of `division.Division`.

  With `is_deep` those that `candidates.Candidates.deepen` finds, too, and with `is_wide` those of `widen`.
  """
  with member.traced.scope.entered():
    found = _rungs_of(member, only_scans, link, shards, ends_forward, is_deep, is_wide)
  return found if member.num_examples == 1 else found.of_examples(member.num_examples)


def _rungs_of(
  member: Member,
  only_scans: bool,
  link: HostLink | None,
  shards: Mapping[int | None, Shards] | None,
  ends_forward: bool,
  is_deep: bool,
  is_wide: bool,
) -> Rungs:
  jaxpr, table = tag_jaxpr(member.traced.inlined)
  by_hand: Mapping[frozenset[str], Rung] = {}
  if member.is_looped or (member.policy is not None and not only_scans):
    as_layer = layer(
      jaxpr,
      table,
      member.traced.is_differentiable,
      member.num_kept,
      shards,
      link=link if member.is_looped else None,
      is_cut=member.is_looped,
    )
    # Of scans in a region the candidates of functions know what people pick.
    if as_layer is not None and (member.is_looped or not as_layer.has_scans):
      by_hand = _by_hand(member, jaxpr, as_layer)
    if member.is_looped:
      of_work = next((of_region.of_work for of_region in (shards or {}).values()), 1)
      return _of_layer(member, jaxpr, cost.jaxpr_flops(jaxpr) / of_work, as_layer, by_hand, is_wide)
  space = Candidates(member.traced, only_scans, link=link, shards=shards, ends_forward=ends_forward)
  if is_deep:
    space.deepen()
  if is_wide:
    space.widen()
  kept_bytes, inside = member.num_kept * space.baseline_bytes, list[dict[frozenset[str], Rung]]()
  rungs = [Rung(kept_bytes, 0.0, 0.0, not kept_bytes, PolicyDecisions)]
  for candidate in space.found:
    if not candidate.flops and not candidate.decisions.regions:
      continue  # the region as it is, which is a rung; estimated with the scans' bodies under checkpoints
    rungs.append(
      Rung(
        member.num_kept * candidate.kept_bytes,
        max(0.0, candidate.estimated_bytes - candidate.kept_bytes),
        member.num_runs * candidate.flops,
        candidate.is_bare,
        functools.partial(getattr, candidate, "decisions"),
        member.num_runs * candidate.waiting_flops,
        member.num_kept * candidate.host_bytes,
        candidate,
      )
    )
    for names in candidate.name_sets:
      way = next((found for found in inside if names not in found), None)
      if way is None:
        inside.append(way := {})
      way[names] = rungs[-1]
  return Rungs(rungs, by_hand, inside, member.num_runs * space.forward_flops, kept_bytes)


def _of_layer(
  member: Member,
  jaxpr: core.Jaxpr,
  flops: float,
  as_layer: Scan | None,
  by_hand: Mapping[frozenset[str], Rung],
  is_wide: bool,
) -> Rungs:
  """All rungs of a region that a loop runs, each time with so many FLOPs."""
  forward_flops = member.num_runs * flops
  if as_layer is None:
    return Rungs([Rung(0.0, 0.0, 0.0, True, PolicyDecisions)], by_hand, (), forward_flops, 0.0)
  kept_bytes = float(as_layer.body(0).curve[-1].saved_bytes)
  rungs = [Rung(kept_bytes, 0.0, 0.0, False, PolicyDecisions)]
  opened = list(_opened(as_layer))
  for loop in (as_layer, *opened, *(_in_blocks(as_layer) if is_wide else ())):
    for body in loop.bodies:
      for curve in (body.curve, *body.offload_curves, body.mixed_curve() if is_wide else ()):
        for i, point in enumerate(curve[:-1]):
          rungs.append(_rung(member, jaxpr, loop, body, point, is_bare=i == 0))
  # What a turn gets from the one before is kept by all alike, but where it goes to the host.
  carried_bytes = max(0.0, -min(rung.saved_bytes for rung in (*rungs, *by_hand.values())))
  with_carries = functools.cache(lambda rung: dataclasses.replace(rung, saved_bytes=rung.saved_bytes + carried_bytes))
  ways = (by_hand, *(_by_hand(member, jaxpr, loop) for loop in opened))
  by_hand, *inside = ({names: with_carries(rung) for names, rung in way.items()} for way in ways)
  found = dict.fromkeys(
    [*map(with_carries, rungs), *by_hand.values(), *(rung for way in inside for rung in way.values())]
  )
  return Rungs([*found], by_hand, inside, forward_flops, kept_bytes + carried_bytes)


def _opened(loop: Loop) -> Iterator[Loop]:
  """All ways to decide on what stands inside."""
  for opened in loop.opened:
    yield opened
    yield from _opened(opened)


def _in_blocks(scan: Scan) -> Iterator[Loop]:
  """What is decided on where bodies are cut between their blocks."""
  for in_blocks in scan.in_blocks():
    yield from _opened(in_blocks) if in_blocks.opened else (in_blocks,)


def _rung(
  member: Member,
  jaxpr: core.Jaxpr,
  loop: Loop,
  body: Body,
  point: CurvePoint,
  *,
  is_bare: bool = False,
  policy: tuple[str, ...] | None = None,
) -> Rung:
  def decisions() -> PolicyDecisions:
    told = point
    if isinstance(loop, Scan) and len(body.bounds) == 2 and not point.offloaded:
      told = _by_name(jaxpr, loop, point)
    top = {"is_looped": member.is_looped, "policy": policy}
    return PolicyDecisions(
      tuple(
        dataclasses.replace(region, **top) if region.equation_id is None else region
        for region in loop.regions(body, told)
      )
    )

  runs = member.num_runs / member.num_kept
  return Rung(
    body.stacked_bytes + point.saved_bytes,
    point.inside_bytes,
    point.flops * runs,
    is_bare,
    decisions,
    point.waiting_flops * runs,
    point.host_bytes,
  )


def _by_hand(member: Member, jaxpr: core.Jaxpr, loop: Loop) -> dict[frozenset[str], Rung]:
  """By the set of names: a rung, the same one for those that come to the same."""
  sets = {chosen: point for chosen, (point,) in sorted(name_sets([loop]).items(), key=lambda each: len(each[0]))}
  if member.policy is not None and isinstance(loop, Scan):
    sets[frozenset({_OWN_POLICY})] = loop.choice_of(_kept_by(member.policy, jaxpr))
  if loop.offloading is not None:
    sets |= _offloading(loop, loop.offloading, [chosen for chosen in sets if chosen.isdisjoint(NO_NAMES)])
  whole = loop.body(0)

  def rung(chosen: frozenset[str], point: CurvePoint) -> Rung:
    # What loops inside do is not said by a policy around them.
    policy = None if loop.has_scans or _OWN_POLICY in chosen else tuple(sorted(chosen))
    is_bare = not point.saves_values and not point.offloaded
    return _rung(member, jaxpr, loop, whole, point, is_bare=is_bare, policy=policy)

  found: dict[CurvePoint, Rung] = {}
  return {chosen: found.get(point) or found.setdefault(point, rung(chosen, point)) for chosen, point in sets.items()}


def _offloading(loop: Loop, offloading: Offloading, sets: Sequence[frozenset[str]]) -> dict[frozenset[str], CurvePoint]:
  """Of each set of names, one more after the other on the host: those first that wait the least for their bytes. What
  the loop carries goes there under a name, too, saved or not.
  """

  def wait_of(name: str) -> float:
    saved_bytes, point = offloading([name], ()).saved_bytes, offloading((), [name])
    return point.waiting_flops / max(1, saved_bytes - point.saved_bytes)

  carried = carried_names(loop)
  order, found = sorted({*carried, *itertools.chain(*sets)}, key=wait_of), dict[frozenset[str], CurvePoint]()
  for chosen in sets:
    away = list[str]()
    for name in (each for each in order if each in chosen | carried):
      away.append(name)
      saved = chosen.difference(away)
      found[saved.union(map(on_host, away))] = offloading(saved, away)
  return found


def _kept_by(policy: Callable, jaxpr: core.Jaxpr) -> frozenset[Value]:
  kept = user_policy.kept_values(jaxpr, policy)
  return frozenset(
    (position, index)
    for position, equation in enumerate(jaxpr.eqns)
    for index, var in enumerate(equation.outvars)
    if var in kept
  )


def _by_name(jaxpr: core.Jaxpr, as_layer: Scan, point: CurvePoint) -> CurvePoint:
  """The same choice with values that the user has named in place of those that they are, where that spares as much."""
  aliases = _aliases(jaxpr)
  for value in point.saved:
    named = frozenset(aliases.get(each, each) if each == value else each for each in point.saved)
    if value in aliases:
      other = as_layer.choice_of(named)
      if other.flops <= point.flops and other.saved_bytes <= point.saved_bytes:
        point = other
  return point


def _aliases(jaxpr: core.Jaxpr) -> dict[Value, Value]:
  """From values to those named by the user that have the same bytes: directly behind, or behind a change of shape."""
  made_by = {
    var: (position, index) for position, equation in enumerate(jaxpr.eqns) for index, var in enumerate(equation.outvars)
  }
  found: dict[Value, Value] = {}
  for position, equation in enumerate(jaxpr.eqns):
    if equation.primitive is not primitives.name_p:
      continue
    at = equation
    while isinstance(read := at.invars[0], core.Var) and (source := made_by.get(read)) is not None:
      found.setdefault(source, (position, 0))
      at = jaxpr.eqns[source[0]]
      if at.primitive.name not in RESHAPES:
        break
  return found
