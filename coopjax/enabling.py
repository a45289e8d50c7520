"""Every program of the process through the HLO engine, and steps under `jax.checkpoint` planned, in code as it is."""

from typing import Any

import jax

from coopjax import compat, contexts, launching
from coopjax.budget import Budget, BudgetLike
from coopjax.errors import RematNoEffectWarning, warn
from coopjax.hlo_engine import hook
from coopjax.planners.base import get_planner
from coopjax.planners.effort import check_effort, check_fuse
from coopjax.planning import following, regions
from coopjax.planning.remat_plan import RematPlan
from coopjax.xla import standing, targets
from coopjax.xla.device_budget import allowed


class Enabled:
  """What `enable` returns; as a context manager it brings back the former state at its end."""

  def __init__(self, former: standing.Standing | None, former_plan: Any):
    self._former, self._former_plan = former, former_plan

  def __enter__(self) -> "Enabled":
    return self

  def __exit__(self, *_) -> None:
    _change(self._former)
    contexts.directions.set_global(self._former_plan)


def _change(asked: standing.Standing | None) -> None:
  """Of every program, and of the steps that are jitted from now on."""
  standing.change(asked)
  launching.steps_of_process.settle()


def enable(
  budget: BudgetLike | None = None,
  *,
  planner: str = "auto",
  effort: str = "fast",
  time_limit_s: float | None = None,
  existing: str = "replace",
  plan: RematPlan | None = None,
) -> Enabled:
  """Plans every program that this process compiles from now on; no code has to change.

  XLA fuses and lays out a program, then schedules it, mostly for speed. Right after that, a hook gets the program and
  gives its instructions another order, in which fewer bytes are live at the peak: the gradient of a weight, say, runs
  where its activation can go, not at the end. Nothing is computed twice or otherwise, so results have the same bits.

  With a budget, programs whose temporary memory would still exceed it recompute some of it, too, as little as
  possible, by clones of compiled instructions: again with the same bits. A program that can't be brought within the
  budget is compiled at the smallest memory found, with a `BudgetExceededWarning`.

  A training step that is jitted from then on and has layers under ``jax.checkpoint`` (Flax's and Equinox's are that,
  too) is planned when it is first called, lowered or traced, as :func:`coopjax.plan` plans it: on what stands under its
  checkpoints, in place of what they say, so it repeats no more than the budget asks for, and nothing that fits. So is
  any other step that the clones leave over the budget, when it is compiled: what a loop keeps for its gradient, no
  order of instructions spares. Results then agree within rounding. It takes a few more compiles; ``existing="keep"``
  leaves steps and their checkpoints alone.

  A `coopjax.remat` inside a program has its own budget: it goes before this one, the strictest of several first. What
  the hook can't read or can't prove safe is compiled as it came. Programs with less than 64 KiB of temporaries keep
  their order, and cost less than a millisecond.

  One line per program (module, bytes before and after, what was done or why nothing was) goes to the logger
  ``coopjax.hook`` at INFO. It obeys ``JAX_LOGGING_LEVEL=INFO`` as JAX's own loggers do. A program that comes from the
  persistent compilation cache has no line: its plan was made when it was put there. The keys of JAX's caches tell
  programs apart by what was enabled when they were compiled: jitted functions that ran before ``enable`` are compiled
  anew at their next call, and go back to what they were after `disable`.

  A plan of a step (``RematPlan.load`` of one that another process has made) is carried out in the code as it is: where
  remat regions of the plan, under ``jax.checkpoint`` or :func:`coopjax.remat`, are differentiated, they do as the plan
  says, in place of their own policies and budgets. One that is differentiated and not in the plan is an error; what is
  only evaluated is left alone. The step's arguments are not seen here: ``plan.apply`` checks their shardings, too.

  Args:
    budget: None to change the order alone; else temporary memory of each program on one device: bytes, a size
      ("6GiB"), a share of each program's own temporaries, or a `Budget`. ``"device"`` is what the device has (on a CPU,
      the machine) less the program's arguments and results; other arrays that the process keeps there don't count.
      ``"fits"`` is the same less a reserve for what XLA does not count. For hardware that is not there neither is
      known, and only the order is changed.
    planner: "auto", or any of `coopjax.plan`'s.
    effort: as for `coopjax.remat`, for each program.
    time_limit_s: a fuse, as for `coopjax.remat`, for each program.
    existing: with a budget, what becomes of training steps and their ``jax.checkpoint``s, as for :func:`coopjax.plan`:
      ``"replace"``, ``"at_least"`` or ``"keep"``.
    plan: of a step, from :func:`coopjax.plan`, in place of all these.

  Returns:
    A handle for ``with coopjax.enable():``, at whose end the former state returns. The state is the process's, threads
    included. What is not entered holds until `disable`.

  Raises:
    InvalidBudgetError: the budget is none.
    ValueError: there is no such planner, effort or `existing`, or the time limit is none.
    NoRegionsError: the plan has no remat regions to be known by; use ``plan.apply``.
    PlanMismatchError: when a region is traced that is differentiated and not in the plan.

  Limits: GPUs and TPUs need JAX 0.12; a compiler for absent hardware must be loaded before. What `coopjax.plan` and
  `coopjax.remat` compile while they plan is not touched. Of a step that was jitted before, or by code that had imported
  the bare name ``jit`` before, the checkpoints are decided on only where it is over the budget; not at all where its
  gradient is taken outside of the ``jax.jit``, or it has a `coopjax.remat`, too. A step on devices of several processes
  is not planned in its compile. What planning can't do is a `RematNoEffectWarning`, and the step runs as it is.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> def loss(weights, x):
    ...   for weight in weights:
    ...     x = jnp.tanh(x @ weight)
    ...   return jnp.mean(x**2)
    >>> shapes = [jax.ShapeDtypeStruct((64, 64), "float32")] * 8, jax.ShapeDtypeStruct((512, 64), "float32")
    >>> def temporaries():
    ...   return jax.jit(jax.grad(loss)).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    >>> alone = temporaries()
    >>> with enable("600 KiB"):
    ...   fitted = temporaries()
    >>> fitted <= 600 * 1024 < alone == temporaries()
    True
  """
  if plan is not None:
    if budget is not None:
      raise TypeError("give enable either budget= or plan=, not both: a plan carries its budget")
    former = Enabled(standing.current(), contexts.directions.value)
    contexts.directions.set_global(following.standing_directions(plan))
    return former
  get_planner(planner)
  check_effort(effort)
  check_fuse(time_limit_s)
  regions.check_existing(existing)
  if not (budget is None or (isinstance(budget, str) and budget == standing.DEVICE)):
    budget = Budget.parse(budget)
    if not budget.fits:
      budget = allowed(budget, targets.running())
  platforms = compat.loaded_hook_platforms()
  for platform in platforms:
    hook.install(platform)
  if compat.hook_platform(jax.default_backend()) not in platforms:
    warn(
      f"coopjax.enable changes no compiled module on {jax.default_backend()}: JAX {jax.__version__} has no hook there",
      RematNoEffectWarning,
    )
  former = Enabled(standing.current(), contexts.directions.value)
  _change(standing.Standing(budget, planner, effort, time_limit_s, existing))
  return former


def disable() -> None:
  """Ends what `enable` began, a plan, too: programs compiled from now on are XLA's own, but for `coopjax.remat`s marks.

  Programs that were compiled while it was enabled stay in JAX's caches for the next time.

  Example:
    >>> _ = enable()
    >>> disable()
  """
  _change(None)
  contexts.directions.set_global(None)
