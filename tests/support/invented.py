"""Invented candidates and compilers for the policy engine's search."""

import dataclasses
import math
import types

from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.ladders import Candidate
from coopjax.policy_engine.predictions import HloEngineShare
from coopjax.policy_engine.search import search

FORWARD = 200.0


@dataclasses.dataclass(frozen=True)
class Invented:
  """A candidate's estimated and compiled bytes, what it repeats, and what the HLO engine does to it, if it is there."""

  estimated: float
  compiled: int
  flops: float
  is_bare: bool = False
  hlo_share: HloEngineShare | None = None
  kin: str | None = None
  is_by_hand: bool = False
  name: str = "name"  # that it saves, by hand
  is_plain: bool = False  # by hand, without any name
  has_loops: bool = False
  twin: int | None = None  # compiled bytes of the same behind a barrier
  unpinned: int | None = None  # compiled bytes of a twin that is said by a policy, without the barrier


def run(
  invented,
  budget,
  baseline=1650,
  max_rounds=6,
  below_flops=math.inf,
  drafted=None,
  is_profiled=True,
  wanted=math.inf,
  after=None,
):
  """The plan, and the bytes compiled in turn.

  With `drafted` the trials are drafts: bytes that they show, by those compiled.
  """
  compiled = {}
  found = []
  for i, each in enumerate(invented):
    # Of what a loop repeats, each saves something else.
    saved = ((0, i),) if each.has_loops and not each.is_bare else ()
    decisions = PolicyDecisions((Region(7 if each.has_loops else None, (Segment(0, i + 1, True, saved=saved),)),))
    compiled[decisions] = each
    policy = None if each.unpinned is None else ()
    if each.twin is not None:
      (region,) = decisions.regions
      for has_barrier, size in (True, each.twin), (False, each.unpinned):
        form = PolicyDecisions((dataclasses.replace(region, has_barrier=has_barrier, policy=policy),))
        compiled.setdefault(form, dataclasses.replace(each, compiled=size))
    sets = (frozenset[str](() if each.is_plain else {each.name}),) if each.is_by_hand or each.is_plain else ()
    decide = lambda decisions=decisions: decisions
    bytes_and_flops = each.estimated, 0.0, each.flops
    found.append(Candidate(decide, *bytes_and_flops, each.is_bare, kin=each.kin, name_sets=sets, policy=policy))
  space = types.SimpleNamespace(
    found=found,
    forward_flops=FORWARD,
    baseline_bytes=1545.0,
    undecided=PolicyDecisions(),
    is_spread=False,
    is_profiled=is_profiled,
    deepen=lambda: False,
    widen=lambda: False,
  )
  whole = []

  def temp_bytes_of(decisions):
    whole.append(compiled[decisions].compiled)
    return whole[-1]

  plan = search(
    space,
    budget,
    (lambda decisions: drafted(compiled[decisions].compiled)) if drafted else temp_bytes_of,
    baseline,
    max_rounds,
    whole_bytes_of=drafted and temp_bytes_of,
    hlo_share_of=lambda decisions: compiled[decisions].hlo_share,
    below_flops=below_flops,
    wanted_bytes=wanted,
    after_bytes=after,
  )
  assert drafted or sorted(whole) == sorted(entry.temp_bytes for entry in plan.rounds)
  return plan, whole if drafted else [entry.temp_bytes for entry in plan.rounds]
