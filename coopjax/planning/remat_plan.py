"""The result of planning: what to keep, what to recompute, what it costs, and the compiler's own numbers."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from coopjax import display
from coopjax.budget import Budget, format_bytes
from coopjax.errors import InvalidPlanError, printable
from coopjax.memory_profile import MemoryProfile
from coopjax.planning import decision, files, policy_names
from coopjax.planning.decision import Decision
from coopjax.policy_engine.decisions import PolicyDecisions

FORMAT_VERSION = 3
_SHOWN = 20  # decisions in a notebook


@dataclasses.dataclass(frozen=True)
class RegionPlan:
  """What one remat region of a whole step does.

  Attributes:
    fingerprint: of the region, by which :meth:`RematPlan.apply` knows it.
    name: of its function.
    num_runs: how often the step runs it for a gradient, a ``while`` counted as one turn; 0 for a region that nobody
      differentiates, of which nothing is repeated.
    policy: the policy engine's decisions for each run, or None.
    saved_bytes: its share of the budget: what it keeps for the backward pass, modelled; of one device, where it is
      known how devices share it.
    recompute_flops: floating-point operations added by all runs, modelled.
    names: what becomes of the values that the user has named.
  """

  fingerprint: str
  name: str
  num_runs: int
  policy: PolicyDecisions | None = dataclasses.field(repr=False)
  saved_bytes: int
  recompute_flops: float
  names: policy_names.RegionNames = dataclasses.field(default=policy_names.NOT_KNOWN)

  @classmethod
  def from_fields(cls, fields: dict) -> "RegionPlan":
    """The inverse of `dataclasses.asdict`, through JSON."""
    policy = fields["policy"] and PolicyDecisions.from_json(fields["policy"])
    return cls(**{**fields, "policy": policy, "names": policy_names.RegionNames.from_fields(fields.get("names", {}))})


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
    measured: memory of the compiled plan; with `is_drafted`, of its draft, as are those of `baseline`.
    overhead: cost of recompute, and of waiting for the host, over baseline cost, modelled.
    recompute_flops: floating-point operations added, modelled.
    least_overhead: overhead that no schedule of the program's instructions avoids with the live bytes that this one was
      allowed, modelled; 0 where the policy engine changed the instructions.
    lower_bound_bytes: peak live bytes that no schedule of the program's instructions goes below; 0 where the policy
      engine changed the instructions. XLA puts some temporaries into output buffers that are not written yet: they
      count here, but not among the compiled temporaries.
    decisions: one per value that was recomputed or that is kept across the peak, largest first.
    policy: the policy engine's decisions, or None.
    rounds: trace of the verify-and-replan loop, one line each.
    regions: of a whole step, what each remat region in it does; () for a function with its gradient.
    effort: how much the HLO engine searches, when the plan is carried out, too.
    time_limit_s: its fuse, seconds, or None.
    is_cut_short: whether that blew: elsewhere the same request may give another plan.
    is_drafted: XLA assigned buffers to the program and went no further, as for one of many points
      (:func:`coopjax.frontier`, :func:`coopjax.fit`): the executable's memory analysis may say up to a percent more.
    existing: what became of the step's own `jax.checkpoint`s, as for :func:`coopjax.plan`.
    of_gradients: a step's regions are the functions that it differentiates: it has no others, or they were not enough.
    planning_s: seconds spent planning, compiles excluded.
    mesh: axes that the arguments are spread over, "data=4,model=2" for one, "" for one device; bytes are one device's.
    num_devices: that a whole step runs on.
    shards: of a whole step on several devices, ``(path, shape)`` of what one of them has of each argument that was put
      somewhere; :meth:`apply` checks them.
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
  policy: PolicyDecisions | None = dataclasses.field(default=None, repr=False)
  rounds: tuple[str, ...] = dataclasses.field(default=(), repr=False)
  planning_s: float = dataclasses.field(default=0.0, compare=False)
  least_overhead: float = 0.0
  mesh: str = ""
  num_devices: int = 1
  shards: tuple[tuple[str, tuple[int, ...]], ...] = dataclasses.field(default=(), repr=False)
  regions: tuple[RegionPlan, ...] = dataclasses.field(default=(), repr=False)
  effort: str = "normal"
  time_limit_s: float | None = None
  is_cut_short: bool = False
  existing: str = "replace"
  is_drafted: bool = False
  of_gradients: bool = False

  @property
  def fits(self) -> bool:
    """Whether the compiled plan holds the budget, a total one with all that the program holds, and what it allows of
    the host.
    """
    if self.measured.host_bytes > self.budget.host_bytes:
      return False
    if self.budget.is_total:
      assert self.budget.limit_bytes is not None  # a total is bytes, not a share
      return self.measured.total_bytes <= self.budget.limit_bytes
    return self.measured.temp_bytes <= self.budget_bytes

  @property
  def gap(self) -> float:
    """Proven distance to the best plan: the overhead less what no plan avoids."""
    return max(self.overhead - self.least_overhead, 0.0)

  def apply(self, fn: Callable) -> Callable:
    """``fn`` with this plan carried out; the same function that was planned.

    A whole step comes back as it is, its jit, donation and shardings included, with the plan's decisions carried out in
    the remat regions inside.

    Raises:
      coopjax.PlanMismatchError: when called with arguments that trace to another program.
    """
    from coopjax.planning import following  # here, so that plans can be read and shown without JAX

    return following.follow(fn, self)

  @property
  def names(self) -> tuple[policy_names.RegionNames, ...]:
    """Of a step, region by region that is differentiated: which names (`jax.ad_checkpoint.checkpoint_name`) are saved,
    offloaded, recomputed, and what the plan does that names can't say. None of checkpoints that ``existing="keep"`` has
    left alone.
    """
    return tuple(region.names for region in self.regions if region.num_runs and region.names != policy_names.NOT_KNOWN)

  def checkpoint_policy(self, region: str | None = None) -> Callable:
    """The plan as a policy of `jax.checkpoint`, for the step's own checkpoints: one for all regions, or for one.

    What names can't say (see :attr:`names`) is left out: a plan with ``names_only=True`` has nothing of that.

    Raises:
      coopjax.PolicyNamesError: no one policy does what the plan does in these regions.
    """
    return policy_names.checkpoint_policy(policy_names.the_one(self.names, region))

  def to_jax(self, region: str | None = None) -> str:
    """As :meth:`checkpoint_policy`, as text to paste."""
    return policy_names.to_jax(policy_names.the_one(self.names, region))

  def to_maxtext(self, region: str | None = None) -> str:
    """As :meth:`checkpoint_policy`, as lines for MaxText's YAML: ``remat_policy: custom`` with its tensors."""
    return policy_names.to_maxtext(policy_names.the_one(self.names, region))

  def to_haliax(self, region: str | None = None) -> str:
    """As :meth:`checkpoint_policy`, as lines for Levanter's YAML: the fields of Haliax's ``ScanCheckpointPolicy``."""
    return policy_names.to_haliax(policy_names.the_one(self.names, region))

  @property
  def _how_far(self) -> str:
    return "drafted" if self.is_drafted else "compiled"

  def headline(self) -> str:
    """The plan as text without its decisions: bytes, cost, bounds, regions and rounds."""
    lines = [
      f"{self.name}{' on each device of ' + self.mesh if self.mesh else ''}: "
      f"{format_bytes(self.baseline.temp_bytes)} of temporaries without remat, budget "
      f"{format_bytes(max(self.budget_bytes, 0))}, {self._how_far} {format_bytes(self.measured.temp_bytes)} "
      f"({'fits' if self.fits else 'OVER BUDGET'})"
      + (f", {format_bytes(self.measured.host_bytes)} in the host's memory" if self.measured.host_bytes else ""),
      f"  engine {self.engine}, planner {self.planner}: {self.overhead:+.2%} modelled cost"
      f"{', waiting for the host included' if self.measured.host_bytes else ''}, "
      f"{self.recompute_flops:.3g} FLOPs recomputed"
      + (f"; no plan costs less than {self.least_overhead:+.2%}" if self.least_overhead else "")
      + (
        f"; no schedule has fewer than {format_bytes(self.lower_bound_bytes)} live, scratch in output buffers included"
        if self.lower_bound_bytes
        else ""
      ),
    ]
    if self.budget.is_total:
      lines.insert(
        1,
        f"  {format_bytes(self.baseline.total_bytes)} in total without remat, budget {self.budget}, {self._how_far} "
        f"{format_bytes(self.measured.total_bytes)}, {format_bytes(self.measured.resident_bytes)} of it arguments and "
        "outputs",
      )
    if self.is_cut_short:
      lines.append(f"  cut short by the time limit of {self.time_limit_s} s: another host may find another plan")
    on_each = " on each device" if self.mesh else ""
    lines += [
      f"  region {region.name}, {region.num_runs} a step: keeps {_kept(region)}{on_each}, "
      f"recomputes {region.recompute_flops:.3g} FLOPs"
      if region.num_runs
      else f"  region {region.name}: nobody differentiates it, nothing of it is recomputed"
      for region in self.regions
    ]
    return "\n".join(map(printable, [*lines, *(f"  {line}" for line in self.rounds)]))

  def explain(self, top: int = 20, width: int = 0) -> str:
    """The plan as text: the headline, then the decisions, what the next ones would give and cost, and why a name of the
    user's is not saved.

    Values that differ in their layer alone are one line ("block_0..15 x 16 layers"): what makes them, where the
    user wrote it, and the seconds to make all of them once more.

    Args:
      top: lines of decisions, the largest first.
      width: characters of a line; 0: as many as it takes.
    """
    told = decision.table(self.decisions, top, width)
    unused_bytes = self.budget_bytes - self.measured.temp_bytes
    if told and unused_bytes >= 0 and (line := decision.unsaved_names(self.decisions, unused_bytes)):
      told.append(display.wrapped(line, width))
    return "\n".join([display.wrapped(self.headline(), width), *told])

  def plot(self, ax: Any = None) -> Any:
    """Live bytes over the schedule before and after, or the totals where they are not known, with the budget.

    Returns matplotlib's axes.
    """
    bytes_of = format_bytes(self.measured.temp_bytes)
    title = f"{self.name}: budget {format_bytes(self.budget_bytes)}, {self._how_far} {bytes_of}"
    if self.baseline.live_bytes and self.measured.live_bytes:
      curves = {"no remat": self.baseline.live_bytes, "planned": self.measured.live_bytes}
      return display.plot_live_bytes(ax, title, curves, self.budget_bytes)
    return display.plot_totals(
      ax,
      title,
      {"no remat": self.baseline.temp_bytes, "planned": self.measured.temp_bytes, "budget": self.budget_bytes},
    )

  def to_frame(self) -> Any:
    """A row a decision, as a ``pandas.DataFrame``."""
    return display.frame([{**vars(each), "layer": each.layer} for each in self.decisions])

  def _repr_html_(self) -> str:
    columns = ("decision", "bytes", "one recompute", "type", "line", "scope")
    rows = [
      (
        each.decision + (f" {each.times}x" if each.times > 1 else ""),
        format_bytes(each.num_bytes),
        f"{each.cost_s * 1e6:.1f} us",
        each.type,
        each.source,
        each.scope,
      )
      for each in self.decisions[:_SHOWN]
    ]
    return display.html_table(self.headline(), columns if rows else (), rows, len(self.decisions) - _SHOWN)

  def to_dict(self) -> dict[str, Any]:
    """What :meth:`to_json` writes, as a dictionary."""
    return json.loads(self.to_json())

  def to_json(self) -> str:
    """The plan as JSON text, with its format version."""
    return json.dumps({"coopjax_plan": FORMAT_VERSION, **dataclasses.asdict(self)}, default=_jsonable)

  def save(self, path: str | os.PathLike) -> None:
    """Writes the plan as JSON, atomically: a reader sees the old file or the new one."""
    files.write_whole(pathlib.Path(path), self.to_json())

  @classmethod
  def load(cls, path: str | os.PathLike) -> "RematPlan":
    """Reads a plan that :meth:`save` wrote.

    Raises:
      coopjax.InvalidPlanError: not a plan, or one of another format version, with the file and the field.
    """
    try:
      return cls.from_json(pathlib.Path(path).read_bytes())
    except InvalidPlanError as error:
      raise InvalidPlanError(f"{path}: {error}") from error

  @classmethod
  def from_json(cls, text: str | bytes) -> "RematPlan":
    """Reads what :meth:`to_json` wrote; ``InvalidPlanError`` as for :meth:`load`."""
    try:
      fields = json.loads(text)
      version = fields.pop("coopjax_plan")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
      raise InvalidPlanError("not a coopjax plan: expected JSON with a 'coopjax_plan' field") from error
    if version != FORMAT_VERSION:
      raise InvalidPlanError(f"a plan of format {version}; this coopjax reads format {FORMAT_VERSION}")
    if wrong := files.misfit(cls, fields):
      raise InvalidPlanError(f"a coopjax plan with a wrong field: {wrong}")
    try:
      return cls._from_fields(fields)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
      raise InvalidPlanError(f"a coopjax plan with missing or unknown fields: {error}") from error

  @classmethod
  def _from_fields(cls, fields: dict) -> "RematPlan":
    fields["budget"] = Budget.parse(Budget(**fields["budget"]))
    for key in ("baseline", "predicted", "measured"):
      fields[key] = MemoryProfile.from_fields(fields[key])
    fields["decisions"] = tuple(Decision(**each) for each in fields["decisions"])
    fields["rounds"] = tuple(fields["rounds"])
    fields["shards"] = tuple((path, tuple(shape)) for path, shape in fields.get("shards", ()))
    fields["regions"] = tuple(map(RegionPlan.from_fields, fields["regions"]))
    if fields["policy"] is not None:
      fields["policy"] = PolicyDecisions.from_json(fields["policy"])
    return cls(**fields)


def _kept(region: RegionPlan) -> str:
  is_left_alone = region.policy is None and not region.recompute_flops and not region.saved_bytes
  return "all" if is_left_alone else format_bytes(region.saved_bytes)


def _jsonable(value: Any) -> Any:
  if isinstance(value, np.integer):
    return int(value)
  if isinstance(value, np.floating):
    return float(value)
  raise TypeError(f"{type(value).__name__} does not belong into a plan")
