"""Plans the policy engine: the least recompute whose compiled temporaries hold the budget.

The candidates (`candidates.Candidates`) carry estimated bytes: from a profile of the compiled function where there is
one (`CompiledProfile`; mostly within a few percent of what will be compiled), else JAX's own, before fusion, which only
order candidates. The compiler's `temp_size_in_bytes` decides, in a handful of compiles (`progress.Progress` says of
which candidates). Where a compiler makes drafts, for a fraction of the work, these find the candidate, and what is
taken is compiled whole: where that shows that drafts are off, the search goes on from there.

Known weaknesses: straight segments are not cut inside a user's own checkpoint (put the remat inside it), nor in a
`shard_map` that holds a part of the work alone; inside a jit that a gradient is taken of, it is planned with respect to
every floating argument, and one output less is scratch space less for XLA.
"""

import copy
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import jax

from coopjax.jaxpr.trace import Once, TracedFn, fn_and_gradient
from coopjax.memory_profile import totals_of
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.compiled_profile import CompiledProfile
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.offload import HostLink
from coopjax.policy_engine.policy_plan import PolicyPlan
from coopjax.policy_engine.predictions import HloEngineShare, SearchSpace, Trial
from coopjax.policy_engine.progress import Progress
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.shards import Shards
from coopjax.xla.compile import OversizedProgram

_MAX_COMPILES = 3  # of what drafts find
_MORE_ROUNDS = 6  # for another budget: where a compile showed that drafts are off, or all around takes more
_DRAFTS_ARE_OFF = 0.01  # of the budget: what leaves room for something better
OUT_OF_REACH = 1  # bytes: a budget that finds the least that there is
_JUST_MISSED = 1.25  # of a budget

CompileFn = Callable[[Callable, Sequence[jax.ShapeDtypeStruct]], jax.stages.Compiled | OversizedProgram]
TempSizes = tuple[int, int]  # temporaries of a compiled program: on the device, and in the host's memory


