"""Memory against recompute: what a program takes and costs under a range of budgets, beside what people do by hand."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from coopjax import display, progress
from coopjax.budget import Budget, format_bytes
from coopjax.errors import BudgetExceededWarning, CompileMemoryError, InvalidPlanError, RematNoEffectWarning
from coopjax.memory_profile import MemoryProfile
from coopjax.planning import files, regions
from coopjax.planning.by_hand import DOTS, NO_LAYERS, Checkpointed, per_layer
from coopjax.planning.plannable import Plannable
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.xla import targets
from coopjax.xla.compile import measure

SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08)
COLUMNS = ("", "budget", "temporaries", "predicted", "total", "extra compute", "recomputed", "engine")
SPARE_COLUMNS = "predicted", "total", "recomputed", "engine"  # on a narrow terminal


@dataclasses.dataclass(frozen=True)
class FrontierPoint:
  """One way to run the program.

  Attributes:
    name: the budget as it was given ("50%", "6.00 GiB"), "least" for the smallest that was reached where one was out of
      reach, or what was done by hand ("no remat").
    budget_bytes: temporary bytes allowed; 0 for what was done by hand.
    temp_bytes: compiled temporaries.
    total_bytes: compiled arguments + outputs + temporaries - aliased.
    predicted_bytes: temporaries as the plan's model expects them.
    extra_compute: what is computed once more, over what the program computes without remat, modelled: the plan's
      overhead, and as much of what was done by hand.
    recompute_flops: floating-point operations that one device does once more: the plan's, and as much by hand.
    engine: what carries the plan out; "" for what was done by hand.
    plan: to be applied; None for what was done by hand, and after :meth:`Frontier.from_dict`.
  """

  name: str
  budget_bytes: int
  temp_bytes: int
  total_bytes: int
  predicted_bytes: int
  extra_compute: float
  recompute_flops: float
  engine: str = ""
  plan: RematPlan | None = dataclasses.field(default=None, repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Frontier:
  """What a program takes and costs under a range of budgets.

  Attributes:
    name: of the function.
    target: planned for, None for the default backend.
    points: a plan for each budget that is held, the largest budget first; temporaries only fall and what is computed
      once more only rises.
    references: without remat, and under `jax.checkpoint` in the usual places.
    omitted: budgets out of reach and references that this program does not have, with the reason.
    is_drafted: bytes are those of drafts, see `RematPlan`.
  """

  name: str
  target: str | None
  points: tuple[FrontierPoint, ...]
  references: tuple[FrontierPoint, ...]
  omitted: tuple[tuple[str, str], ...] = ()
  is_drafted: bool = False

  def table(self, width: int = 0) -> str:
    """The points and the references as aligned text, of `width` characters a line (0: as many as it takes)."""
    lines = [display.wrapped(f"{name}: {reason}", width) for name, reason in self.omitted]
    return "\n".join(
      [
        display.wrapped(self._headline(), width),
        "",
        display.text_table(COLUMNS, self._rows(), width, SPARE_COLUMNS),
        *lines,
      ]
    )

  def plot(self, ax: Any = None) -> Any:
    """Temporaries against extra compute: the plans as a line, the references as marks. Returns matplotlib's axes."""
    ax = display.axes(ax, f"{self.name}: memory against recompute")
    at = lambda each: (each.temp_bytes / display.MIB, 100 * each.extra_compute)
    ax.plot(*zip(*map(at, self.points)), "o-", color="tab:blue", label="coopjax")
    names = {at(each): each.name for each in self.points}  # one plan for several budgets: the tightest
    for place, name in names.items():
      ax.annotate(name, place, textcoords="offset points", xytext=(6, 6), fontsize=8)
    for each, marker in zip(self.references, "s^vD", strict=False):
      ax.plot(*at(each), marker, color="tab:orange", label=each.name)
    ax.set(xlabel=f"{self._how_far} temporaries, MiB", ylabel="extra compute, % (modelled)", xlim=(0, None))
    ax.grid(alpha=0.3)
    ax.legend()
    return ax

  def to_dict(self) -> dict[str, Any]:
    """Everything but the plans, ready for JSON."""
    without_plan = lambda point: {name: value for name, value in vars(point).items() if name != "plan"}
    return {
      "coopjax_frontier": 1,
      "name": self.name,
      "target": self.target,
      "points": [without_plan(point) for point in self.points],
      "references": [without_plan(point) for point in self.references],
      "omitted": [list(pair) for pair in self.omitted],
      "is_drafted": self.is_drafted,
    }

  @classmethod
  def from_dict(cls, fields: dict[str, Any]) -> "Frontier":
    """The inverse of :meth:`to_dict`, after JSON; the plans are gone.

    Raises:
      coopjax.InvalidPlanError: something else.
    """
    try:
      if fields["coopjax_frontier"] != 1:
        raise InvalidPlanError(f"a frontier of format {fields['coopjax_frontier']}; this coopjax reads format 1")
      if wrong := files.misfit(cls, fields):
        raise InvalidPlanError(f"a coopjax frontier with a wrong field: {wrong}")
      points, references = (tuple(FrontierPoint(**point) for point in fields[key]) for key in ("points", "references"))
      omitted, is_drafted = tuple(map(tuple, fields["omitted"])), fields.get("is_drafted", False)
      return cls(fields["name"], fields["target"], points, references, omitted, is_drafted)
    except (KeyError, TypeError) as error:
      raise InvalidPlanError(f"not a coopjax frontier: expected what Frontier.to_dict makes ({error})") from error

  def to_frame(self) -> Any:
    """A row a point, the references last, as a ``pandas.DataFrame``."""
    fields = self.to_dict()
    return display.frame([*fields["points"], *fields["references"]])

  def _repr_html_(self) -> str:
    return display.html_table(self._headline(), COLUMNS, self._rows())

  def _headline(self) -> str:
    on = f" on {self.target}" if self.target else ""
    return f"{self.name}{on}: {self._how_far} temporaries against extra compute"

  @property
  def _how_far(self) -> str:
    return "drafted" if self.is_drafted else "compiled"

  def _rows(self) -> list[tuple[str, ...]]:
    return [_row(point) for point in (*self.references, *self.points)]


