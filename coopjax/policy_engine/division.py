"""Divides one budget between the rematerialized regions of a program.

A region has a ladder of ways to be carried out (`candidates.Candidates`). The backward pass meets the regions in
reverse
order: while region r is differentiated, what it and the regions before it keep is there, and what one run of r holds on
top. The division for peak T is therefore

    min sum_r flops_r   such that   saved_1 + ... + saved_r + inside_r <= T   for all r,

a knapsack that is solved exactly on a grid of bytes: one pass over the regions with the bytes kept so far as the state,
O(regions * grid * rungs) for each of a few dozen T. So the region that is cheapest to repeat per byte repeats first.

Weaknesses: equal calls get equal decisions; regions that take turns count as one after the other; the regions' own
estimates know nothing of the rest of the step, so the search over T goes by compiled bytes (`search.search`).
"""

import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from coopjax.errors import NotDifferentiableError, PolicyNamesError
from coopjax.jaxpr.trace import differentiable
from coopjax.policy_engine.by_hand import user_name
from coopjax.policy_engine.decisions import PolicyDecisions, Region
from coopjax.policy_engine.ladders import Candidate, Traits, summary_of, traits_of
from coopjax.policy_engine.offload import HostLink
from coopjax.policy_engine.rungs import NO_NAMES, Member, Rung, Rungs, rungs_of
from coopjax.policy_engine.shards import Shards

_NUM_PEAKS = 64
_GRID = 512  # steps from nothing to the peak


@dataclasses.dataclass(frozen=True)
class Share:
  """What one region does, and what of the budget that takes.

  Attributes:
    decisions: in each run.
    saved_bytes: estimated, kept for the backward pass.
    flops: repeated, modelled.
  """

  decisions: PolicyDecisions
  saved_bytes: float = dataclasses.field(compare=False)
  flops: float = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True, eq=False)
class JointCandidate:
  """A rung for every region: to the search what `candidates.Candidate` is for one function.

  By hand nobody divides a budget, but people save the same names in all regions.
  """

  rungs: tuple[Rung, ...]
  members: tuple[Member, ...]
  estimated_bytes: float
  flops: float
  is_bare: bool
  is_by_hand: bool = False
  name_sets: frozenset[frozenset[str]] = frozenset()

  @property
  def is_plain_policy(self) -> bool:
    """Of a policy that people pick, whether it needs none of the user's names."""
    return any(names <= NO_NAMES for names in self.name_sets)

  @functools.cached_property
  def decisions(self) -> tuple[Share, ...]:
    """Per region; made when first asked for."""
    return tuple(Share(rung.make_decisions(), rung.saved_bytes, rung.flops - rung.waiting_flops) for rung in self.rungs)

  @property
  def waiting_flops(self) -> float:
    """The part of `flops` that is waiting for the host."""
    return sum(rung.waiting_flops for rung in self.rungs)

  @functools.cached_property
  def scan_bodies(self) -> tuple[tuple[Region, ...], ...]:
    """The decisions for scan bodies, per region; a region that a loop around runs is one."""
    return tuple(
      share.decisions.regions if member.is_looped else share.decisions.scan_bodies
      for share, member in zip(self.decisions, self.members, strict=True)
    )

  @functools.cached_property
  def has_loops(self) -> bool:
    """It decides on scan bodies."""
    return any(self.scan_bodies)

  @functools.cached_property
  def has_straight_code(self) -> bool:
    """It decides on what stands outside of loops."""
    sharing = zip(self.decisions, self.members, strict=True)
    return any(share.decisions.top is not None for share, member in sharing if not member.is_looped)

  @functools.cached_property
  def loops(self) -> tuple[tuple[int | None, ...], ...]:
    """The scans whose bodies it decides on, per region."""
    return tuple(tuple(region.equation_id for region in bodies) for bodies in self.scan_bodies)

  @functools.cached_property
  def is_grouped(self) -> bool:
    """As of `candidates.Candidate`."""
    return any(region.group_size > 1 for bodies in self.scan_bodies for region in bodies)

  @functools.cached_property
  def traits(self) -> Traits:
    """Of the scan bodies of all regions."""
    return frozenset((i, *trait) for i, bodies in enumerate(self.scan_bodies) for trait in traits_of(bodies))

  @property
  def twin(self) -> "JointCandidate | None":
    """As of `candidates.Candidate` where one region is differentiated; else None."""
    twin, alone = self._alone and self._alone.twin, _the_only(self.members)
    if twin is None:
      return None
    rungs = tuple(
      dataclasses.replace(rung, make_decisions=functools.partial(getattr, twin, "decisions"), candidate=twin)
      if i == alone
      else rung
      for i, rung in enumerate(self.rungs)
    )
    return dataclasses.replace(self, rungs=rungs)

  @property
  def kin(self) -> Hashable:
    """As of `candidates.Candidate` where one region is differentiated; divisions are not told apart by it."""
    return self._alone.kin if self._alone else None

  @property
  def is_nested(self) -> bool:
    """Same."""
    return self._alone is not None and self._alone.is_nested

  @property
  def num_segments(self) -> int:
    """Same."""
    return self._alone.num_segments if self._alone else 1

  @property
  def _alone(self) -> Candidate | None:
    alone = _the_only(self.members)
    return None if alone is None else self.rungs[alone].candidate

  @property
  def summary(self) -> str:
    """One line for the trace of rounds."""
    return "; ".join(
      f"{member.traced.name}: {summary_of(share.decisions)}"
      for member, share in zip(self.members, self.decisions, strict=True)
      if member.num_runs
    )


