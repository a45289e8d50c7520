"""The ways to choose how one function is carried out: on its module alone, by compiles, or by the policy engine."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import warnings
from collections.abc import Callable

import jax
import jax.core

from coopjax import compat
from coopjax.budget import Budget
from coopjax.errors import (
  BudgetExceededWarning,
  CompileMemoryError,
  InvalidProgramError,
  ShardingUnknownWarning,
  log,
  warn,
)
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import marked_fn
from coopjax.jaxpr.trace import TracedFn, fn_and_gradient
from coopjax.memory_profile import MemoryProfile
from coopjax.planning import host_offload
from coopjax.planning.baseline import Baseline
from coopjax.planning.choice import Choice, Chosen
from coopjax.planning.known import known_of
from coopjax.planning.made_once import Results
from coopjax.planning.missed import report_missed
from coopjax.planning.request import Request
from coopjax.planning.trials import Trials, share_of
from coopjax.policy_engine import search
from coopjax.policy_engine.candidates import BY_HAND, Candidates
from coopjax.policy_engine.compiled_profile import CompiledProfile, profile_of, profile_of_module
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.hand_tries import may_do_better
from coopjax.policy_engine.policy_plan import PolicyPlan
from coopjax.policy_engine.predictions import HloEngineShare
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.shards import Shards, shards_of
from coopjax.xla.compile import OversizedProgram, compile_abstract, module_of, temp_bytes_of
from coopjax.xla.module import predict_memory

_COMPILED_ROUNDS = 4  # each compiles for an accelerator
_ASKS_POLICY_ABOVE = 0.5  # of the forward pass repeated by the HLO engine alone: the policy engine is asked, too
_LITTLE = 0.01  # of the forward pass: to repeat so much less is no reason to look outside of loops, too
_ABOUT = 1.35  # of the budget: what is predicted to take that may fit
_NUMBER_BYTES = 64  # that XLA may take for one number
_NEARER = 1.1  # times the least that the policy engine came to: with more effort the HLO engine may come to less
_QUICK_PLANNER = "peak"
_log = logging.getLogger("coopjax.planning")


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
  """What is asked for one function (see `function_plan.choose_anew`), and the ways to answer.

  With `sketches`, the HLO engine's plans are for choosing alone, because the hook will plan the user's own program: a
  fast planner comes first, and efforts are those of trials.
  """

  traced: TracedFn
  baseline: Baseline
  request: Request
  fingerprint: str
  sketches: bool

  def choose_by_module(self) -> Chosen:
    """Plans on the module alone, where the compiled program takes what the model predicts."""
    request, known = self.request, self._known
    module = known.once("module", lambda: self.baseline.module)
    outcome = self._planned_module(module, request.budget, is_sketch=True)
    profile = lambda: known.once("profile", lambda: profile_of_module(self.traced, module))
    by_hand = lambda: self._by_hand(profile())
    is_enough = lambda outcome: outcome.fits and not (request.engine == "auto" and self._repeats_much(outcome, by_hand))
    suffices = is_enough(outcome)
    if not self.sketches and not suffices:  # what repeats little spares compiles
      outcome = self._planned_module(module, request.budget)
      suffices = is_enough(outcome)
    chosen = Chosen(Choice(request.mark(self.fingerprint)), outcome)
    if request.engine == "auto" and not suffices:
      return self.choose_by_policy(outcome, profile=profile(), rival=chosen if outcome.fits else None)
    if not outcome.fits and self.traced.placement.is_known:  # else the hook, which sees one device's program, decides
      self._report_missed(outcome)
    return chosen

  def choose_by_compiles(self, platform: str) -> Chosen:
    """Plans for an accelerator, where the compiled program need not take what the model predicts.

    XLA:TPU moves values into vector memory after the hook. So a share is of what is compiled, and a plan of the HLO
    engine counts if it holds the budget when compiled: the model's limit follows from what that took, in a few rounds.
    """
    request = self.request
    try:
      if request.device is not None:
        request.device.load()
      hook.install(platform)
      module, compiled = self.baseline.observed
      before = request.measure(compiled)
    except hook.NothingToPlanError:
      raise
    except RuntimeError:  # the hook did not run
      if request.engine == "hlo":
        raise
      return self.choose_by_policy()
    budget_bytes = request.budget.resolve(before.temp_bytes, before.resident_bytes)
    if before.temp_bytes <= budget_bytes:  # where a program has more in it, the hook plans, or all of it is planned
      return Chosen(Choice(request.mark(self.fingerprint)) if request.engine == "hlo" else Choice(), before=before)
    try:
      limit_bytes = budget_bytes + max(predict_memory(module).temp_bytes - before.temp_bytes, 0)
    except InvalidProgramError as error:
      if request.engine == "hlo":
        raise InvalidProgramError(f"engine='hlo' can't read the modules of XLA:{platform.upper()}: {error}") from error
      return self.choose_by_policy(before=before)
    profile = functools.cache(lambda: profile_of_module(self.traced, module, before.temp_bytes))
    best: Chosen | None = None
    for _ in range(_COMPILED_ROUNDS):
      # A share stays one where it can: of a program with more in it, the hook takes the share of that.
      limit = request.budget if limit_bytes == budget_bytes else Budget(limit_bytes)
      outcome, mark = self._planned_module(module, limit), request.mark(self.fingerprint, limit)
      measured = self._measure_marked(mark) if outcome.fits or request.engine == "hlo" else None
      if best is None or (measured and measured.temp_bytes < best.temp_bytes):
        best = Chosen(Choice(mark), outcome, before=before, measured=measured)
      if measured and measured.temp_bytes <= budget_bytes:
        if request.engine == "auto" and self._repeats_much(outcome, lambda: self._by_hand(profile())):
          return self.choose_by_policy(outcome, before, profile(), rival=best)
        return best
      if not (measured and outcome.fits):
        break
      excess_bytes = measured.temp_bytes - budget_bytes
      in_proportion = int(limit_bytes * budget_bytes / measured.temp_bytes)
      limit_bytes = max(min(limit_bytes - excess_bytes, in_proportion), 1)
    assert best is not None  # of the first round at least
    if request.engine == "auto":
      return self.choose_by_policy(best.outcome, before, profile())
    report_missed(self.traced, request, budget_bytes, best.temp_bytes, before.temp_bytes, module)
    return best

  def choose_by_policy(
    self,
    outcome: hook.Outcome | None = None,
    before: MemoryProfile | None = None,
    profile: CompiledProfile | None = None,
    rival: Chosen | None = None,
  ) -> Chosen:
    """Plans checkpoint segments; every round is a compile. With an outcome, the HLO engine works under them.

    A rival holds the budget by the HLO engine alone, and is what is chosen if no segments take fewer FLOPs. A share is
    settled here, in bytes: the hook will not see the un-rematerialized program again.
    """
    traced, request, known = self.traced, self.request, self._known
    baseline = before or (outcome and outcome.baseline)
    if baseline is None:
      before, profile = baseline, _ = known.once("as it is", self._as_it_is)
    budget_bytes = request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes)
    if baseline.temp_bytes <= budget_bytes:
      return Chosen(Choice(), outcome, before=before)
    is_known, is_spread = traced.placement.is_known, traced.placement.is_spread
    on_trial = request.for_trials() if before is None else request  # elsewhere a trial's compile is the plan's
    under = None if request.platform == "tpu" else outcome
    limit_bytes = budget_bytes + (self._unasked_bytes(request.budget) if under is None else 0)
    after_bytes = None
    if (after := request.after) is not None and under is None:
      after_bytes = after.resolve(baseline.temp_bytes, baseline.resident_bytes) + self._unasked_bytes(after)
    mark, trial_mark = (under and each.mark(self.fingerprint, Budget(budget_bytes)) for each in (request, on_trial))
    trials = Trials(request, resident_bytes=baseline.resident_bytes, num_examples=self._num_examples)
    found: list[PolicyPlan[PolicyDecisions]] = []
    best, found_with = None, trial_mark
    below_flops = rival.outcome.recompute_flops / self._num_examples if rival and rival.outcome else math.inf
    alone = under and share_of(under, self._num_examples)
    least_bytes = math.inf
    compiled_with = collections.defaultdict[
      str | None, dict[PolicyDecisions, tuple[search.TempSizes, HloEngineShare | None]]
    ](dict)
    compiled_with[None] = known.once("tried", dict)
    link = host_offload.link(request.budget, request.device)
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", BudgetExceededWarning)  # trials may miss the budget
      # Straight-line code of a program that will be partitioned is left to the hook.
      ways = (False,) if not mark else (True, False) if is_known or not is_spread else (True,)
      smallest_bytes = lambda: int(least_bytes) if rival is None else 0
      may_do_better_in_straight_code = lambda plan: may_do_better(
        self._by_hand(profile),
        _ABOUT * limit_bytes,
        baseline.temp_bytes,
        plan.recompute_flops - _LITTLE * plan.forward_flops,
        in_straight_code=True,
      )
      limits = search.limits(limit_bytes, smallest_bytes)
      for within_bytes in limits if request.tells_least else itertools.islice(limits, 1):
        # The least is found, and told, the same whatever was asked.
        of_ways = list[PolicyPlan[PolicyDecisions]]()
        found_with = under and on_trial.mark(self.fingerprint, Budget(within_bytes))
        compiled = compiled_with[found_with]
        compile_trial = functools.partial(trials.compile, mark=found_with)
        for only_scans in ways:
          plan = search.plan_policy(
            traced,
            within_bytes,
            compile_trial,
            baseline.temp_bytes,
            max_rounds=trials.max_rounds,
            mark=found_with,
            only_scans=only_scans,
            profile=profile,
            link=link,
            planner=request.planner,
            hlo_share_of=trials.hlo_share,
            below_flops=min([below_flops, *(each.recompute_flops for each in of_ways if each.is_feasible)]),
            alone=alone,
            shards=self._shards,
            wanted_bytes=limit_bytes,
            after_bytes=after_bytes,
            whole_fn=functools.partial(compile_trial, whole=True) if trials.are_drafts else None,
            compiled=compiled,
            once=known.once,
          )
          of_ways.append(dataclasses.replace(plan, is_feasible=plan.temp_bytes <= limit_bytes))
          if of_ways[-1].is_feasible and not (only_scans and may_do_better_in_straight_code(plan)):
            break
        found += of_ways
        amount = lambda plan: plan.recompute_flops if plan.is_feasible else plan.smallest_bytes
        best_way = min(of_ways, key=lambda plan: (not plan.is_feasible, amount(plan)))
        if within_bytes == search.OUT_OF_REACH:
          ways = (ways[of_ways.index(best_way)],)  # the least is looked for once more in the way that it was found in
        if best_way.smallest_bytes >= least_bytes and within_bytes != search.OUT_OF_REACH:
          continue
        best, least_bytes = best_way, min(plan.smallest_bytes for plan in of_ways)
        if best.rounds and mark != found_with and not (best.is_feasible and found_with == trial_mark):
          # With the mark that the program will have: of all of the effort, for the budget.
          program = fn_and_gradient(traced, rewrite(traced, best.decisions, mark))
          temp_bytes = temp_bytes_of(trials.compile(*program, mark, is_sketch=False))
          shares = compiled[best.decisions][1], trials.hlo_share()
          flops_before, flops = (share.recompute_flops if share else 0.0 for share in shares)
          best = best.compiled(temp_bytes, budget_bytes, flops - flops_before)
        if best.is_feasible:
          break
      assert best is not None  # there is always a limit
      if rival and not (best.is_feasible and best.recompute_flops < below_flops):
        return rival
      if not best.is_feasible and (trials.smallest is None or temp_bytes_of(trials.smallest) > best.smallest_bytes):
        trials.compile(*fn_and_gradient(traced, Choice(trial_mark, best.decisions).flat_fn(traced)), trial_mark)
    if not is_known and (mark or is_spread):
      is_known_best = best.is_feasible or traced.placement.batches or not is_spread
      return self._carry_over(outcome, best if is_known_best else found[0], before)
    if not best.is_feasible:
      if before is None and outcome and outcome.predicted.temp_bytes <= _NEARER * best.smallest_bytes:
        if self.sketches:
          outcome = self._planned_module(self.baseline.module, request.budget)
        # The HLO engine alone comes nearer.
        if outcome.predicted.temp_bytes < best.smallest_bytes:
          if not outcome.fits:
            self._report_missed(outcome)
          return Chosen(Choice(mark), outcome)
      assert trials.smallest is not None  # compiled above at the latest
      smallest_bytes = min(best.smallest_bytes, baseline.temp_bytes)
      module = module_of(trials.smallest)
      report_missed(traced, request, budget_bytes, smallest_bytes, baseline.temp_bytes, module)
      if best.smallest_bytes >= baseline.temp_bytes:  # no checkpoints are better than these
        return Chosen(Choice(), before=before)
    measured = trials.measured(best.temp_bytes) if mark == found_with else None
    return Chosen(Choice(mark, best.decisions), outcome, best, before=before, measured=measured, shards=self._shards)

  def _unasked_bytes(self, budget: Budget) -> int:
    """What a trial may take beyond the user's own program, of which it is not known that somebody reads the loss: what
    `jax.grad` is taken of was refused what checkpoints by hand take, for 52 bytes. A share is of what trials take.
    """
    is_bytes = self.sketches and budget.share is None
    return _NUMBER_BYTES * sum(not aval.shape for aval in self.traced.out_avals) if is_bytes else 0

  @functools.cached_property
  def _known(self) -> Results:
    return known_of(self.traced, self.request)

  def _as_it_is(self) -> tuple[MemoryProfile, CompiledProfile | None]:
    """What the program takes as it is, and which values that are; on a CPU its schedule tells."""
    tagged = None
    if self.request.platform == "cpu" and (platform := compat.hook_platform("cpu")):
      hook.install(platform)
      with contextlib.suppress(hook.NothingToPlanError, InvalidProgramError):
        tagged = OversizedProgram.as_predicted(self.baseline.module)
    tagged = tagged or self.baseline.tagged
    return self.request.measure(tagged), profile_of(self.traced, tagged)

  def _carry_over(
    self, outcome: hook.Outcome | None, found: PolicyPlan[PolicyDecisions], before: MemoryProfile | None
  ) -> Chosen:
    """The choice for a program whose partitioning the trace does not show, from a plan for all devices together.

    One device's program is no larger, so bytes that all hold together each one holds, and what can't be reached here
    may be reached there. A share is carried over in proportion. The hook, if it is at work, has the last word.
    """
    traced, request = self.traced, self.request
    decisions, budget = found.decisions if found.decisions.regions else None, request.budget
    if outcome and decisions and budget.share is not None:
      budget = Budget(share=min(1.0, budget.share * outcome.baseline.temp_bytes / max(found.unaided_bytes, 1)))
    mark = outcome and request.mark(self.fingerprint, budget)
    is_certain = budget.share is not None or not decisions or not traced.placement.is_spread
    if not is_certain:
      warn(
        f"the sharding of {traced.name}'s arguments is not known while it is traced, so the policy engine planned for "
        f"all devices together: {budget} cost more recompute than one device needs. Plan the function or the whole "
        "step for shapes with shardings (coopjax.plan(step, *shapes, budget=...).apply(step)), or use Explicit axes",
        ShardingUnknownWarning,
      )
    return Chosen(Choice(mark, decisions), outcome, found, is_certain, before)

  def _planned_module(self, module: bytes, budget: Budget, *, is_sketch: bool = False) -> hook.Outcome:
    """What the HLO engine makes of the module: by the first planner whose plan fits and is not dear, or by the last."""
    request, outcome = self.request.for_trials() if is_sketch else self.request, None
    for planner in dict.fromkeys((_QUICK_PLANNER, request.planner) if self.sketches else (request.planner,)):
      asked = Mark(budget, planner, request.effort, request.time_limit_s, target=request.speeds.name)
      outcome = hook.plan_module(module, [asked], is_sketch=is_sketch)
      if outcome.fits and not self._is_dear(outcome):
        break
    assert outcome is not None  # there is a planner to try
    return outcome

  @property
  def _is_whole(self) -> bool:
    """Whether nothing says that what runs will be another program, of one device's share."""
    return self.traced.placement.is_known or not self.traced.placement.is_spread

  @property
  def _num_examples(self) -> int:
    """That are planned together, where the trace counts one."""
    return math.prod(batch.num_examples for batch in self.traced.placement.batches)

  @property
  def _num_shares(self) -> float:
    """Of what the trace counts, for which a device's program is planned; less than one share is several examples."""
    return self.traced.placement.num_devices if self.traced.placement.is_known else 1 / self._num_examples

  def _is_dear(self, outcome: hook.Outcome) -> bool:
    """Whether the HLO engine repeats so much that the policy engine, whose compiles say what they take, may do
    better.
    """
    limit_flops = _ASKS_POLICY_ABOVE * cost.jaxpr_flops(self.traced.inlined) / self._num_shares
    return self._is_whole and outcome.recompute_flops > limit_flops

  @property
  def _shards(self) -> dict[int | None, Shards]:
    """How devices share values; empty on one, or where it is not known."""
    return self._known.once("shards", lambda: shards_of(self.traced, Trials(self.request, resident_bytes=0).partition))

  def _by_hand(self, profile: CompiledProfile | None) -> Candidates:
    """What people pick."""
    known, shards = self._known, self._shards
    find = lambda: Candidates(self.traced, False, profile, shards=shards, planner=BY_HAND, once=known.once)
    return known.once(("by hand", profile), find)

  def _repeats_much(self, outcome: hook.Outcome, by_hand: Callable[[], Candidates]) -> bool:
    """Whether the HLO engine's plan is dear, or something that people pick is predicted to fit and to repeat less."""
    if self._is_dear(outcome):
      return True
    if not self._is_whole or not outcome.recompute_flops or outcome.budget_bytes is None:
      return False
    flops = outcome.recompute_flops * (1 if self._shards else self._num_shares)  # of what candidates count
    return may_do_better(by_hand(), _ABOUT * outcome.budget_bytes, outcome.baseline.temp_bytes, flops)

  def _measure_marked(self, mark: str) -> MemoryProfile | None:
    """The program that the HLO engine makes, compiled; None where XLA does not take it."""
    device, program = self.request.device, fn_and_gradient(self.traced, marked_fn(self.traced, mark))
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", BudgetExceededWarning)  # what does not hold the budget is not taken
      try:
        return self.request.measure(compile_abstract(*program, device))
      except (jax.errors.JaxRuntimeError, CompileMemoryError) as error:
        log(_log, logging.INFO, "the HLO engine's program for %s does not compile: %s", self.traced.name, error)
        return None

  def _report_missed(self, outcome: hook.Outcome) -> None:
    """As `report_missed`, of what the HLO engine alone made of the module."""
    assert outcome.budget_bytes is not None  # a planning module is always asked to hold one
    schedule = None if outcome.result is None else outcome.result.schedule
    reached_bytes, unaided_bytes = outcome.predicted.temp_bytes, outcome.baseline.temp_bytes
    missing = outcome.budget_bytes, reached_bytes, unaided_bytes
    report_missed(self.traced, self.request, *missing, self.baseline.module, schedule)
