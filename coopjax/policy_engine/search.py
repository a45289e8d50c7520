"""Plans the policy engine: the least recompute whose compiled temporaries hold the budget.

The candidates (`candidates.Candidates`) carry estimated bytes: from a profile of the compiled function where there is
one (`CompiledProfile`; mostly within a few percent of what will be compiled), else JAX's own, before fusion, which only
order candidates. The compiler's `temp_size_in_bytes` decides. Each compile is a point on a curve from estimated to
compiled bytes, and the next try is the cheapest candidate that the curve puts inside the budget, or the most finely cut
of those that cost nearly as little: a rule that similar models follow alike. (Under checkpoints around checkpoints, the
least finely cut: their pieces are small, and XLA does not fuse across a cut.) Once a plan holds, a cheaper one that
might just fit is compiled, too; of those that hold, the one that repeats least is taken. A handful of compiles
suffices.

What a turn of a loop needs beside what it saves depends on which values are saved: of scan bodies the errors of all
trials count, the more the more alike the bodies are (`predictions`); candidates unlike all tried get the benefit of the
doubt, and those that a person would pick are tried if they might fit.

Where the HLO engine works under the checkpoints (`HloEngineShare`), the curve is of bytes without its help, and what it
repeats counts like the rest. How far it helps is seen from compile to compile: once a plan holds, candidates that need
somewhat more bytes than it does are worth a try, too.

Known weaknesses: a `shard_map` or a user's own checkpoint is one equation that is not cut (put the remat inside it);
inside a jit that a gradient is taken of, it is planned with respect to every floating argument, and one output less is
scratch space less for XLA.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

import jax

from coopjax.jaxpr.trace import TracedFn, fn_and_gradient
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.compiled_profile import CompiledProfile
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.offload import HostLink
from coopjax.policy_engine.predictions import (
  HloEngineShare,
  SearchCandidate,
  Trial,
  doubted_bytes,
  in_loops,
  predicted_bytes,
)
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.shards import Shards
from coopjax.xla.compile import OversizedProgram, temp_bytes_of

_MARGIN = 0.02  # of the budget: how far predictions err, once there has been a compile
_DOUBT = 0.1  # of the budget: how far the prediction of a scan body unlike those tried may err, at least
_NEARBY = 1.15  # of the budget: predictions within that may be wrong
_MAX_BOLD_MISSES = 10
_MAX_BARE = 3  # tries at the least memory before the budget counts as out of reach
_WITHIN_REACH = 1.1  # of the budget: worth more tries
_AIDED_MARGIN = 0.25  # of what the best plan takes unaided: the HLO engine may help out with more
_MAX_AIDED_MISSES = 3  # tries at that
_TOLERANCE = 0.03  # of the forward FLOPs: what is no reason to prefer a candidate, or to compile once more
_LOOP_TOLERANCE = 0.003  # the same where scan bodies are decided on, whose layers need no rule to be alike; or
_LOOP_SHARE = 0.02  # of the FLOPs that are repeated, if that is less

CompileFn = Callable[[Callable, Sequence[jax.ShapeDtypeStruct]], jax.stages.Compiled | OversizedProgram]


@dataclasses.dataclass(frozen=True)
class PolicyRound:
  """One compile of the verify-and-replan loop: what was tried, bytes estimated and compiled, and FLOPs repeated."""

  summary: str
  estimated_bytes: int
  temp_bytes: int
  recompute_flops: float

  def __str__(self) -> str:
    return (
      f"{self.summary}: {self.temp_bytes:,} bytes compiled, {self.estimated_bytes:,} estimated, "
      f"{self.recompute_flops:.3g} FLOPs repeated"
    )


@dataclasses.dataclass(frozen=True)
class PolicyPlan[Decisions]:
  """The outcome.

  Attributes:
    decisions: of the best candidate that holds the budget; of the smallest one if none does.
    rounds: the compiles made, in order.
    temp_bytes: compiled temporaries of fn and its gradient under `decisions`.
    recompute_flops: work repeated, modelled; what the HLO engine repeats included.
    forward_flops: forward work, modelled.
    is_feasible: `temp_bytes` is within the budget.
    smallest_bytes: the smallest compiled temporaries seen.
    waiting_flops: what could be computed while transfers to and from the host are waited for, modelled.
  """

  decisions: Decisions
  rounds: tuple[PolicyRound, ...]
  temp_bytes: int
  recompute_flops: float
  forward_flops: float
  is_feasible: bool
  smallest_bytes: int
  waiting_flops: float = 0.0


def plan_policy(
  traced: TracedFn,
  budget_bytes: int,
  compile_fn: CompileFn,
  baseline_temp_bytes: int,
  max_rounds: int = 6,
  *,
  mark: str | None = None,
  only_scans: bool = False,
  profile: CompiledProfile | None = None,
  link: HostLink | None = None,
  planner: str = "auto",
  hlo_share_of: Callable[[], HloEngineShare | None] = lambda: None,
  below_flops: float = math.inf,
  shards: Mapping[int | None, Shards] | None = None,
) -> PolicyPlan[PolicyDecisions]:
  """Finds checkpoint segments and saved values that make fn and its gradient fit.

  Args:
    traced: the function.
    budget_bytes: for the temporaries of fn and its gradient compiled together.
    compile_fn: from a function of flat arrays and their types to the compiled program.
    baseline_temp_bytes: compiled temporaries of the function as it is.
    max_rounds: compiles at most.
    mark: for the HLO engine; with one, each compile is of both engines' combined work.
    only_scans: decide on scan bodies alone and leave straight-line code to the HLO engine.
    profile: what was compiled of the function as it is.
    link: to the host, if values may be offloaded.
    planner: "coop" and "segments" say how saved values are found (`candidates.Candidates`).
    hlo_share_of: as for `search`.
    below_flops: as for `search`.
    shards: from `shards.shards_of`; without, a program that is spread is planned as a whole.

  Returns:
    The plan; without decisions if the function fits as it is or nothing can be decided.

  Raises:
    NotDifferentiableError: no gradient.
  """
  fn_and_gradient(traced)  # raises here, with the function's name, rather than inside the planner

  def temp_bytes_with(decisions: PolicyDecisions) -> int:
    fn, avals = fn_and_gradient(traced, rewrite(traced, decisions, mark))
    return temp_bytes_of(compile_fn(fn, avals))

  space = Candidates(traced, only_scans, profile, link, shards=shards, planner=planner)
  return search(
    space,
    budget_bytes,
    temp_bytes_with,
    baseline_temp_bytes,
    max_rounds,
    hlo_share_of=hlo_share_of,
    below_flops=below_flops,
  )


class SearchSpace[Decisions: Hashable](Protocol):
  """What is searched: the candidates, what the forward pass takes, and the decisions that leave everything as it is."""

  @property
  def found(self) -> Sequence[SearchCandidate[Decisions]]: ...
  @property
  def forward_flops(self) -> float: ...
  @property
  def baseline_bytes(self) -> float: ...
  @property
  def is_spread(self) -> bool: ...
  @property
  def undecided(self) -> Decisions: ...


def search[Decisions: Hashable](
  space: SearchSpace[Decisions],
  budget_bytes: int,
  temp_bytes_of: Callable[[Decisions], int],
  baseline_temp_bytes: int,
  max_rounds: int = 6,
  *,
  hlo_share_of: Callable[[], HloEngineShare | None] = lambda: None,
  below_flops: float = math.inf,
) -> PolicyPlan[Decisions]:
  """The verify-and-replan loop: the least recompute whose compiled temporaries hold the budget.

  Args:
    space: the candidates of one function (`Candidates`), or of all regions of a step (`division.Division`).
    budget_bytes: for the temporaries.
    temp_bytes_of: compiles the program with a candidate's decisions.
    baseline_temp_bytes: compiled temporaries of the program as it is.
    max_rounds: compiles at most.
    hlo_share_of: what the HLO engine did in the last compile; None where it was not at work.
    below_flops: that a plan at hand repeats: others are only of interest if they repeat less.

  Returns:
    The plan; without decisions if the program fits as it is or nothing can be decided.
  """
  if baseline_temp_bytes <= budget_bytes or not space.found:
    return PolicyPlan(
      space.undecided,
      (),
      baseline_temp_bytes,
      0.0,
      space.forward_flops,
      baseline_temp_bytes <= budget_bytes,
      baseline_temp_bytes,
    )
  progress = _Search(space, budget_bytes, baseline_temp_bytes, below_flops)
  for rounds_left in range(max_rounds, 0, -1):
    candidate = progress.next_candidate(is_last=rounds_left == 1)
    if candidate is None:
      break
    progress.record(Trial(candidate, temp_bytes_of(candidate.decisions), hlo_share_of()))
  return progress.result()


class _Search[Decisions: Hashable]:
  """Chooses what to compile next, from the compiles so far."""

  def __init__(self, space: SearchSpace[Decisions], budget_bytes: int, baseline_temp_bytes: int, below_flops: float):
    self._space = space
    self._budget = budget_bytes
    self._below_flops = below_flops
    self._tried: list[Trial[Decisions]] = []
    self._misses = 0  # since a plan holds: tries that made nothing better
    self._passed: set[SearchCandidate[Decisions]] = set()
    self._baseline = float(baseline_temp_bytes)
    # The program without checkpoints is scheduled differently, so it lends its ratio only until there is a trial.
    self._ratio = self._baseline / max(space.baseline_bytes, 1.0)
    undone = min((candidate.estimated_bytes for candidate in space.found if not candidate.flops), default=0.0)
    self._num_shards = max(1, round(undone / max(self._baseline, 1.0))) if space.is_spread else 1

  def record(self, trial: Trial[Decisions]) -> None:
    is_first = not self._holds
    self._tried.append(trial)
    self._misses += not is_first and self._best() is not trial

  def next_candidate(self, is_last: bool) -> SearchCandidate[Decisions] | None:
    """The cheapest candidate that should fit; before the first that does, and on the last try, the smallest."""
    untried = [candidate for candidate in self._space.found if candidate not in self._passed]
    if self._holds:
      least = min([self._below_flops, *(trial.flops for trial in self._feasible())])
      untried = [c for c in untried if c.flops < least - self._tolerance(c, least)]
    fitting = [c for c in untried if self._hoped(c) <= self._limit(is_looped=c.has_loops)]
    while fitting and (self._holds or not is_last):
      found = self._first(
        self._nearly_cheapest(fitting),
        lambda candidate: (
          self._hoped(candidate) if candidate.has_loops else 0,
          candidate.num_segments if candidate.kin else -candidate.num_segments,
          candidate.flops,
          candidate.estimated_bytes,
        ),
      )
      if found is not None:
        return found
      fitting = [candidate for candidate in fitting if candidate not in self._passed]
    bare = [candidate for candidate in untried if candidate.is_bare]
    bare_tried = [trial for trial in self._tried if trial.candidate.is_bare]
    is_hopeless = len(bare_tried) >= _MAX_BARE and (
      min(trial.temp_bytes for trial in bare_tried) > _WITHIN_REACH * self._budget
    )
    if self._feasible() or (self._holds and self._tried):
      # What a person would try of loops is tried, too, where it might fit.
      near = [c for c in untried if c.has_loops and (c.is_by_hand or c.is_bare)]
      near = [c for c in near if self._predict(c) <= _NEARBY * self._budget]
      return self._first(near, lambda candidate: (self._predict(candidate), candidate.flops))
    if is_hopeless:
      return None
    # Those that cut scans alike compile alike, and so do kin.
    seen = {(trial.candidate.scan_bodies, trial.candidate.kin) for trial in bare_tried}
    return self._first(
      bare,
      lambda candidate: ((candidate.scan_bodies, candidate.kin) in seen, candidate.estimated_bytes, candidate.flops),
    )

  @property
  def _holds(self) -> bool:
    """There is a plan within the budget, of these or at hand."""
    return self._below_flops < math.inf or bool(self._feasible())

  def _feasible(self) -> list[Trial[Decisions]]:
    return [trial for trial in self._tried if trial.temp_bytes <= self._budget]

  def _limit(self, is_looped: bool) -> float:
    """What a prediction may use: cautious before a plan holds, then as much as might just fit, less for each miss.

    Nothing was tried where a plan is at hand: the HLO engine's alone, which will work under the first try, too.
    """
    if is_looped and in_loops(self._tried):
      return self._budget  # the prediction has learned what the HLO engine spares, and its doubt is the margin
    if not self._holds:
      return self._budget * (1 - _MARGIN * bool(self._tried))
    if any(trial.hlo_share for trial in self._tried) or not self._tried:
      best = self._best()
      reach = max(self._budget, best.unaided_bytes if best else 0)
      return reach * (1 + _AIDED_MARGIN) if self._misses < _MAX_AIDED_MISSES else 0.0
    return self._budget * (1 + _MARGIN * max(1 - self._misses, 0))

  def _nearly_cheapest(self, candidates: Sequence[SearchCandidate[Decisions]]) -> list[SearchCandidate[Decisions]]:
    """Those not worth telling apart from the cheapest: among them decides a rule that similar models follow alike."""
    least = min(candidate.flops for candidate in candidates)
    return [c for c in candidates if c.flops <= least + self._tolerance(c, least)]

  def _first(
    self, candidates: Sequence[SearchCandidate[Decisions]], key: Callable
  ) -> SearchCandidate[Decisions] | None:
    """The first by `key` that decides something, and something new: different ladders share rungs."""
    tried = {trial.candidate.decisions for trial in self._tried} | {self._space.undecided}
    for candidate in sorted(candidates, key=key):
      self._passed.add(candidate)
      if candidate.decisions not in tried:
        return candidate
    return None

  def result(self) -> PolicyPlan[Decisions]:
    rounds = tuple(
      PolicyRound(
        trial.candidate.summary,
        int(trial.candidate.estimated_bytes),
        trial.temp_bytes,
        trial.flops - trial.candidate.waiting_flops,
      )
      for trial in self._tried
    )
    if not self._tried:
      return PolicyPlan(
        self._space.undecided, (), int(self._baseline), 0.0, self._space.forward_flops, False, int(self._baseline)
      )
    smallest = min(self._tried, key=lambda trial: trial.temp_bytes)
    taken = self._best() or smallest
    waiting_flops = taken.candidate.waiting_flops
    return PolicyPlan(
      taken.candidate.decisions,
      rounds,
      taken.temp_bytes,
      taken.flops - waiting_flops,
      self._space.forward_flops,
      taken.temp_bytes <= self._budget,
      smallest.temp_bytes,
      waiting_flops,
    )

  def _best(self) -> Trial[Decisions] | None:
    return min(self._feasible(), key=lambda trial: trial.flops, default=None)

  def _predict(self, candidate: SearchCandidate[Decisions]) -> float:
    return predicted_bytes(candidate, self._tried, self._ratio, self._num_shards)

  def _hoped(self, candidate: SearchCandidate[Decisions]) -> float:
    """The prediction, less what it may be too high by once a plan holds: the more tries missed, the less."""
    boldness = max(0.0, 1 - self._misses / _MAX_BOLD_MISSES) if self._feasible() else 0.0
    doubt = doubted_bytes(candidate, self._tried, _DOUBT * self._budget, self._num_shards)
    return self._predict(candidate) - boldness * doubt

  def _tolerance(self, candidate: SearchCandidate[Decisions], least_flops: float) -> float:
    """FLOPs that are no reason to prefer a candidate to one that repeats so many, or to compile once more."""
    if not candidate.has_loops:
      return _TOLERANCE * self._space.forward_flops
    return min(_LOOP_TOLERANCE * self._space.forward_flops, _LOOP_SHARE * least_flops)
