"""Plans the policy engine: the least recompute whose compiled temporaries hold the budget.

The candidates (`candidates.Candidates`) carry estimated bytes: from a profile of the compiled function where there is
one (`CompiledProfile`; mostly within a few percent of what will be compiled), else JAX's own, before fusion, which only
order candidates. The compiler's `temp_size_in_bytes` decides, in a handful of compiles (`progress.Progress` says of
which candidates). Where a compiler makes drafts, for a fraction of the work, these find the candidate, and only what
may be taken is compiled whole: it says by how much drafts are off, too.

Known weaknesses: straight segments are not cut inside a user's own checkpoint (put the remat inside it), nor in a
`shard_map` that holds a part of the work alone; inside a jit that a gradient is taken of, it is planned with respect to
every floating argument, and one output less is scratch space less for XLA.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import jax

from coopjax.jaxpr.trace import TracedFn, fn_and_gradient
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.compiled_profile import CompiledProfile
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.offload import HostLink
from coopjax.policy_engine.policy_plan import PolicyPlan
from coopjax.policy_engine.predictions import HloEngineShare, SearchSpace, Trial
from coopjax.policy_engine.progress import Progress
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.shards import Shards
from coopjax.xla.compile import OversizedProgram, temp_bytes_of

_DRAFTED_WITHIN = 0.25  # of the temporaries: drafts that are off by more show little (XLA:TPU's of toys)
_MAX_DRAFTS = 10  # about one compile's work
_ENOUGH_COMPILES = 2  # of drafts, once a plan holds
_MAX_COMPILES = 6  # while none does, or drafts show little
_MORE_DRAFTS = 3  # where a compile showed that drafts tell another story
_OUT_OF_REACH = 1  # bytes: a budget that finds the least that there is
_JUST_MISSED = 1.25  # of a budget

DraftFn = Callable[[Callable, Sequence[jax.ShapeDtypeStruct]], int]
CompileFn = Callable[[Callable, Sequence[jax.ShapeDtypeStruct]], jax.stages.Compiled | OversizedProgram]


def limits(budget_bytes: int, smallest_bytes: Callable[[], int]) -> Iterator[int]:
  """What to search within: the budget and, where it is just missed, the least that there is. So what a budget out of
  reach was told can be reached, is found when it is asked for.

  Args:
    budget_bytes: for the temporaries.
    smallest_bytes: compiled so far.
  """
  yield budget_bytes
  if max(budget_bytes, _OUT_OF_REACH) < smallest_bytes() <= _JUST_MISSED * budget_bytes:
    yield _OUT_OF_REACH


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
  draft_fn: DraftFn | None = None,
  graphs: dict[int | None, ForwardGraph] | None = None,
  compiled: dict[PolicyDecisions, tuple[int, HloEngineShare | None]] | None = None,
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
    shards: from `shards.shards_of`; without, a program that is spread is planned as a whole.
    draft_fn: as `compile_fn`, to temporaries that tell programs apart, for much less work.
    graphs: as for `candidates.Candidates`.
    compiled: trials of other searches in the same program, of which none is compiled twice; added to.

  Returns:
    The plan; without decisions if the function fits as it is or nothing can be decided.

  Raises:
    NotDifferentiableError: no gradient.
  """
  fn_and_gradient(traced)  # raises here, with the function's name, rather than inside the planner

  def rewritten(decisions: PolicyDecisions) -> tuple[Callable, Sequence[jax.ShapeDtypeStruct]]:
    return fn_and_gradient(traced, rewrite(traced, decisions, mark, shares_alike=True))

  known = {} if compiled is None else compiled

  def compiled_bytes(decisions: PolicyDecisions) -> int:
    if decisions not in known:
      known[decisions] = temp_bytes_of(compile_fn(*rewritten(decisions))), hlo_share_of()
    return known[decisions][0]

  space = Candidates(traced, only_scans, profile, link, shards=shards, planner=planner, graphs=graphs)
  return search(
    space,
    budget_bytes,
    compiled_bytes,
    baseline_temp_bytes,
    max_rounds,
    draft_of=draft_fn and (lambda decisions: draft_fn(*rewritten(decisions))),
    hlo_share_of=lambda decisions: known[decisions][1],
    below_flops=below_flops,
  )