def frontier(
  fn: Callable,
  *args: Any,
  budgets: Sequence[Any] | None = None,
  planner: str = "auto",
  engine: str = "auto",
  target: str | None = None,
  effort: str = "normal",
  time_limit_s: float | None = None,
  argnums: int | Sequence[int] | None = None,
  existing: str = "replace",
  names_only: bool = False,
  **kwargs: Any,
) -> Frontier:
  """Plans `fn` with its gradient, or a whole step, for several budgets, and compiles each plan.

  The program is traced once, and compiled once without a plan; each budget costs a plan and the compile of that plan.
  Of a step, what several budgets try is compiled once. For a TPU, all of these are drafts: XLA assigns buffers to the
  very program and stops, which takes a few percent of a compile; what it would say of the executable may be up to a
  percent more. A plan for a smaller budget also holds a larger one: where it happens to cost less, it stands for both.

  Args:
    fn: as for :func:`coopjax.plan`.
    *args: its arguments; ``jax.ShapeDtypeStruct`` will do.
    budgets: as for :func:`coopjax.plan`. By default shares from 1 down to the first that no plan reaches. Where one is
      out of reach, the last point is the smallest that was reached.
    planner: as for :func:`coopjax.remat`.
    engine: as for :func:`coopjax.remat`.
    target: as for :func:`coopjax.remat`.
    effort: as for :func:`coopjax.remat`.
    time_limit_s: as for :func:`coopjax.remat`, for each budget.
    argnums: as for :func:`coopjax.plan`.
    existing: as for :func:`coopjax.plan`.
    names_only: as for :func:`coopjax.plan`.
    **kwargs: keyword arguments of ``fn``.

  Returns:
    The points, with bytes from compiled programs, beside those of no remat, of `jax.checkpoint` around all of `fn`, of
    the same with ``dots_with_no_batch_dims_saveable``, and of one around each layer.

  Raises:
    InvalidBudgetError: a budget is not one.
    NotDifferentiableError: ``fn`` has no floating input or output.
    PolicyNamesError: ``names_only`` where names can't be planned.

  Example:
    >>> import jax, jax.numpy as jnp, coopjax
    >>> def loss(weights, x):
    ...   for weight in weights:
    ...     x = jnp.tanh(x @ weight)
    ...   return jnp.mean(x**2)
    >>> found = coopjax.frontier(loss, [jnp.eye(64)] * 8, jnp.ones((512, 64)), budgets=[0.8, 0.6])
    >>> [point.name for point in found.points]
    ['80%', '60%']
    >>> fitted = found.points[1].plan.apply(loss)
  """
  regions.check_existing(existing)
  target = target or targets.of_arguments((args, kwargs))
  requests = [
    Request.checked(
      budget=budget,
      planner=planner,
      engine=engine,
      target=target,
      effort=effort,
      time_limit_s=time_limit_s,
      on_infeasible="best_effort",
      names_only=names_only,
      drafts=True,
    )
    for budget in (SHARES if budgets is None else budgets)
  ]
  if not requests:
    raise ValueError("budgets=[]: at least one budget, or None for shares from 1 down")
  drafts = requests[0].drafts
  program = Plannable.of(fn, args, kwargs, requests[0].device, argnums, existing, drafts=drafts)
  with progress.shown(f"frontier of {program.name}"), warnings.catch_warnings():
    warnings.simplefilter("ignore", BudgetExceededWarning)
    warnings.simplefilter("ignore", RematNoEffectWarning)
    baseline = program.baseline.profile
    requests.sort(key=lambda each: each.budget.resolve(baseline.temp_bytes, baseline.resident_bytes), reverse=True)
    points, unreached = _points(program, requests, stops=budgets is None)
    plain_flops = program.flops_with()
    references, omitted = _references(program.by_gradients or program, baseline, plain_flops)
  points = _undominated(points, plain_flops)
  return Frontier(program.name, requests[0].target, points, references, unreached + omitted, drafts)