class Division:
  """All joint candidates for some regions.

  Args:
    members: the regions.
    only_scans: decide on scan bodies alone.
    link: to the host, if values may be offloaded.
    shards: how devices share values, by the region's key.
    names_only: one policy over names that the user gave, for all regions.

  Attributes:
    found: the candidates.
    forward_flops: of all runs of the regions, modelled.
    baseline_bytes: what the regions keep as they are.
    undecided: the decisions that leave them so.
    is_spread: a device holds a part of what is counted here, and which is not known.
    is_profiled: False: estimates are JAX's.
  """

  is_profiled = False

  def __init__(
    self,
    members: Sequence[Member],
    only_scans: bool,
    link: HostLink | None = None,
    shards: Mapping[str, Mapping[int | None, Shards]] | None = None,
    *,
    names_only: bool = False,
  ):
    self._members, self._only_scans, self._link, self._shards = tuple(members), only_scans, link, shards or {}
    self._names_only, self._is_deep, self._is_wide = names_only, False, False
    self.is_spread = any(member.traced.placement.is_spread and not self._shards.get(member.key) for member in members)
    self.undecided = (Share(PolicyDecisions(), 0.0, 0.0),) * len(members)
    self._find()

  def _ladder(self, member: Member) -> Rungs:
    keeps_nothing = Rungs([Rung(0.0, 0.0, 0.0, True, PolicyDecisions)], {}, (), 0.0, 0.0)
    if not member.num_runs:
      return keeps_nothing
    try:
      member = dataclasses.replace(member, traced=differentiable(member.traced))
    except NotDifferentiableError:
      return keeps_nothing
    last = [each for each in self._members if each.num_runs][-1]
    ends_forward = member.key == last.key and member.num_kept == 1
    shards = self._shards.get(member.key)
    # One policy offloads in all regions, and straight-line code is planned without.
    may_offload = not self._names_only or all(each.is_looped for each in self._members if each.num_runs)
    link = self._link if may_offload else None
    more = {"is_deep": self._is_deep, "is_wide": self._is_wide}
    return rungs_of(member, self._only_scans, link, shards, ends_forward, **more)

  def _find(self) -> None:
    members, ladders = self._members, [self._ladder(member) for member in self._members]
    self.forward_flops = sum(ladder.forward_flops for ladder in ladders)
    self.baseline_bytes = sum(ladder.baseline_bytes for ladder in ladders)
    if self._names_only:
      _check_names(members, ladders)
      named = [
        {names: rung for names, rung in ladder.by_hand.items() if names.isdisjoint(NO_NAMES)} for ladder in ladders
      ]
      self.found = [
        self._joint(rungs, frozenset()) for rungs in filter(self._have_room, _of_one_policy(ladders, named))
      ]
      return
    by_hand = _by_hand(ladders, [ladder.by_hand or _first(ladder.by_hand_inside) for ladder in ladders])
    for way in range(max(len(ladder.by_hand_inside) for ladder in ladders)):
      of_way = [_first(ladder.by_hand_inside[way:]) or ladder.by_hand for ladder in ladders]
      for rungs, name_sets in _by_hand(ladders, of_way).items():
        by_hand[rungs] = by_hand.get(rungs, frozenset()) | name_sets
    alone = _the_only(members)
    if alone is not None and not members[alone].is_looped:  # as if the function was all there is
      as_they_are = tuple(ladder.found[0] for ladder in ladders)
      others = [(*as_they_are[:alone], rung, *as_they_are[alone + 1 :]) for rung in ladders[alone].found]
    else:
      num_sending = sum(any(rung.host_bytes for rung in ladder.found) for ladder in ladders)
      useful = [_pareto([rung for rung in ladder.found if self._have_room([rung] * num_sending)]) for ladder in ladders]
      divided = (_divide(useful, peak_bytes) for peak_bytes in _peaks(useful))
      others = [*filter(None, divided), *_barest([ladder.found for ladder in ladders])]
    self.found = [
      self._joint(rungs, by_hand.get(rungs))
      for rungs in dict.fromkeys([*by_hand, *others])
      if any(rung.flops for rung in rungs) and self._have_room(rungs)
    ]

  def _have_room(self, rungs: Sequence[Rung]) -> bool:
    """On the host."""
    return self._link is None or sum(rung.host_bytes for rung in rungs) <= self._link.room_bytes

  def deepen(self) -> bool:
    """As of `candidates.Candidates`, for all regions."""
    if self._is_deep or self._names_only:
      return False
    self._is_deep = True
    return self._find_more()

  def widen(self) -> bool:
    """Same."""
    if self._is_wide or self._names_only:
      return False
    self._is_wide = True
    return self._find_more()

  def _find_more(self) -> bool:
    num_found = len(self.found)
    self._find()
    return len(self.found) > num_found

  def _joint(self, rungs: tuple[Rung, ...], name_sets: frozenset[frozenset[str]] | None) -> JointCandidate:
    """Of the sets of names that come to it; None where nobody would pick it by hand."""
    flops, is_bare = sum(rung.flops for rung in rungs), all(rung.is_bare for rung in rungs)
    is_by_hand = name_sets is not None
    return JointCandidate(rungs, self._members, _peak(rungs), flops, is_bare, is_by_hand, name_sets or frozenset())


