"""Candidates for the policy engine: ways to carry a function out, with estimated bytes and FLOPs.

For each segmentation (`cuts.cut`), values are saved across all segments and scan bodies in order of FLOPs spared per
byte, which gives a ladder from least memory to least recompute. With a profile (`CompiledProfile`) each segmentation
also gets what Coop's windows would keep, segment by segment, at a range of limits, and all bytes that decide are XLA's:
what residuals take after fusion, and what else is live beside them. Scans come in three ways: between the segments,
each with a curve of its own; inside segments, that repeat them whole; and, inside segments, as the user wrote them.
"""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import Once, TracedFn
from coopjax.policy_engine.apart import ways_to_open
from coopjax.policy_engine.blocks import Block, grouped, merged_blocks, ways_to_tell_blocks
from coopjax.policy_engine.bodies import Loop
from coopjax.policy_engine.by_hand import HandRung, rungs
from coopjax.policy_engine.compiled_profile import CompiledProfile
from coopjax.policy_engine.cuts import cut
from coopjax.policy_engine.decisions import PolicyDecisions, Region
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.homes import Home, home_of
from coopjax.policy_engine.ladders import Candidate, Ladder, ScanLevel, uncut
from coopjax.policy_engine.offload import HostLink, cuts_for_offload
from coopjax.policy_engine.residuals import forward_graph, graph_of
from coopjax.policy_engine.save_curves import CurvePoint
from coopjax.policy_engine.scan import Scan, carried_out, find_scans, has_invariants, kept_bytes, ways_in_blocks
from coopjax.policy_engine.segment_curves import SegmentBytes, SegmentCurves, TopOffload
from coopjax.policy_engine.shards import WHOLE, Shards

_LEAST_EXPLAINED = 0.75  # of the temporaries: below that, a profile says little of what checkpoints will do
_LEAST_CARRIED = 0.1  # of what the largest scan carries from turn to turn, for groups to matter
BY_HAND = "by hand"  # for `planner`
_NESTED_BY_HAND = 2  # sizes of groups of blocks, that come out even
_NUM_KEPT = 19  # limits for which residuals are evicted from the profile


