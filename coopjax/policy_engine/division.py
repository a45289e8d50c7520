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
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from coopjax.errors import NotDifferentiableError
from coopjax.jaxpr.trace import TracedFn, differentiable
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.decisions import PolicyDecisions, Region
from coopjax.policy_engine.ladders import Traits, summary_of, traits_of
from coopjax.policy_engine.offload import HostLink
from coopjax.policy_engine.shards import Shards

_NUM_PEAKS = 64
_GRID = 512  # steps from nothing to the peak


@dataclasses.dataclass(frozen=True, eq=False)
class Member:
  """A region that takes part.

  Attributes:
    key: names it in the decisions.
    traced: the region.
    num_runs: how often a step runs it.
    num_kept: how many of these runs are kept at once: in a loop that holds the backward pass, too, one per turn.
  """

  key: str
  traced: TracedFn
  num_runs: int
  num_kept: int


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
class Rung:
  """One way to carry all runs of a region out.

  Attributes:
    saved_bytes: kept for the backward pass, of all runs that are kept at once.
    inside_bytes: held on top of that while one run is differentiated.
    flops: repeated, of all runs.
    is_bare: nothing is saved beyond what its segments need.
    make_decisions: what is done in each run.
    waiting_flops: the part of `flops` that is waiting for the host.
    rungs: as of `ladders.Candidate`.
  """

  saved_bytes: float
  inside_bytes: float
  flops: float
  is_bare: bool
  make_decisions: Callable[[], PolicyDecisions] = dataclasses.field(repr=False)
  waiting_flops: float = 0.0
  rungs: tuple[frozenset[str], ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class JointCandidate:
  """A rung for every region: to the search what `candidates.Candidate` is for one function.

  By hand nobody divides a budget, but people save the same names in all regions.
  """

  rungs: tuple[Rung, ...]
  names: tuple[str, ...]
  estimated_bytes: float
  flops: float
  is_bare: bool
  is_by_hand: bool = False

  @functools.cached_property
  def decisions(self) -> tuple[Share, ...]:
    """Per region; made when first asked for."""
    return tuple(Share(rung.make_decisions(), rung.saved_bytes, rung.flops - rung.waiting_flops) for rung in self.rungs)

  @property
  def waiting_flops(self) -> float:
    """The part of `flops` that is waiting for the host."""
    return sum(rung.waiting_flops for rung in self.rungs)

  @property
  def scan_bodies(self) -> tuple[tuple[Region, ...], ...]:
    """The decisions for scan bodies, per region."""
    return tuple(share.decisions.scan_bodies for share in self.decisions)

  @property
  def has_loops(self) -> bool:
    """It decides on scan bodies."""
    return any(self.scan_bodies)

  @functools.cached_property
  def loops(self) -> tuple[tuple[int | None, ...], ...]:
    """The scans whose bodies it decides on, per region."""
    return tuple(tuple(region.equation_id for region in bodies) for bodies in self.scan_bodies)

  @functools.cached_property
  def traits(self) -> Traits:
    """Of the scan bodies of all regions."""
    return frozenset((i, *trait) for i, bodies in enumerate(self.scan_bodies) for trait in traits_of(bodies))

  @property
  def kin(self) -> None:
    """None: divisions are not told apart by what their estimates' errors depend on."""

  @property
  def num_segments(self) -> int:
    """One: divisions are not told apart by how fine they are."""
    return 1

  @property
  def summary(self) -> str:
    """One line for the trace of rounds."""
    return "; ".join(f"{name}: {summary_of(share.decisions)}" for name, share in zip(self.names, self.decisions))


class Division:
  """All joint candidates for some regions.

  Args:
    members: the regions.
    only_scans: decide on scan bodies alone.
    link: to the host, if values may be offloaded.
    shards: how devices share values, by the region's key.

  Attributes:
    found: the candidates.
    forward_flops: of all runs of the regions, modelled.
    baseline_bytes: what the regions keep as they are.
    undecided: the decisions that leave them so.
    is_spread: a device holds a part of what is counted here, and which is not known.
  """

  undecided: tuple[Share, ...] = ()

  def __init__(
    self,
    members: Sequence[Member],
    only_scans: bool,
    link: HostLink | None = None,
    shards: Mapping[str, Mapping[int | None, Shards]] | None = None,
  ):
    shards = shards or {}
    self.is_spread = any(member.traced.placement.is_spread and not shards.get(member.key) for member in members)
    self.forward_flops, self.baseline_bytes, ladders = 0.0, 0.0, []
    for i, member in enumerate(members):
      try:
        member = dataclasses.replace(member, traced=differentiable(member.traced))
      except NotDifferentiableError:
        ladders.append([Rung(0.0, 0.0, 0.0, True, PolicyDecisions)])  # it keeps nothing
        continue
      ends_forward = i == len(members) - 1 and member.num_kept == 1
      shared = shards.get(member.key)
      space = Candidates(member.traced, only_scans, link=link, shards=shared, ends_forward=ends_forward)
      self.forward_flops += member.num_runs * space.forward_flops
      self.baseline_bytes += member.num_kept * space.baseline_bytes
      ladders.append(_rungs(member, space))
    names = tuple(member.traced.name for member in members)
    useful = [_pareto(rungs) for rungs in ladders]
    divided = [_divide(useful, peak_bytes) for peak_bytes in _peaks(useful)]
    by_hand = dict.fromkeys(_by_hand(ladders))
    self.found = [
      dataclasses.replace(_joint(rungs, names), is_by_hand=rungs in by_hand)
      for rungs in dict.fromkeys([*by_hand, *divided, *_barest(ladders)])
      if rungs and any(rung.flops for rung in rungs)
    ]


def _rungs(member: Member, space: Candidates) -> list[Rung]:
  """All ways to carry a region out, the user's own among them."""
  kept_bytes = member.num_kept * space.baseline_bytes
  rungs = [Rung(kept_bytes, 0.0, 0.0, not kept_bytes, PolicyDecisions)]
  for candidate in space.found:
    rungs.append(
      Rung(
        member.num_kept * candidate.kept_bytes,
        candidate.estimated_bytes - candidate.kept_bytes,
        member.num_runs * candidate.flops,
        candidate.is_bare,
        functools.partial(getattr, candidate, "decisions"),
        member.num_runs * candidate.waiting_flops,
        candidate.rungs,
      )
    )
  return rungs


def _by_hand(ladders: Sequence[Sequence[Rung]]) -> Iterator[tuple[Rung, ...]]:
  """The same names saved in all regions, each set of them; regions that people leave alone are left as they are."""
  at = [{names: rung for rung in rungs for names in rung.rungs} for rungs in ladders]
  known = [frozenset[str]().union(*by_names) for by_names in at]
  for names in dict.fromkeys(names for by_names in at for names in by_names):
    yield tuple(
      by_names.get(names & of_region, rungs[0]) for rungs, by_names, of_region in zip(ladders, at, known, strict=True)
    )


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


def _peaks(ladders: Sequence[Sequence[Rung]]) -> np.ndarray:
  """Peaks to divide for, from less than any division reaches to that of the regions as they are."""
  least = max(min(rung.saved_bytes + rung.inside_bytes for rung in rungs) for rungs in ladders)
  most = sum(max(rung.saved_bytes for rung in rungs) for rungs in ladders)
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


def _joint(rungs: tuple[Rung, ...], names: tuple[str, ...]) -> JointCandidate:
  return JointCandidate(
    rungs, names, _peak(rungs), sum(rung.flops for rung in rungs), all(rung.is_bare for rung in rungs)
  )