def _the_only(members: Sequence[Member]) -> int | None:
  """The place of the region that is differentiated, if it is one alone."""
  at = [i for i, member in enumerate(members) if member.num_runs]
  return at[0] if len(at) == 1 else None


def _first(ways: Sequence[Mapping[frozenset[str], Rung]]) -> Mapping[frozenset[str], Rung]:
  return ways[0] if ways else {}


def _check_names(members: Sequence[Member], ladders: Sequence[Rungs]) -> None:
  """Raises PolicyNamesError for a region that takes no policy, or whose policy would be one for loops inside it."""
  for member, ladder in zip(members, ladders, strict=True):
    if not member.num_runs:
      continue
    if member.policy is None:
      raise PolicyNamesError(f"names_only=True: {member.traced.name} is under coopjax.remat, not under jax.checkpoint")
    if len(ladder.found) > 1 and not ladder.by_hand:
      raise PolicyNamesError(
        f"names_only=True: {member.traced.name} has a loop inside, and a policy is planned for what runs in one piece; "
        "put the jax.checkpoint around the body of the loop"
      )


def _by_hand(
  ladders: Sequence[Rungs], by_hand: Sequence[Mapping[frozenset[str], Rung]]
) -> dict[tuple[Rung, ...], frozenset[frozenset[str]]]:
  """One policy for all regions, as a person would write it: each set of names, as far as a region has them.

  Returns:
    The rungs, and the sets that come to them.
  """
  joint = dict[tuple[Rung, ...], frozenset[frozenset[str]]]()
  for chosen in dict.fromkeys(chosen for rungs in by_hand for chosen in rungs):
    rungs = tuple(_of_region(ladder, each, chosen) for ladder, each in zip(ladders, by_hand, strict=True))
    joint[rungs] = joint.get(rungs, frozenset()) | {chosen}
  return joint


def _of_region(ladder: Rungs, rungs: Mapping[frozenset[str], Rung], chosen: frozenset[str]) -> Rung:
  known = _known(rungs, chosen)
  return ladder.found[0] if known is None else rungs[known]


def _of_one_policy(
  ladders: Sequence[Rungs], named: Sequence[Mapping[frozenset[str], Rung]]
) -> Iterator[tuple[Rung, ...]]:
  """What one policy over names does to all regions. Those that share no name have nothing to agree on: sets of names
  are tried for some that do together, and the budget is divided between these.
  """
  known = [{user_name(name) for names in rungs for name in names} for rungs in named]
  parts = list[tuple[set[str], list[int]]]()  # names, and the regions that have them
  for i, names in enumerate(known):
    alike = [part for part in parts if part[0] & names]
    parts = [part for part in parts if part not in alike]
    parts.append((names.union(*(part[0] for part in alike)), sorted([i, *(at for part in alike for at in part[1])])))
  ways: list[dict[Rung, tuple[Rung, ...]]] = []
  for _, at in parts:
    way: dict[Rung, tuple[Rung, ...]] = {}
    for chosen in dict.fromkeys(chosen for i in at for chosen in named[i]):
      asked = {user_name(name) for name in chosen}
      # Where a region knows a name, and not with these others, its rung would take another policy.
      if all({user_name(name) for name in _known(named[i], chosen) or ()} == asked & known[i] for i in at):
        rungs = tuple(_of_region(ladders[i], named[i], chosen) for i in at)
        way.setdefault(_together(rungs), rungs)
    if not way:
      as_they_are = tuple(ladders[i].found[0] for i in at)
      way[_together(as_they_are)] = as_they_are
    ways.append(way)
  if len(ways) == 1:
    divided: Iterable[tuple[Rung, ...]] = ((rung,) for rung in ways[0])
  else:
    useful = [_pareto([*way]) for way in ways]
    on_top = max(rung.inside_bytes for way in useful for rung in way)
    divided = dict.fromkeys(filter(None, (_divide(useful, peak_bytes) for peak_bytes in _peaks(useful, on_top))))
    least = tuple(min(way, key=lambda rung: rung.flops) for way in useful)
    divided.setdefault(least)  # which the grid may round to more than the largest peak
  for chosen_rungs in divided:
    of_region = dict[int, Rung]()
    for rung, way, (_, at) in zip(chosen_rungs, ways, parts, strict=True):
      of_region |= zip(at, way[rung], strict=True)
    yield tuple(of_region[i] for i in range(len(ladders)))


