"""The result of planning: what to keep, what to recompute, what it costs, and the compiler's own numbers."""

import dataclasses
import json
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from coopjax.budget import Budget, format_bytes
from coopjax.errors import InvalidPlanError

FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class MemoryProfile:
  """Memory of one program on one device, in bytes.

  Attributes:
    temp_bytes: temporaries: residuals, workspace and fragmentation (``temp_size_in_bytes``).
    argument_bytes: arguments.
    output_bytes: outputs.
    alias_bytes: output bytes that live in donated arguments.
    peak_live_bytes: most temporary bytes live at one step, before packing.
    live_bytes: live temporary bytes at each step of the schedule.
  """

  temp_bytes: int
  argument_bytes: int = 0
  output_bytes: int = 0
  alias_bytes: int = 0
  peak_live_bytes: int = 0
  live_bytes: tuple[int, ...] = dataclasses.field(default=(), repr=False)

  @property
  def resident_bytes(self) -> int:
    """Arguments + outputs - aliased: what is there before and after the step."""
    return self.argument_bytes + self.output_bytes - self.alias_bytes

  @property
  def total_bytes(self) -> int:
    """Arguments + outputs + temporaries - aliased."""
    return self.resident_bytes + self.temp_bytes

  @property
  def fragmentation(self) -> float:
    """``(heap size - peak live) / heap size`` of the temporaries; negative where XLA reuses output buffers."""
    return (self.temp_bytes - self.peak_live_bytes) / self.temp_bytes if self.temp_bytes else 0.0


@dataclasses.dataclass(frozen=True)
class Decision:
  """What happens to one value.

  Attributes:
    value: name of the op that makes it, and which of its outputs.
    type: dtype and shape.
    source: the user's ``file:line``, or "".
    scope: name-scope path, or "".
    num_bytes: size of its buffer.
    decision: "saved" or "recomputed".
    times: how often it is recomputed.
    cost_s: modelled seconds of one run of the op that makes it.
  """

  value: str
  type: str
  source: str
  scope: str
  num_bytes: int
  decision: str
  times: int
  cost_s: float


