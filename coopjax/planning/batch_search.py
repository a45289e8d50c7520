"""What fits: the largest batch that a device takes, and the one with the most examples a second, each with its plan."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from coopjax import display, progress
from coopjax.budget import Budget, BudgetLike, format_bytes
from coopjax.errors import BudgetExceededWarning, BudgetInfeasibleError, CompileMemoryError, RematNoEffectWarning
from coopjax.planning import following
from coopjax.planning.plannable import Plannable
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.xla import targets

COLUMNS = "batch", "microbatches", "arguments", "in total", "extra compute", "examples a second", "engine"
SPARE_COLUMNS = "arguments", "engine", "microbatches"  # on a narrow terminal
_MOST_DOUBLINGS = 24
_FINENESS = 8  # the largest batch is found to this part of it


@dataclasses.dataclass(frozen=True)
class BatchPoint:
  """A step with one batch.

  Attributes:
    batch: examples in all.
    microbatches: that its gradients are accumulated over.
    plan: that holds the budget at the least recompute; None where none does.
    reason: why there is none.
  """

  batch: int
  microbatches: int
  plan: RematPlan | None = dataclasses.field(repr=False)
  reason: str = ""

  @property
  def name(self) -> str:
    """The batch in words."""
    return _named(self.batch, self.microbatches)

  @property
  def seconds(self) -> float | None:
    """One step, modelled: what its instructions take one after the other. None without a plan, or where they can't be
    read.
    """
    return (self.plan and self.plan.measured.modelled_s) or None

  @property
  def examples_per_s(self) -> float | None:
    """As modelled."""
    return self.seconds and self.batch / self.seconds

  @property
  def is_drafted(self) -> bool:
    """The plan was not compiled to the end."""
    return self.plan is not None and self.plan.is_drafted

  def row(self) -> tuple[str, ...]:
    """Of the table; of a batch that a plan holds."""
    assert self.plan is not None
    measured, rate = self.plan.measured, self.examples_per_s
    return (
      f"{self.batch:,}",
      str(self.microbatches),
      format_bytes(measured.argument_bytes),
      format_bytes(measured.total_bytes),
      f"{self.plan.overhead:+.2%}",
      f"{rate:,.4g}" if rate else "",
      self.plan.engine,
    )


@dataclasses.dataclass(frozen=True)
class Fit:
  """The batches of a step that were tried, in the order in which they were.

  Attributes:
    name: of the step.
    target: planned for, None for the default backend.
    budget: in bytes, unless it is a share; of "fits" what the device leaves.
    points: what was found.
  """

  name: str
  target: str | None
  budget: Budget
  points: tuple[BatchPoint, ...]

  @property
  def largest(self) -> BatchPoint | None:
    """The largest batch that a plan holds, at the least modelled time; None where none does."""
    held = [point for point in self.points if point.plan is not None]
    return max(held, key=lambda point: (point.batch, _rate(point)), default=None)

  @property
  def fastest(self) -> BatchPoint | None:
    """The batch with the most examples a second, modelled; None where none is held or none can be modelled."""
    return max((point for point in self.points if point.examples_per_s), key=_rate, default=None)

  def table(self, width: int = 0) -> str:
    """What fits as aligned text, of `width` characters a line (0: as many as it takes), why the rest does not, and
    which are the largest and the fastest.
    """
    on, points = f" on {self.target}" if self.target else "", sorted(self.points, key=_size)
    of = "" if self.budget.is_total or self.budget.share is not None else " of temporaries"
    lines = [f"{self.name}{on}: what fits in {self.budget}{of}", ""]
    lines += [f"{point.name}: {point.reason}" for point in points if point.plan is None]
    for what, point in (("largest", self.largest), ("fastest, modelled", self.fastest)):
      lines.append(f"{what}: {point.name if point else 'none'}")
    lines = [display.wrapped(line, width) for line in lines]
    if rows := [point.row() for point in points if point.plan is not None]:
      lines.insert(2, display.text_table(COLUMNS, rows, width, SPARE_COLUMNS))
    return "\n".join(lines)

  def to_dict(self) -> dict[str, Any]:
    """Everything but the plans, ready for JSON."""
    return {
      "name": self.name,
      "target": self.target,
      "budget": dataclasses.asdict(self.budget),
      "points": [
        {
          "batch": point.batch,
          "microbatches": point.microbatches,
          "fits": point.plan is not None,
          "temp_bytes": point.plan and point.plan.measured.temp_bytes,
          "total_bytes": point.plan and point.plan.measured.total_bytes,
          "overhead": point.plan and point.plan.overhead,
          "examples_per_s": point.examples_per_s,
          "reason": point.reason,
        }
        for point in self.points
      ],
      "largest": self.largest and [self.largest.batch, self.largest.microbatches],
      "fastest": self.fastest and [self.fastest.batch, self.fastest.microbatches],
    }


def fit(
  step: Callable,
  args_for_batch: Callable[..., Any],
  *,
  batches: Iterable[int] | None = None,
  microbatches: Iterable[int] = (1,),
  unit: int = 1,
  budget: BudgetLike = "fits",
  planner: str = "auto",
  engine: str = "auto",
  target: str | None = None,
  effort: str = "normal",
  existing: str = "replace",
) -> Fit:
  """The largest batch of a step that a device takes, and the fastest, each with the plan that holds it.

  A larger batch keeps a device busier and leaves less memory, so more is recomputed: each batch is planned, compiled
  and modelled; for a TPU drafted (see `RematPlan.is_drafted`), and of the drafts the largest and the fastest compiled.
  Gradients accumulated over microbatches trade memory for launches instead; with several numbers of them, all are
  tried.

  Args:
    step: as for :func:`coopjax.plan`.
    args_for_batch: from a number of examples to the step's arguments, a tuple of arrays or ``jax.ShapeDtypeStruct``;
      with `microbatches`, from that and their number.
    batches: to try; by default multiples of `unit` that some number of microbatches divides, twice as large each time
      until none fits, and between the last two to an eighth.
    microbatches: numbers of them, each tried with the batches that it divides.
    unit: that all batches are multiples of: what a mesh shares evenly.
    budget: as for :func:`coopjax.plan`; by default what fits the device.
    planner: as for :func:`coopjax.plan`.
    engine: same.
    target: same.
    effort: same.
    existing: same.

  Returns:
    A `Fit`. A batch that nothing holds is a point without a plan, with the reason.

  Raises:
    InvalidBudgetError: the budget is none.
    ValueError: a number is not positive, a batch can't be cut into any of the numbers of microbatches, or the arguments
      do not depend on the batch.

  Example:
    >>> import jax, jax.numpy as jnp, coopjax
    >>> def loss(weights, x):
    ...   for weight in weights:
    ...     x = jnp.tanh(x @ weight)
    ...   return jnp.mean(x**2)
    >>> args = lambda batch: ([jnp.eye(64)] * 8, jax.ShapeDtypeStruct((batch, 64), "float32"))
    >>> found = coopjax.fit(loss, args, batches=[256, 512, 4096], budget="600 KiB")
    >>> found.largest.batch
    512
    >>> fitted = found.largest.plan.apply(loss)
  """
  counts, asked = tuple(microbatches), None if batches is None else tuple(batches)
  for number in (unit, *counts, *(asked or ())):
    if number < 1:
      raise ValueError(f"{number}: batches and microbatches are counted from 1")
  if not counts:
    raise ValueError("microbatches=[]: at least one number of them, 1 for none")
  if uncut := [batch for batch in asked or () if all(batch % count for count in counts)]:
    raise ValueError(f"batches={uncut}: none of microbatches={list(counts)} divides them, so there is nothing to try")
  tried = _Tried(
    step,
    args_for_batch,
    counts,
    lambda arguments: Request.checked(
      budget=budget,
      planner=planner,
      engine=engine,
      target=target or targets.of_arguments(arguments),
      effort=effort,
      time_limit_s=None,
      on_infeasible="error",
      drafts=True,
    ),
    existing,
  )
  name = getattr(step, "__name__", type(step).__name__)
  with progress.shown(f"what fits of {name}"), warnings.catch_warnings():
    warnings.simplefilter("ignore", RematNoEffectWarning)
    warnings.simplefilter("ignore", BudgetExceededWarning)  # such a batch is a point without a plan
    for batch in _doubled(tried, min(math.lcm(unit, count) for count in counts)) if asked is None else asked:
      tried.holds(batch)
    found = Fit(name, tried.target, tried.budget or Budget.parse(budget), tuple(tried.points))
    while drafted := next((point for point in (found.largest, found.fastest) if point and point.is_drafted), None):
      compiled = tried.compiled(drafted)
      points = tuple(compiled if point is drafted else point for point in found.points)
      found = dataclasses.replace(found, points=points)
  return found


class _Tried:
  """Plans batches, and remembers what came of it."""

  def __init__(
    self,
    step: Callable,
    args_for_batch: Callable[..., Any],
    microbatches: Sequence[int],
    request_for: Callable[[Any], Request],
    existing: str,
  ):
    self._step, self._args_for_batch, self._microbatches = step, args_for_batch, microbatches
    self._request_for, self._existing = request_for, existing
    self._kinds: dict[Any, tuple[int, int]] = {}  # of arguments
    self._held: dict[int, bool] = {}
    self._made: dict[tuple[int, int], tuple[Plannable, Request]] = {}  # by batch and microbatches
    self.points: list[BatchPoint] = []
    self.target: str | None = None
    self.budget: Budget | None = None

  def holds(self, batch: int) -> bool:
    """Whether a plan holds the batch, in some number of microbatches; planned once."""
    if batch not in self._held:
      counts = [count for count in self._microbatches if batch % count == 0]
      points = [self._planned(batch, count) for count in counts]
      self.points += points
      self._held[batch] = any(point.plan is not None for point in points)
    return self._held[batch]

  def _planned(self, batch: int, count: int) -> BatchPoint:
    progress.note(_named(batch, count))
    made = self._args_for_batch(batch) if self._microbatches == (1,) else self._args_for_batch(batch, count)
    arguments = tuple(made) if isinstance(made, tuple | list) else (made,)
    kind = jax.tree.structure(arguments), tuple(map(str, map(jax.typeof, jax.tree.leaves(arguments))))
    if (other := self._kinds.setdefault(kind, (batch, count))) != (batch, count):
      raise ValueError(f"the arguments for {(batch, count)}, batch and microbatches, are those for {other}")
    request = self._request_for(arguments)
    self.target, self.budget = request.target, request.budget
    try:
      program = Plannable.of(self._step, arguments, {}, request.device, None, self._existing, drafts=request.drafts)
      plan = program.plan(request)
    except BudgetInfeasibleError as error:
      counted = "in total" if request.budget.is_total else "of temporaries"
      return BatchPoint(batch, count, None, f"needs {format_bytes(error.smallest_bytes)} {counted}")
    except CompileMemoryError as error:
      return BatchPoint(batch, count, None, str(error).partition("\n")[0])
    self._made[batch, count] = program, request
    return _point(batch, count, plan)

  def compiled(self, point: BatchPoint) -> BatchPoint:
    """A point whose plan was drafted, with the plan compiled: that may show that it does not hold the batch."""
    progress.note(f"compiling the plan for {point.name}")
    program, request = self._made[point.batch, point.microbatches]
    assert point.plan is not None  # which was drafted
    measured = request.measure(program.as_of(point.plan).compile_with(following.choices_of(point.plan), whole=True))
    plan = dataclasses.replace(point.plan, measured=measured, is_drafted=False)
    return _point(point.batch, point.microbatches, plan)


def _named(batch: int, microbatches: int) -> str:
  return f"a batch of {batch:,}" + (f" over {microbatches} microbatches" if microbatches > 1 else "")


def _point(batch: int, microbatches: int, plan: RematPlan) -> BatchPoint:
  reason = "" if plan.fits else "the plan takes more when compiled"
  return BatchPoint(batch, microbatches, plan if plan.fits else None, reason)


def _doubled(tried: _Tried, unit: int) -> Iterator[int]:
  """Batches, each made when what came of those before is known."""
  least, most = 0, unit
  for _ in range(_MOST_DOUBLINGS):
    yield most
    if not tried.holds(most):
      break
    least, most = most, 2 * most
  while most - least > max(unit, least // _FINENESS):
    middle = (least + most) // 2 // unit * unit
    if middle in (least, most):
      return
    yield middle
    least, most = (middle, most) if tried.holds(middle) else (least, middle)


def _rate(point: BatchPoint) -> float:
  return point.examples_per_s or 0.0


def _size(point: BatchPoint) -> tuple[int, int]:
  return point.batch, point.microbatches