def _together(rungs: Sequence[Rung]) -> Rung:
  """Several regions as one."""
  total = lambda field: sum(getattr(rung, field) for rung in rungs)
  inside_bytes = max(rung.inside_bytes for rung in rungs)
  is_bare = all(rung.is_bare for rung in rungs)
  return Rung(
    total("saved_bytes"),
    inside_bytes,
    total("flops"),
    is_bare,
    PolicyDecisions,
    total("waiting_flops"),
    total("host_bytes"),
  )


def _known(rungs: Mapping[frozenset[str], Rung], chosen: frozenset[str]) -> frozenset[str] | None:
  """The most of a set of names that a region has a rung for."""
  return max((names for names in rungs if names <= chosen), key=len, default=None)


def _pareto(rungs: Sequence[Rung]) -> list[Rung]:
  """Those that no other beats in kept bytes, bytes held while differentiated, and FLOPs."""
  best: list[Rung] = []
  for rung in sorted(rungs, key=lambda rung: (rung.saved_bytes, rung.inside_bytes, rung.flops)):
    if not any(other.inside_bytes <= rung.inside_bytes and other.flops <= rung.flops for other in best):
      best.append(rung)
  return best


def _barest(ladders: Sequence[Sequence[Rung]]) -> list[tuple[Rung, ...]]:
  """The least that the regions can do with, in several ways: estimates are least certain there."""
  bare = [
    sorted((rung for rung in rungs if rung.is_bare), key=lambda rung: rung.saved_bytes + rung.inside_bytes)
    or [min(rungs, key=lambda rung: rung.saved_bytes + rung.inside_bytes)]
    for rungs in ladders
  ]
  return [tuple(rungs[min(i, len(rungs) - 1)] for rungs in bare) for i in range(max(map(len, bare)))]


def _peak(rungs: Sequence[Rung]) -> float:
  """Most bytes there at once in the backward pass over regions in this order."""
  kept = np.cumsum([rung.saved_bytes for rung in rungs])
  return float((kept + [rung.inside_bytes for rung in rungs]).max())


def _peaks(ladders: Sequence[Sequence[Rung]], on_top: float = 0.0) -> np.ndarray:
  """Peaks to divide for, from less than any division reaches to that of the regions as they are, or to what they keep
  at most and so much on top.
  """
  least = max(min(rung.saved_bytes + rung.inside_bytes for rung in rungs) for rungs in ladders)
  most = sum(max(rung.saved_bytes for rung in rungs) for rungs in ladders) + on_top
  return np.geomspace(max(least, 1.0), max(least, most, 1.0), _NUM_PEAKS)


def _divide(ladders: Sequence[Sequence[Rung]], peak_bytes: float) -> tuple[Rung, ...] | None:
  """The rungs with the fewest FLOPs whose peak is within `peak_bytes`; None if there are none."""
  unit = peak_bytes / _GRID
  flops = np.full(_GRID + 1, np.inf)  # by the bytes that the regions so far keep
  flops[0], origins = 0.0, []
  for rungs in ladders:
    reached, origin = np.full(_GRID + 1, np.inf), np.zeros((_GRID + 1, 2), np.int64)
    for i, rung in enumerate(rungs):
      saved, inside = (math.ceil(num_bytes / unit - 1e-9) for num_bytes in (rung.saved_bytes, rung.inside_bytes))
      num_states = _GRID + 1 - saved - inside
      if num_states > 0:
        total, there = flops[:num_states] + rung.flops, slice(saved, saved + num_states)
        is_better = total < reached[there]
        reached[there][is_better] = total[is_better]
        origin[there][is_better] = np.stack([np.full(num_states, i), np.arange(num_states)], 1)[is_better]
    flops = reached
    origins.append(origin)
  state = int(flops.argmin())
  if not np.isfinite(flops[state]):
    return None
  chosen = []
  for rungs, origin in zip(reversed(ladders), reversed(origins), strict=True):
    i, state = origin[state]
    chosen.append(rungs[i])
  return tuple(reversed(chosen))
