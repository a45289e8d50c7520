"""Plans functions: chooses how each is carried out, once per program and request, on the module that XLA schedules."""

import dataclasses

from coopjax import compat, contexts, progress
from coopjax.budget import format_bytes
from coopjax.errors import (
  BudgetExceededWarning,
  RematNoEffectWarning,
  warn,
)
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark, Whole
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.placement import Spread
from coopjax.jaxpr.trace import TracedFn, by_gradient, differentiable, fn_and_gradient
from coopjax.memory_profile import MemoryProfile
from coopjax.planning import host_offload, together
from coopjax.planning.assemble import assemble
from coopjax.planning.baseline import Baseline
from coopjax.planning.choice import Choice, Chosen, left_as_it_is
from coopjax.planning.choosing import Case
from coopjax.planning.kept import KeptChoices, key_of
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request, no_hook
from coopjax.program.stopwatch import Stopwatch
from coopjax.xla.compile import compile_abstract, compile_draft
from coopjax.xla.module import HeapResult

_choices = KeptChoices()


def choose(traced: TracedFn, request: Request, *, says_unneeded: bool = True) -> Choice:
  """The choice for this program and request, made once per process, and kept on disk for the next one.

  A program that can't be planned, for one because it has no gradient, is left as it is, with a warning. One whose sizes
  are symbols (`jax.export`) can't be compiled yet: what it is compiled to when they are known, the hook plans.

  Args:
    traced: the function.
    request: what is asked.
    says_unneeded: warns where the function with its gradient is within the budget as it is.
  """
  if request.engine == "auto" and compat.is_in_differentiated_loop():
    request = dataclasses.replace(request, engine="policy")  # no order in a body changes what its loop keeps
  fingerprint, key = fingerprint_of(traced), key_of(traced, request)
  if traced.has_symbolic_sizes:
    return _choose_for_any_size(traced, request, fingerprint)
  if processes := traced.placement.processes:
    choice = _choices.remembered(key) or together.agreed_choice(
      key, processes, lambda: _choose_here(traced, request, fingerprint, key, says_unneeded)
    )
    _choices.remember(key, choice)
  else:
    choice = _choose_here(traced, request, fingerprint, key, says_unneeded)
  if choice.mark is not None:
    platform = compat.hook_platform(request.platform)
    assert platform is not None  # else there would be no mark
    hook.install(platform)
  return choice.held_to(_as_shown)


def _as_shown(whole: Whole) -> Whole | None:
  """What a share is of, for a call in the traces around: the region that it is a part of has to hold that; and where
  they don't show by what the function is differentiated, the program may take less than it does alone by all.
  """
  if contexts.in_region.value:
    return None
  return whole if compat.shows_gradient() else Whole(whole.share)


def _choose_here(
  traced: TracedFn, request: Request, fingerprint: str, key: tuple[str, Request], says_unneeded: bool
) -> Choice:
  """The choice that this process remembers, has kept on disk or makes."""
  is_hooks = request.engine == "hlo" and compat.hook_platform(request.platform) == "cpu"
  try:
    if not is_hooks and (choice := _choices.get(key)):
      return choice
    if is_hooks:
      # There the compiled program takes what the model predicts: the hook, which sees all of it, plans and refuses.
      # Where a gradient is being taken, JAX will say what has none.
      (fn_and_gradient if compat.num_gradients() else differentiable)(traced)
      return Choice(request.mark(fingerprint))
    with _choices.of_errors(key, request), progress.shown(f"planning {traced.name}"):
      chosen = by_gradient(
        traced, lambda fn: choose_anew(fn, Baseline.of(fn, request.device), request, fingerprint, sketches=True)
      )
  except Exception as error:
    return left_as_it_is(traced.name, error, "coopjax.remat")
  outcome, before = chosen.outcome, chosen.before
  # Of what is marked, the hook tells, which sees the whole program; nor is more than a gradient of the function known.
  is_plain = before is not None and chosen.choice == Choice() and request.budget.share is None and says_unneeded
  if before is not None and is_plain and compat.num_gradients() == 1:
    warn_no_effect(traced, before, request.budget.resolve(before.temp_bytes, before.resident_bytes), None)
  is_cut_short = outcome is not None and outcome.is_cut_short
  choice = dataclasses.replace(chosen.choice, alone=chosen.alone)
  if choice.mark is None or choice.decisions is not None:
    choice = _held(choice, request, fingerprint, _whole_of(chosen, request, is_of_all=not traced.placement.is_known))
  _choices.put(key, choice, chosen.holds_budget and not is_cut_short)
  return choice


def _whole_of(chosen: Chosen, request: Request, *, is_of_all: bool) -> Whole | None:
  """What a share is of for which something was chosen."""
  unaided = chosen.before or (chosen.outcome and chosen.outcome.baseline)
  if unaided is None or chosen.choice == Choice():
    return None
  return request.whole(unaided.temp_bytes, unaided.output_bytes, is_of_all=is_of_all)