def limits(budget_bytes: int, smallest_bytes: Callable[[], int]) -> Iterator[int]:
  """What to search within: the budget and, where it is just missed, the least that there is: found out of reach, then
  within what was found, where bolder tries may come to less, as long as they do. So what a budget out of reach was told
  can be reached, and what came of that, is found when it is asked for.

  Args:
    budget_bytes: for the temporaries.
    smallest_bytes: that the first search came to; from `OUT_OF_REACH` on, that it and those after it did.
  """
  yield budget_bytes
  if not max(budget_bytes, OUT_OF_REACH) < smallest_bytes() <= _JUST_MISSED * budget_bytes:
    return
  yield OUT_OF_REACH
  least_bytes = math.inf
  while (found_bytes := smallest_bytes()) < least_bytes:
    least_bytes = found_bytes
    yield found_bytes


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
  alone: HloEngineShare | None = None,
  wanted_bytes: float = math.inf,
  after_bytes: int | None = None,
  shards: Mapping[int | None, Shards] | None = None,
  whole_fn: CompileFn | None = None,
  compiled: dict[PolicyDecisions, tuple[TempSizes, HloEngineShare | None]] | None = None,
  once: Once | None = None,
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
    hlo_share_of: what the HLO engine did in the last compile; None where it was not at work.
    below_flops: as for `search`.
    alone: same.
    wanted_bytes: same.
    after_bytes: same.
    shards: from `shards.shards_of`; without, a program that is spread is planned as a whole.
    whole_fn: the same, where `compile_fn` makes drafts.
    compiled: trials of other searches in the same program, of which none is compiled twice; added to.
    once: what other searches in the same program share, by default those with this trace of it.

  Returns:
    The plan; without decisions if the function fits as it is or nothing can be decided.

  Raises:
    NotDifferentiableError: no gradient.
  """
  fn_and_gradient(traced)  # raises here, with the function's name, rather than inside the planner

  alike = dict[Hashable, Callable]()  # trials differ in few of their segments

  def rewritten(decisions: PolicyDecisions) -> tuple[Callable, Sequence[jax.ShapeDtypeStruct]]:
    return fn_and_gradient(traced, rewrite(traced, decisions, mark, alike=alike))

  known = {} if compiled is None else compiled

  def sizes_of(compile_fn: CompileFn, decisions: PolicyDecisions) -> TempSizes:
    totals = totals_of(compile_fn(*rewritten(decisions)).memory_analysis())
    return totals["temp_bytes"], totals["host_bytes"]

  def counted_bytes(sizes: TempSizes) -> int:
    return link.counted_bytes(*sizes, baseline_temp_bytes) if link else sizes[0]

  def compiled_bytes(decisions: PolicyDecisions) -> int:
    if decisions not in known:
      known[decisions] = sizes_of(compile_fn, decisions), hlo_share_of()
    return counted_bytes(known[decisions][0])

  whole_bytes_of = whole_fn and (lambda decisions: counted_bytes(sizes_of(whole_fn, decisions)))
  hlo_share_in = lambda decisions: known[decisions][1]

  def space_of(profile: CompiledProfile | None) -> Candidates:
    find = lambda: Candidates(traced, only_scans, profile, link, shards=shards, planner=planner, once=once)
    key = Candidates, only_scans, profile, link, planner, *(shards or {}).items()
    return copy.copy((once or traced.once)(key, find))  # a search may find more, for itself

  def search_in(space: Candidates) -> PolicyPlan[PolicyDecisions]:
    return search(
      space,
      budget_bytes,
      compiled_bytes,
      baseline_temp_bytes,
      max_rounds,
      whole_bytes_of=whole_bytes_of,
      hlo_share_of=hlo_share_in,
      below_flops=below_flops,
      alone=alone,
      wanted_bytes=wanted_bytes,
      after_bytes=after_bytes,
    )

  space = space_of(profile)
  found = search_in(space)
  if found.is_feasible or not (space.is_profiled and found.rounds) or below_flops < math.inf:
    return found
  # What a profile takes to be as large whatever is repeated may come to less.
  rough = space_of(None)
  if min((each.estimated_bytes for each in rough.found if each.is_bare), default=math.inf) > found.smallest_bytes / 2:
    return found
  again = search_in(rough)
  return again if again.smallest_bytes < found.smallest_bytes else found


def search[Decisions: Hashable](
  space: SearchSpace[Decisions],
  budget_bytes: int,
  temp_bytes_of: Callable[[Decisions], int],
  baseline_temp_bytes: int,
  max_rounds: int = 6,
  *,
  whole_bytes_of: Callable[[Decisions], int] | None = None,
  hlo_share_of: Callable[[Decisions], HloEngineShare | None] = lambda _: None,
  below_flops: float = math.inf,
  alone: HloEngineShare | None = None,
  wanted_bytes: float = math.inf,
  after_bytes: int | None = None,
) -> PolicyPlan[Decisions]:
  """The verify-and-replan loop: the least recompute whose compiled temporaries hold the budget.

  Args:
    space: the candidates of one function (`Candidates`), or of all regions of a step (`division.Division`).
    budget_bytes: for the temporaries.
    temp_bytes_of: compiles the program with a candidate's decisions, or makes a draft of it.
    baseline_temp_bytes: compiled temporaries of the program as it is.
    max_rounds: compiles at most; of drafts, before one of what they find.
    whole_bytes_of: compiles what there are drafts of.
    hlo_share_of: what the HLO engine did in a program that was compiled; None where it was not at work.
    below_flops: that a plan at hand repeats: others are only of interest if they repeat less.
    alone: what the HLO engine did to the program as it is, if it was asked.
    wanted_bytes: the budget that was asked for, where this one is of what comes near: drafts may be too large, and what
      they find come to it.
    after_bytes: the budget of a search before this one, whose tries are made first, and tell of others.

  Returns:
    The plan; without decisions if the program fits as it is or nothing can be decided.
  """
  if baseline_temp_bytes <= budget_bytes or not space.found:
    return PolicyPlan.undecided(space, baseline_temp_bytes, is_feasible=baseline_temp_bytes <= budget_bytes)
  are_drafts = whole_bytes_of is not None
  first_bytes = budget_bytes if after_bytes is None else after_bytes
  progress = Progress(space, first_bytes, baseline_temp_bytes, below_flops, are_drafts=are_drafts, alone=alone)

  def try_some(num_rounds: int) -> PolicyPlan[Decisions]:
    rounds_left = num_rounds
    while rounds_left and (candidate := progress.next_candidate(rounds_left)) is not None:
      rounds_left -= not progress.is_twin(candidate)  # another form of the last try
      progress.record(Trial(candidate, temp_bytes_of(candidate.decisions), hlo_share_of(candidate.decisions)))
    # Estimates without a profile may be off by more than is tried.
    more = itertools.chain(progress.hidden(), () if space.is_profiled else progress.nothing_saved())
    for candidate in more:
      progress.record(Trial(candidate, temp_bytes_of(candidate.decisions), hlo_share_of(candidate.decisions)))
    return progress.result()

  found = try_some(max_rounds)
  if after_bytes is not None:
    progress.aim_at(budget_bytes)
    found = try_some(_MORE_ROUNDS)
  if whole_bytes_of is None:
    return found
  whole: dict[Decisions, PolicyPlan[Decisions]] = {}
  while found.rounds and found.decisions not in whole and len(whole) < _MAX_COMPILES:
    temp_bytes = whole_bytes_of(found.decisions)
    whole[found.decisions] = found.compiled(temp_bytes, budget_bytes)
    off_bytes = temp_bytes - found.temp_bytes
    is_feasible = temp_bytes <= budget_bytes
    if off_bytes >= -_DRAFTS_ARE_OFF * budget_bytes if is_feasible else not found.is_feasible:
      break  # nothing better fits, or nothing at all
    progress.aim_at(budget_bytes - off_bytes)
    found = try_some(_MORE_ROUNDS)
  return PolicyPlan.best(list(whole.values()), wanted_bytes) if whole else found