def _points(
  program: Plannable,
  requests: Sequence[Request],
  stops: bool,
) -> tuple[list[FrontierPoint], tuple[tuple[str, str], ...]]:
  """The plans that hold their budgets, and the budgets that none holds; with `stops`, only the first of those."""
  points, missed = [], []
  for number, request in enumerate(requests, 1):
    progress.note(f"budget {_name(request.budget)}, {number} of up to {len(requests)}")
    plan = program.plan(request)
    if plan.fits:
      points.append(_point(_name(request.budget), plan))
    else:
      missed.append(plan)
    if missed and stops:
      break
  if missed:
    least_bytes = min(plan.measured.temp_bytes for plan in missed)
    progress.note(f"the least that was reached, {format_bytes(least_bytes)}")
    # A plan of its own: one made for a budget out of reach would be carried out with a warning.
    plan = program.plan(dataclasses.replace(requests[0], budget=Budget(least_bytes)))
    points += [_point("least", plan)] if plan.fits else []
  return points, tuple(
    (_name(plan.budget), f"out of reach, {format_bytes(plan.measured.temp_bytes)} was the least") for plan in missed
  )


def _point(name: str, plan: RematPlan) -> FrontierPoint:
  return FrontierPoint(
    name,
    plan.budget_bytes,
    plan.measured.temp_bytes,
    plan.measured.total_bytes,
    plan.predicted.temp_bytes,
    plan.overhead,
    plan.recompute_flops,
    plan.engine,
    plan,
  )


def _references(
  program: Plannable, baseline: MemoryProfile, plain_flops: float
) -> tuple[tuple[FrontierPoint, ...], tuple[tuple[str, str], ...]]:
  """What is done by hand, and what of it this program does not have, or has already by another name."""
  plain = FrontierPoint("no remat", 0, baseline.temp_bytes, baseline.total_bytes, baseline.temp_bytes, 0.0, 0.0)
  found, omitted, whole = [plain], [], [Checkpointed() for _ in program.functions]
  layers = [
    Checkpointed() if is_layer else per_layer(traced)
    for traced, is_layer in zip(program.functions, program.are_layers, strict=True)
  ]
  for name, choices in (
    ("checkpoint", whole),
    ("dots saveable", [Checkpointed(DOTS) for _ in program.functions]),
    ("checkpoint per layer", layers),
  ):
    progress.note(f"by hand: {name}")
    if not program.functions:
      omitted.append((name, "no remat region to put it on"))
    elif not any(choices):
      omitted.append((name, NO_LAYERS))
    elif name != "checkpoint" and choices == whole:
      omitted.append((name, "as checkpoint: what stands under it are the layers"))
    else:
      try:
        measured = measure(program.compile_with(choices), program.target)
      except CompileMemoryError as error:
        omitted.append((name, str(error)))
        continue
      flops = program.flops_with(choices) - plain_flops
      bytes_of = measured.temp_bytes, measured.total_bytes, measured.temp_bytes
      found.append(FrontierPoint(name, 0, *bytes_of, flops / max(plain_flops, 1.0), flops))
  return tuple(found), tuple(omitted)


def _undominated(points: list[FrontierPoint], plain_flops: float) -> tuple[FrontierPoint, ...]:
  """For each budget the plan, of all, that holds it, or comes as near as its own, and computes the least once more."""

  def extra(point: FrontierPoint) -> float:
    # The HLO engine's overhead is of seconds, with memory traffic in them; the other's has waiting for the host in it.
    return point.extra_compute if "policy" in point.engine else point.recompute_flops / max(plain_flops, 1.0)

  found = []
  for point in points:
    held = [other for other in points if other.temp_bytes <= max(point.budget_bytes, point.temp_bytes)]
    best = min(held, key=lambda other: (extra(other), other.temp_bytes))
    found.append(dataclasses.replace(best, name=point.name, budget_bytes=point.budget_bytes))
  return tuple(found)


def _name(budget: Budget) -> str:
  if budget.share is not None:
    return f"{100 * budget.share:.4g}%"
  assert budget.limit_bytes is not None  # one of the two is given, see `Budget`
  return format_bytes(budget.limit_bytes) + (" in total" if budget.is_total else "")


def _row(point: FrontierPoint) -> tuple[str, ...]:
  return (
    point.name,
    format_bytes(point.budget_bytes) if point.budget_bytes else "",
    format_bytes(point.temp_bytes),
    format_bytes(point.predicted_bytes),
    format_bytes(point.total_bytes),
    f"{point.extra_compute:+.2%}",
    f"{point.recompute_flops:.3g} FLOP",
    point.engine,
  )
