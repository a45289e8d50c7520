"""Functions that stand many times in one program, each under a budget of its own: the blocks of a model.

What a block costs the program around it is what every call of it *keeps*: bytes from its forward to its backward pass.
Its workspace is there once, however many blocks there are. So a block's budget bounds what a call keeps, beyond its
arguments. A ``jax.checkpoint`` around the block keeps nothing; here, values are saved by name in it, those that spare
the most FLOPs per byte, as far as the budget goes (`segments.save_curve`).

Weaknesses: the block is recomputed in one piece, so its residuals are there at once while it is differentiated (give
the checkpoint to smaller blocks); a loop inside is repeated as a whole; bytes are those of JAX's types, before padding.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

from coopjax import compat
from coopjax.budget import Budget, format_bytes
from coopjax.errors import HostOffloadError, InvalidBudgetError, RematNoEffectWarning, warn
from coopjax.hlo_engine import hook
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.trace import TracedFn, fn_and_gradient
from coopjax.planning import regions
from coopjax.planning.choice import Choice, left_as_it_is
from coopjax.planning.kept import KeptChoices, program_key
from coopjax.planning.request import Request, no_hook
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.residuals import graph_of
from coopjax.policy_engine.save_curves import save_curve

ENGINES = ("policy", "hlo")
_choices = KeptChoices()


def block_remat(
  *, budget: Any, engine: str, planner: str, effort: str, time_limit_s: float | None
) -> Callable[[Callable], Callable]:
  """A decorator for functions of pytrees that are called many times in one program.

  Args:
    budget: with the policy engine, what one call keeps for its backward pass: bytes, a size, 0, or a float in (0, 1] as
      a share of what it keeps without remat. With the HLO engine, temporaries of the program around, as for
      `coopjax.remat`.
    engine: ``"policy"`` or ``"hlo"``.
    planner: of the HLO engine; the policy engine has one way to plan a block.
    effort: how much the HLO engine may search.
    time_limit_s: its fuse.

  Raises:
    InvalidBudgetError: the budget is not one, or is a total with the policy engine.
    HostOffloadError: the budget allows offload.
    ValueError: an engine or planner that is none.
  """
  if engine not in ENGINES:
    raise ValueError(f"engine={engine!r}: one of {', '.join(ENGINES)}; a block is not planned by both")
  if engine == "policy" and planner != "auto":
    raise ValueError(f"planner={planner!r}: a block's saved values are found in one way; planners are for engine='hlo'")
  is_nothing = engine == "policy" and isinstance(budget, int) and not isinstance(budget, bool) and budget == 0
  budget = Budget(limit_bytes=0) if is_nothing else Budget.parse(budget)
  if budget.offload:
    raise HostOffloadError(
      f"budget={budget}: a block's budget is what a call keeps, and nothing of it is offloaded; "
      "use coopjax.remat around the function that is differentiated"
    )
  if budget.is_total and engine == "policy":
    raise InvalidBudgetError(
      f"budget={budget}: a total is of a program, not of a block in it; use engine='hlo' or coopjax.plan"
    )
  request = Request.checked(
    budget=budget,
    planner=planner,
    engine=engine,
    target=None,
    effort=effort,
    time_limit_s=time_limit_s,
    on_infeasible="best_effort",
  )
  if engine == "hlo" and compat.hook_platform(jax.default_backend()) is None:
    raise no_hook(jax.default_backend())
  return functools.partial(regions.region, choose=functools.partial(_choose, request=request))


def _choose(traced: TracedFn, request: Request) -> Choice:
  """The choice for this program and request, made once per process: equal blocks are planned once."""
  traced = traced.in_all_places()
  key = f"block {program_key(traced)}", request
  if choice := _choices.get(key):
    return choice
  try:
    choice = choose_anew(traced, request, fingerprint_of(traced))
  except Exception as error:
    return left_as_it_is(traced.name, error, "coopjax")
  _choices.put(key, choice, holds_budget=False)  # nothing was compiled: not worth a place on the disk
  return choice


def choose_anew(traced: TracedFn, request: Request, fingerprint: str) -> Choice:
  """What a block saves within its budget, or the mark that hands it to the HLO engine.

  Raises:
    NotDifferentiableError: nothing to differentiate.
  """
  fn_and_gradient(traced)  # raises if there is no gradient
  if request.engine == "hlo":
    platform = compat.hook_platform(jax.default_backend())
    assert platform is not None  # checked with the request
    hook.install(platform)
    return Choice(request.mark(fingerprint))
  graph = graph_of(traced)
  kept_bytes = int(graph.residual_bytes().sum())
  budget_bytes = request.budget.resolve(kept_bytes)
  if budget_bytes >= kept_bytes:
    if request.budget.share is None and budget_bytes > kept_bytes:
      warn(
        f"the remat of {traced.name} has no effect: a call keeps {format_bytes(kept_bytes)} for its backward pass, "
        f"within the budget of {format_bytes(budget_bytes)} as it is",
        RematNoEffectWarning,
      )
    return Choice()
  curve = save_curve(graph, 0, graph.num_positions)
  best = [point for point in curve if point.saved_bytes <= budget_bytes][-1]
  segment = Segment(0, graph.num_positions, True, best.saved)
  return Choice(decisions=PolicyDecisions((Region(None, (segment,)),)))