@dataclasses.dataclass(frozen=True)
class RematPlan:
  """A plan for one program and one budget; frozen, JSON, versioned.

  ``baseline`` and ``measured`` are the compiler's numbers (buffer assignment of a compiled
  executable); ``predicted`` and ``overhead`` are modelled.

  Attributes:
    name: name of the function planned.
    budget: the budget asked for.
    budget_bytes: temporary bytes that it allows this program.
    planner: what made the plan.
    engine: what carries it out: "hlo", "policy", "policy+hlo", or "none" if the program fits as it is.
    target: target planned for, None for the default backend.
    fingerprint: hash of the traced program; :meth:`apply` checks it.
    baseline: memory of the program without remat.
    predicted: memory that the model expects of the plan.
    measured: memory of the compiled plan.
    overhead: recompute cost over baseline cost, modelled.
    recompute_flops: floating-point operations added, modelled.
    least_overhead: overhead that no schedule of the program's instructions avoids with the live bytes that this one was
      allowed, modelled; 0 where the policy engine changed the instructions.
    lower_bound_bytes: peak live bytes that no schedule of the program's instructions goes below; 0 where the policy
      engine changed the instructions.
    decisions: one per value that was recomputed or that is kept across the peak, largest first.
    policy: the policy engine's decisions, or None.
    rounds: trace of the verify-and-replan loop, one line each.
    planning_s: seconds spent planning, compiles excluded.
  """

  name: str
  budget: Budget
  budget_bytes: int
  planner: str
  engine: str
  target: str | None
  fingerprint: str
  baseline: MemoryProfile
  predicted: MemoryProfile
  measured: MemoryProfile
  overhead: float
  recompute_flops: float
  lower_bound_bytes: int
  decisions: tuple[Decision, ...] = dataclasses.field(repr=False)
  policy: Any = dataclasses.field(default=None, repr=False)
  rounds: tuple[str, ...] = dataclasses.field(default=(), repr=False)
  planning_s: float = dataclasses.field(default=0.0, compare=False)
  least_overhead: float = 0.0

  @property
  def fits(self) -> bool:
    """Whether the compiled plan holds the budget."""
    return self.measured.temp_bytes <= self.budget_bytes

  @property
  def gap(self) -> float:
    """Proven distance to the best plan: the overhead less what no plan avoids."""
    return max(self.overhead - self.least_overhead, 0.0)

  def apply(self, fn: Callable) -> Callable:
    """``fn`` with this plan carried out; the same function that was planned.

    Raises:
      coopjax.PlanMismatchError: when called with arguments that trace to another program.
    """
    from coopjax import api

    return api.remat(fn, plan=self)

  def explain(self, top: int = 20) -> str:
    """The plan as text: the headline, then the ``top`` largest decisions with their source lines."""
    lines = [
      f"{self.name}: {format_bytes(self.baseline.temp_bytes)} of temporaries without remat, budget "
      f"{format_bytes(self.budget_bytes)}, compiled {format_bytes(self.measured.temp_bytes)} "
      f"({'fits' if self.fits else 'OVER BUDGET'})",
      f"  engine {self.engine}, planner {self.planner}: {self.overhead:+.2%} modelled cost, "
      f"{self.recompute_flops:.3g} FLOPs recomputed"
      + (f"; no plan costs less than {self.least_overhead:+.2%}" if self.least_overhead else "")
      + (f"; no plan goes below {format_bytes(self.lower_bound_bytes)}" if self.lower_bound_bytes else ""),
    ]
    lines += [f"  {line}" for line in self.rounds]
    for decision in self.decisions[:top]:
      times = f" {decision.times}x" if decision.times > 1 else ""
      lines.append(
        f"  {decision.decision + times:<14} {format_bytes(decision.num_bytes):>10}  {decision.cost_s * 1e6:>9.1f} us  "
        f"{decision.type:<22} {decision.source or decision.scope or decision.value}"
      )
    if len(self.decisions) > top:
      lines.append(f"  ... and {len(self.decisions) - top} smaller ones")
    return "\n".join(lines)

  def to_json(self) -> str:
    """The plan as JSON text, with its format version."""
    return json.dumps({"coopjax_plan": FORMAT_VERSION, **dataclasses.asdict(self)}, default=_jsonable)

  def save(self, path: str | os.PathLike) -> None:
    """Writes the plan as JSON, atomically: a reader sees the old file or the new one."""
    path = pathlib.Path(path)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
      file.write(self.to_json())
    os.replace(file.name, path)

  @classmethod
  def load(cls, path: str | os.PathLike) -> "RematPlan":
    """Reads a plan that :meth:`save` wrote.

    Raises:
      coopjax.InvalidPlanError: not a plan, or one of another format version.
    """
    try:
      return cls.from_json(pathlib.Path(path).read_text())
    except InvalidPlanError as error:
      raise InvalidPlanError(f"{path}: {error}") from error

  @classmethod
  def from_json(cls, text: str) -> "RematPlan":
    """Reads what :meth:`to_json` wrote; ``InvalidPlanError`` as for :meth:`load`."""
    try:
      fields = json.loads(text)
      version = fields.pop("coopjax_plan")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
      raise InvalidPlanError("not a coopjax plan: expected JSON with a 'coopjax_plan' field") from error
    if version != FORMAT_VERSION:
      raise InvalidPlanError(f"a plan of format {version}; this coopjax reads format {FORMAT_VERSION}")
    try:
      return cls._from_fields(fields)
    except (TypeError, KeyError, AttributeError) as error:
      raise InvalidPlanError(f"a coopjax plan with missing or unknown fields: {error}") from error

  @classmethod
  def _from_fields(cls, fields: dict) -> "RematPlan":
    from coopjax.jaxpr.rewrite import PolicyDecisions

    fields["budget"] = Budget(**fields["budget"])
    for key in ("baseline", "predicted", "measured"):
      fields[key] = MemoryProfile(**{**fields[key], "live_bytes": tuple(fields[key]["live_bytes"])})
    fields["decisions"] = tuple(Decision(**decision) for decision in fields["decisions"])
    fields["rounds"] = tuple(fields["rounds"])
    if fields["policy"] is not None:
      fields["policy"] = PolicyDecisions.from_json(fields["policy"])
    return cls(**fields)


def _jsonable(value: Any) -> Any:
  if isinstance(value, np.integer):
    return int(value)
  if isinstance(value, np.floating):
    return float(value)
  raise TypeError(f"{type(value).__name__} does not belong into a plan")