def _held(choice: Choice, request: Request, fingerprint: str, whole: Whole | None) -> Choice:
  """The choice, with what its program is held to once it is compiled; with a mark, the hook sees to bytes."""
  if choice.mark is None:
    return dataclasses.replace(choice, held=request.held(fingerprint, whole))
  return choice.asking(dataclasses.replace(Mark.from_text(choice.mark), whole=whole))


def plan_function(traced: TracedFn, request: Request, baseline: Baseline) -> RematPlan:
  """Plans a function with its gradient, compiles it with and without the plan, and reads the compiler's numbers."""
  stopwatch = Stopwatch()
  fingerprint = fingerprint_of(traced)
  chosen = choose_anew(traced, baseline, request, fingerprint)
  planning_s = stopwatch.seconds
  choice, outcome, found = chosen.choice, chosen.outcome, chosen.policy_plan
  measured = before = chosen.before or baseline.profile_for(request)
  is_planned = found is not None or (outcome is not None and outcome.module_bytes is not None)
  if is_planned:
    planned = fn_and_gradient(traced, choice.flat_fn(traced))
    compile_fn = compile_draft if request.drafts else compile_abstract
    with hook.outcomes(choice.mark) as made:
      measured = chosen.measured or request.measure(compile_fn(*planned, request.device))
    if found is None and chosen.measured is None:  # what chose may have been a sketch
      assert choice.mark is not None  # of the HLO engine, which is all that is planned
      # None is made of a program that JAX's compilation cache kept.
      outcome = made[-1] if made else hook.plan_module(baseline.module, [Mark.from_text(choice.mark)])
      planning_s += outcome.seconds
  budget_bytes = request.budget.resolve(before.temp_bytes, before.resident_bytes)
  if measured.temp_bytes >= before.temp_bytes:
    warn_no_effect(traced, before, budget_bytes, outcome)
  elif measured.temp_bytes > budget_bytes:
    warn(
      f"the plan for {traced.name} compiles to {request.budget.taken(measured.temp_bytes, budget_bytes)}, over its "
      f"budget of {request.budget.in_words(budget_bytes)}: this backend's buffer assignment differs from the model",
      BudgetExceededWarning,
    )
  return assemble(
    request,
    name=traced.name,
    fingerprint=fingerprint,
    budget_bytes=budget_bytes,
    engine=choice.engine if is_planned else "none",
    spread=Spread(traced.placement.mesh, 1, ()),
    choices=[(traced, choice)],
    outcome=outcome,
    found=found,
    baseline=before,
    measured=measured,
    planning_s=planning_s,
    shards=[chosen.shards],
  )


def _choose_for_any_size(traced: TracedFn, request: Request, fingerprint: str) -> Choice:
  platform = compat.hook_platform(request.platform)
  if request.engine == "policy" or platform is None:
    warn(
      f"coopjax.remat has no effect: {traced.name} is traced for symbolic sizes, for which nothing can be "
      "compiled, and so nothing is known of its memory",
      RematNoEffectWarning,
    )
    return Choice()
  hook.install(platform)
  return Choice(request.mark(fingerprint))


def choose_anew(
  traced: TracedFn,
  baseline: Baseline,
  request: Request,
  fingerprint: str,
  *,
  sketches: bool = False,
) -> Chosen:
  """Plans fn with its gradient on the module that XLA schedules for it, without generating code.

  Args:
    traced: the function.
    baseline: it with its gradient, compiled as it is.
    request: what is asked.
    fingerprint: of the function.
    sketches: only whether the HLO engine reaches the budget matters, because the hook will plan the user's own program.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget and the request says "error".
  """
  request = dataclasses.replace(request, engine=host_offload.engine_for(traced, request.engine, request.platform))
  platform = compat.hook_platform(request.platform)
  if request.engine == "hlo" and platform is None:
    raise no_hook(request.platform)
  case = Case(traced, baseline, request, fingerprint, sketches)
  # What XLA:TPU moves to vector memory after the hook, no mark of a budget can foresee for the user's own program.
  if request.engine == "policy" or platform is None or (request.engine == "auto" and platform == "tpu"):
    return case.choose_by_policy()
  try:
    if platform != "cpu":
      return case.choose_by_compiles(platform)
    hook.install(platform)
    return case.choose_by_module()
  except hook.NothingToPlanError:
    return Chosen(Choice())


def warn_no_effect(
  traced: TracedFn,
  baseline: MemoryProfile | HeapResult,
  budget_bytes: int,
  outcome: hook.Outcome | None,
) -> None:
  """Warns that nothing was changed in the compiled program, and why."""
  if baseline.temp_bytes <= budget_bytes:
    cause = (
      f"{traced.name} and its gradient take {format_bytes(baseline.temp_bytes)} of temporaries, within the budget of "
      f"{format_bytes(budget_bytes)} as they are"
    )
  else:
    cause = outcome.reason if outcome and outcome.reason else "the compiled program takes no less than without it"
  warn(f"the remat of {traced.name} has no effect: {cause}", RematNoEffectWarning)