class Candidates:
  """All candidates for one function.

  Args:
    traced: the function.
    only_scans: decide on scan bodies alone.
    profile: of the function as it is; without one, or where it explains too little, bytes are JAX's.
    link: to the host, if values may be offloaded.
    shards: how devices share values (`shards.shards_of`); without, what is counted is of all devices together.
    planner: "coop" for what Coop's windows keep alone, "segments" for the ladders alone, `BY_HAND` for what people pick
      alone; all others everything.
    ends_forward: the backward pass follows at once, so that the last segment is never worth repeating.

  Attributes:
    found: the candidates; different ladders may share rungs.
    forward_flops: of the function, modelled.
    baseline_bytes: of the function as it is, as the candidates' are estimated.
    undecided: the decisions that leave it so.
    is_spread: a device holds a part of what is counted here, and which is not known.
    is_profiled: estimates go by a compile of the function as it is.
  """

  undecided = PolicyDecisions()

  def __init__(
    self,
    traced: TracedFn,
    only_scans: bool,
    profile: CompiledProfile | None = None,
    link: HostLink | None = None,
    *,
    shards: Mapping[int | None, Shards] | None = None,
    planner: str = "auto",
    ends_forward: bool = True,
    once: Once | None = None,
  ):
    once = once or traced.once
    jaxpr, table = once(tag_jaxpr, lambda: tag_jaxpr(traced.inlined))
    home = home_of(jaxpr, traced.is_differentiable, traced.scope)
    shards = (shards or {}) if home.is_top else {}
    self.is_spread = traced.placement.is_spread and not (shards or home.is_of_one_device)
    self._profile = None  # which is of the top
    if home.is_top and profile is not None and profile.explained >= _LEAST_EXPLAINED:
      self._profile = profile
    self.is_profiled = self._profile is not None
    self._ends_forward = ends_forward
    self._planner, self._link = planner, link
    self.found: list[Candidate] = []
    self._curves: dict[object, list[CurvePoint]] = {}  # that segments of all graphs have
    self._deeper: Callable[[], list[Candidate]] | None = None  # what `deepen` adds, if it was not asked yet
    self._wider: Callable[[], list[Candidate]] | None = None  # the same of `widen`
    if only_scans and not home.work:
      self.forward_flops, self.baseline_bytes = cost.jaxpr_flops(home.jaxpr), 0.0
      return
    self._kept: list[np.ndarray] = []
    if self._profile is not None and planner not in ("segments", BY_HAND):
      self._kept = list(_kept_by_windows(self._profile))
    # A checkpoint's own policy would save in the forward run that offload replaces (`host_copies`).
    host = None
    if link is not None and not link.is_for_loops and traced.policy is None and home.is_top:
      host = TopOffload.of(jaxpr, link, shards.get(None, WHOLE))
    with home.scope.entered():
      if shards:
        original = forward_graph(home.jaxpr, home.is_differentiable, shards.get(None, WHOLE))
      else:
        original = graph_of(traced, home, once)
      # As for other candidates of this function.
      scans = once(
        (find_scans, link, *shards.items()),
        lambda: find_scans(home.jaxpr, table, home.equation_id, home.first_id, link, shards, home.is_differentiable),
      )
      graphs = once((forward_graph, *shards.items()), dict)
      self._find(home, original, scans, graphs, only_scans, link, host, shards)
      self._place(home)

  def deepen(self) -> bool:
    """Finds what takes less than a checkpoint around the body of a loop, and repeats more: its turns in groups.

    Not looked for unless it is needed: the program becomes longer, and so does each compile.

    Returns:
      Whether there is more than before.
    """
    deeper, self._deeper = self._deeper, None
    return self._add(deeper)

  def widen(self) -> bool:
    """Finds what has each block of a loop's body under a checkpoint of its own, and what leaves some pieces of it as
    they are, and has others under checkpoints.

    Not looked for unless a plan leaves room: XLA's bytes depend on such choices in ways that mislead a search.

    Returns:
      Whether there is more than before.
    """
    wider, self._wider = self._wider, None
    return self._add(wider)

  def _add(self, find: Callable[[], list[Candidate]] | None) -> bool:
    more = find() if find else []
    self.found = [*self.found, *more]  # another list: copies of this are searched by themselves
    return bool(more)

  def _found_more(self, home: Home, find: Callable[["Candidates"], None]) -> list[Candidate]:
    more = copy.copy(self)
    more.found = []
    with home.scope.entered():
      find(more)
    more._place(home)
    return more.found

  def _find(
    self,
    home: Home,
    original: ForwardGraph,
    scans: list[Scan],
    graphs: dict[tuple[Region, ...], ForwardGraph],
    only_scans: bool,
    link: HostLink | None,
    host: TopOffload | None,
    shards: Mapping[int | None, Shards],
  ) -> None:
    jaxpr, at_top = home.jaxpr, shards.get(None, WHOLE)
    self.forward_flops = sum(original.flops)
    everything = SegmentBytes(original, self._profile, frozenset())
    self.baseline_bytes = float(everything.inside_bytes(0, original.num_positions) - everything.slack_bytes)
    self._effects = frozenset(i for i, equation in enumerate(jaxpr.eqns) if not compat.may_repeat(equation))
    at_scans = {scan.position for scan in scans}

    def looped(scans: Sequence[Loop], level: int) -> ForwardGraph:
      """The region, with the barest decisions of its scans carried out, as far as they show outside of a turn: bodies
      that are cut alike have the same.
      """
      barest = tuple(region for scan in scans for region in scan.barest(scan.same_outside(level)))
      if barest not in graphs:
        graphs[barest] = forward_graph(carried_out(jaxpr, barest, home.first_id), home.is_differentiable, at_top)
      return graphs[barest]

    for level in range(_num_levels(scans)):
      graph = looped(scans, level)
      self._add_ladders(graph, ScanLevel(scans, level, are_alone=True), is_cut=not only_scans)
      curves = [scan.body(level).offload_curves for scan in scans]
      for offloads in range(max(map(len, curves), default=0)) if all(curves) else ():
        on_host = ScanLevel(scans, level, are_alone=True, offloads=offloads)
        self._add_ladders(graph, on_host, is_cut=not only_scans, host=host)
      if not only_scans:
        self._add_ladders(graph, ScanLevel(scans, level, are_alone=False))
      if level == 0:
        self._add_rungs(graph, scans, ())
        if keeping := {scan.equation_id for scan in scans if has_invariants(jaxpr.eqns[scan.position])}:
          self.found += [each.behind_barriers(keeping) for each in self.found if frozenset() in each.name_sets]
        if len(scans) > 1:  # the layers alone, without the loops of a loss or of an embedding
          layers = [max(scans, key=kept_bytes)]
          self._add_rungs(looped(layers, 0), layers, ())
        for blocks in () if only_scans else ways_to_tell_blocks(jaxpr, graph, self._effects | at_scans):
          self._add_rungs(graph, scans, blocks)
    inner: Sequence[Loop] = scans
    while any(loop.opened for loop in inner):
      ways = list(ways_to_open(inner))
      for opened in ways:
        for level in range(_num_levels(opened)):
          self._add_ladders(looped(opened, level), ScanLevel(opened, level, are_alone=True), is_cut=not only_scans)
        self._add_rungs(looped(opened, 0), opened, ())
        for blocks in () if only_scans else ways_to_tell_blocks(jaxpr, looped(opened, 0), self._effects | at_scans):
          self._add_rungs(looped(opened, 0), opened, blocks)
      inner = ways[0]
    if not only_scans:
      for blocks in () if scans else ways_to_tell_blocks(jaxpr, original, self._effects, not self._ends_forward):
        ladder = self._by_hand(original, (), blocks)
        self.found += map(ladder.by_hand, rungs(blocks))
        if self.is_profiled and self._planner != BY_HAND:  # else what people do is what a search begins with
          nested = (each for each in ladder.beyond() if each.is_nested)
          self.found += (dataclasses.replace(each, name_sets=(frozenset(),)) for each in nested)
        # People nest about as many groups as there are blocks in one.
        in_groups = sorted(grouped(blocks), key=lambda groups: abs(len(groups) - len(groups[0])))
        self.found += map(ladder.nested_by_hand, in_groups[:_NESTED_BY_HAND])
        for merged, of_products in merged_blocks(jaxpr, original, blocks):
          self.found += map(self._by_hand(original, (), merged).by_hand, of_products)
      self._add_ladders(original, ScanLevel())
    if host is not None and not only_scans and not scans:
      self._add_ladders(original, ScanLevel(offloads=0), host=host)

    def add_groups(to: Candidates) -> None:
      for in_groups in _in_groups(scans):
        to._add_ladders(looped(in_groups, 0), ScanLevel(in_groups, 0, are_alone=True), is_cut=not only_scans)
        if not any(scan.bodies[0].is_peeled for scan in in_groups):
          to._add_nested_by_hand(looped(in_groups, 0), in_groups)

    def add_mixed(to: Candidates) -> None:
      ways = list(ways_in_blocks(scans))
      for in_blocks in itertools.chain(ways, *map(ways_to_open, ways)):
        to._add_ladders(looped(in_blocks, 0), ScanLevel(in_blocks, 0, are_alone=True), is_cut=not only_scans)
        to._add_rungs(looped(in_blocks, 0), in_blocks, ())
      for cut_alike in (*ways, scans):
        for level in range(_num_levels(cut_alike)):
          if any(scan.body(level).mixed_curve() for scan in cut_alike):
            mixed = ScanLevel(cut_alike, level, are_alone=True, are_mixed=True)
            to._add_ladders(looped(cut_alike, level), mixed, is_cut=not only_scans)

    # Found once, for whatever copies ask.
    self._deeper, self._wider = (
      functools.cache(functools.partial(self._found_more, home, add)) for add in (add_groups, add_mixed)
    )

  def _place(self, home: Home) -> None:
    """Tells the candidates where they stand; without those that keep more on the host than it may hold."""
    if self._link is not None:
      self.found = [candidate for candidate in self.found if candidate.host_bytes <= self._link.room_bytes]
    if not home.is_top:
      self.found = [dataclasses.replace(candidate, home=home.first_id) for candidate in self.found]

  def _add_rungs(self, graph: ForwardGraph, scans: Sequence[Loop], blocks: Sequence[Block]) -> None:
    """What a person would pick, whatever else is found (`rungs`)."""
    self.found += map(self._by_hand(graph, scans, blocks).by_hand, rungs([*scans, *blocks]))

  def _add_nested_by_hand(self, graph: ForwardGraph, in_groups: Sequence[Scan]) -> None:
    """Loops of loops as people write them: a checkpoint around each group, and around each turn of it or none."""
    ladder = self._by_hand(graph, in_groups, ())
    for at in (0, -1):
      rung = HandRung((frozenset(),), {scan.position: scan.bodies[0].curve[at] for scan in in_groups})
      self.found.append(ladder.by_hand(rung))

  def _by_hand(self, graph: ForwardGraph, scans: Sequence[Loop], blocks: Sequence[Block]) -> Ladder:
    together = ScanLevel(scans, 0, are_alone=True)
    alone = self._effects | together.alone
    decided = frozenset(scan.position for scan in scans)
    curves = SegmentCurves(graph, SegmentBytes(graph, self._profile, decided), None, self._ends_forward, self._curves)
    bounds = {*uncut(graph, alone), *(end for block in blocks for end in (block.position, block.stop))}
    return Ladder(curves, tuple(sorted(bounds)), together, alone, is_cut=bool(blocks))

  def _add_ladders(
    self, graph: ForwardGraph, scans: "ScanLevel", is_cut: bool = True, host: TopOffload | None = None
  ) -> None:
    """Candidates for one graph of the top region.

    Args:
      graph: with the barest decisions of `scans` carried out.
      scans: their decisions.
      is_cut: cut the top into segments, or leave it as it is.
      host: what the segments need to offload, if they may.
    """
    if not graph.num_positions or self._planner == BY_HAND:
      return
    alone = self._effects | scans.alone
    decided = frozenset(scan.position for scan in scans.scans)
    curves = SegmentCurves(graph, SegmentBytes(graph, self._profile, decided), host, self._ends_forward, self._curves)
    cuts = cuts_for_offload if host else cut
    for bounds in cuts(graph, alone) if is_cut else [uncut(graph, alone)]:
      ladder = Ladder(curves, bounds, scans, alone, is_cut)
      self.found += (one for one in ladder.candidates() if one.is_bare or self._planner != "coop")
      if scans.offloads is None:
        self.found += map(ladder.keeping, self._kept)
        self.found += ladder.beyond() if is_cut else ()