def search[Decisions: Hashable](
  space: SearchSpace[Decisions],
  budget_bytes: int,
  temp_bytes_of: Callable[[Decisions], int],
  baseline_temp_bytes: int,
  max_rounds: int = 6,
  *,
  draft_of: Callable[[Decisions], int] | None = None,
  hlo_share_of: Callable[[Decisions], HloEngineShare | None] = lambda _: None,
  below_flops: float = math.inf,
) -> PolicyPlan[Decisions]:
  """The verify-and-replan loop: the least recompute whose compiled temporaries hold the budget.

  Args:
    space: the candidates of one function (`Candidates`), or of all regions of a step (`division.Division`).
    budget_bytes: for the temporaries.
    temp_bytes_of: compiles the program with a candidate's decisions.
    baseline_temp_bytes: compiled temporaries of the program as it is.
    max_rounds: compiles at most, without drafts.
    draft_of: a cheaper compile, whose temporaries are off by much the same for all candidates.
    hlo_share_of: what the HLO engine did in a program that was compiled; None where it was not at work.
    below_flops: that a plan at hand repeats: others are only of interest if they repeat less.

  Returns:
    The plan; without decisions if the program fits as it is or nothing can be decided.
  """
  if baseline_temp_bytes <= budget_bytes or not space.found:
    return PolicyPlan.undecided(space, baseline_temp_bytes, is_feasible=baseline_temp_bytes <= budget_bytes)
  progress = Progress(space, budget_bytes, baseline_temp_bytes, below_flops)
  if draft_of is not None:
    off_bytes = baseline_temp_bytes - draft_of(space.undecided)
    if abs(off_bytes) <= _DRAFTED_WITHIN * baseline_temp_bytes:
      return _search_by_drafts(progress, off_bytes, temp_bytes_of, draft_of)
  for rounds_left in range(max_rounds, 0, -1):
    candidate = progress.next_candidate(rounds_left)
    if candidate is None:
      break
    progress.record(Trial(candidate, temp_bytes_of(candidate.decisions), hlo_share_of(candidate.decisions)))
  for candidate in () if space.is_profiled else progress.nothing_saved():  # estimates may be off by more than is tried
    progress.record(Trial(candidate, temp_bytes_of(candidate.decisions), hlo_share_of(candidate.decisions)))
  return progress.result()


def _search_by_drafts[Decisions: Hashable](
  progress: Progress[Decisions],
  off_bytes: int,
  temp_bytes_of: Callable[[Decisions], int],
  draft_of: Callable[[Decisions], int],
) -> PolicyPlan[Decisions]:
  """Compiles whole what is best by drafts; by how much drafts are off is learned anew from each.

  Two such compiles if one of them holds the budget; a miss does not end the search. Drafts of unlike loops may be off
  by more, each by something else (XLA:TPU's of ragged products): where a compile shows that, what may repeat much less
  is compiled whole, too. So is what most people have, nothing saved, where it repeats less than what is found.
  """
  num_drafts = num_compiled = 0
  while True:
    may_draft = num_drafts < _MAX_DRAFTS and num_compiled < _MAX_COMPILES
    candidate = progress.next_candidate(_MAX_DRAFTS - num_drafts + 1) if may_draft else None
    if candidate is not None:
      progress.record(Trial(candidate, draft_of(candidate.decisions) + off_bytes, None, is_draft=True))
      num_drafts += 1
      continue
    trial, is_shot = progress.to_compile(), False
    if trial is None or (progress.has_plan and num_compiled >= _ENOUGH_COMPILES):
      trial, is_shot = progress.long_shot(), True
    if trial is None or num_compiled >= _MAX_COMPILES:
      for candidate in progress.nothing_saved():
        progress.record(Trial(candidate, temp_bytes_of(candidate.decisions), None))
      return progress.result()
    temp_bytes = temp_bytes_of(trial.candidate.decisions)
    off_bytes += temp_bytes - trial.temp_bytes
    is_near = progress.compiled(trial, temp_bytes)
    if is_shot or not is_near:
      num_drafts = min(num_drafts, _MAX_DRAFTS - _MORE_DRAFTS)
    num_compiled += 1