def _in_groups(scans: Sequence[Scan]) -> Iterator[list[Scan]]:
  """The scans with turns in ever larger groups, where that spares much of what all of them carry."""
  least_bytes = _LEAST_CARRIED * max((scan.carried_bytes for scan in scans), default=0)
  sizes = [scan.group_sizes if scan.carried_bytes >= least_bytes else () for scan in scans]
  for level, is_peeled in itertools.product(range(max(map(len, sizes), default=0)), (True, False)):
    bodies = (
      scan.in_groups(of[min(level, len(of) - 1)], is_peeled) if of else scan.tightest
      for scan, of in zip(scans, sizes, strict=True)
    )
    yield [dataclasses.replace(scan, bodies=(body,)) for scan, body in zip(scans, bodies, strict=True)]


def _num_levels(scans: Sequence[Loop]) -> int:
  return max((len(scan.bodies) for scan in scans), default=0)


def _kept_by_windows(profile: CompiledProfile) -> Iterator[np.ndarray]:
  """Residual bytes by position that Coop's windows keep, at one limit after another as long as they hold it."""
  for share in np.linspace(0.95, 0.05, _NUM_KEPT):
    kept_bytes = profile.kept_bytes(share * profile.temp_bytes)
    if kept_bytes is None:
      return
    yield kept_bytes
