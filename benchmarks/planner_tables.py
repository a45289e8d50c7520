"""The tables of `planners.py`: what is planned, by whom, and which figures are kept. One function a table."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator

import numpy as np
import zoo
from shapes import SHAPES
from tables import Row

from coopjax import _core
from coopjax.jaxpr.step_program import ProgramOptions, persistent_bytes
from coopjax.planners.auto import AutoPlanner
from coopjax.planners.base import Planner, PlannerResult
from coopjax.planners.coop import ABLATIONS, CoopPlanner
from coopjax.planners.effort import steps_of
from coopjax.planners.exact.planner import STATUSES, ExactPlanner
from coopjax.planners.fastsa import FastSAPlanner
from coopjax.planners.model.planner import ModelPlanner
from coopjax.planners.packing import pack
from coopjax.planners.peak import PeakPlanner
from coopjax.program import cost, liveness
from coopjax.program.step_program import TEMPORARY, StepProgram
from coopjax.program.validate import validate

GREEDY = PeakPlanner.greedy()
OPTIMALITY_STUDY = ("vgg11", "resnet18")  # of FastSA's models, those that its paper compares with the optimum alone
_COOP_COUNTERS = ("evictions", "searches", "candidates", "scanned", "search_s", "fragmentation", "heap_fragmentation")
GREEDY_TAKES = 10_000  # ops; above, it takes minutes, then hours
_PEER_LIMIT_S = 10.0
# The paper's ILP with nothing of ours around it: no heuristic order to start from, no bound but by working sets.
_ILP_ALONE = ModelPlanner(schedulers=False, cuts=False, anneals=False, window_ops=0, places=False, max_entries=400_000)
_COOP_SHARES = (0.9, 0.7, 0.5, 0.4, 0.3)
_WINDOW_AND_LOOP = ("coop", "dtr, costs reused", "coop, every cost anew", "dtr")  # twice at equal reuse of costs
_ARENA_SHAPES = ("layered", "wide", "random")
_MOST_ARENA_OPS = 50_000  # a search looks at the whole arena: above, DTR's loops take minutes


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a run is asked for.

  Attributes:
    models: of the zoo; None: each table's own.
    max_steps: of one plan.
    exact_steps: of one exact plan.
    announce: told what is under way.
    effort: in place of `max_steps`, as many as a request of this effort gets.
    sizes: of programs planned for the table of scales, in ops.
  """

  models: tuple[str, ...] | None
  max_steps: int
  exact_steps: int
  announce: Callable[[str], None]
  effort: str | None = None
  sizes: tuple[int, ...] = ()

  def steps_for(self, program: StepProgram) -> int:
    """Steps that one plan of a program may take."""
    return steps_of(self.effort, program.num_ops) if self.effort else self.max_steps

  def of(self, paper: str) -> list[tuple[str, int]]:
    """A paper's models and batches."""
    return [
      (name, batch)
      for name, model in zoo.MODELS.items()
      if self.models is None or name in self.models
      for batch in model.batches.get(paper, ())
    ]


def peak_of(program: StepProgram, schedule: np.ndarray) -> int:
  return int(_core.live_bytes(program.core, schedule).max(initial=0))


def plan(planner: Planner, program: StepProgram, budget_bytes: int, max_steps: int, **order) -> PlannerResult:
  """A plan that the validator has passed; the table must not stand on a claim."""
  result = planner.plan(program, budget_bytes, max_steps=max_steps, **order)
  report = validate(
    program, result.schedule, claimed_peak_bytes=result.peak_live_bytes, claimed_cost_s=result.recompute_cost_s
  )
  if not report.is_valid:
    raise AssertionError(f"{result.planner}: {report}")
  return result


def fastsa(settings: Settings) -> Iterator[Row]:
  """FastSA's models at half and a quarter of the un-rematerialized peak, unit costs, inputs counted as it counts
  them.
  """
  planners = {
    "greedy": GREEDY,
    "coop": CoopPlanner(),
    "peak": PeakPlanner(),
    "fastsa": FastSAPlanner(),
    "auto": AutoPlanner(),
  }
  for name, batch in settings.of(zoo.FASTSA):
    if name in OPTIMALITY_STUDY:
      continue
    settings.announce(f"{name}: tracing")
    program = zoo.build(name, batch)
    inputs_bytes = persistent_bytes(program)
    whole_bytes = peak_of(program, program.schedule) + inputs_bytes
    bound_bytes, bound_op = _core.lower_bound(program.core)
    for share in (0.5, 0.25):
      budget_bytes = math.floor(share * whole_bytes) - inputs_bytes
      for label, planner in planners.items():
        settings.announce(f"{name} at {share:.0%}: {label}")
        result = plan(planner, program, budget_bytes, settings.steps_for(program))
        yield {
          "model": name,
          "batch": batch,
          "ops": program.num_ops,
          "share": share,
          "planner": label,
          "whole_bytes": whole_bytes,
          "budget_bytes": budget_bytes + inputs_bytes,
          "holds": result.is_feasible,
          "memory_cut": 1 - (result.peak_live_bytes + inputs_bytes) / whole_bytes,
          "most_cut": 1 - (bound_bytes + inputs_bytes) / whole_bytes,
          "forced_by": program.op_kinds[bound_op] if bound_bytes > budget_bytes else None,
          "overhead": result.overhead(program),
          "least_overhead": result.least_overhead(program),
          "seconds": result.seconds,
        }


def exact(settings: Settings) -> Iterator[Row]:
  """The optimum of the given order beside heuristics on the same order, unit costs."""
  heuristics = {
    "greedy": GREEDY,
    "coop": CoopPlanner(),
    "fastsa": FastSAPlanner(),
    "peak": PeakPlanner(),
    "auto": AutoPlanner(),
  }
  for name in settings.models or OPTIMALITY_STUDY:
    program = zoo.build(name)
    peak_bytes = peak_of(program, program.schedule)
    for share in (0.9, 0.8, 0.7, 0.6, 0.5):
      budget_bytes = math.floor(share * peak_bytes)
      settings.announce(f"{name} at {share:.0%}: exact")
      order = {"order": program.schedule}
      best = plan(ExactPlanner(), program, budget_bytes, settings.exact_steps, **order)
      total_s, bound_s = float(program.op_cost_s.sum()), best.counters["order_bound_s"]
      common = {"model": name, "ops": program.num_ops, "share": share}
      yield {
        **common,
        "planner": "exact",
        "holds": best.is_feasible,
        "overhead": best.overhead(program),
        "status": STATUSES[int(best.counters["status"])],
        "peak_share": best.peak_live_bytes / peak_bytes,
        "order_bound": bound_s / total_s if math.isfinite(bound_s) else None,
        "seconds": best.seconds,
      }
      for label, planner in heuristics.items():
        settings.announce(f"{name} at {share:.0%}: {label}")
        result = plan(planner, program, budget_bytes, settings.steps_for(program), **order)
        yield {
          **common,
          "planner": label,
          "holds": result.is_feasible,
          "overhead": result.overhead(program),
          "peak_share": result.peak_live_bytes / peak_bytes,
          "seconds": result.seconds,
          "points_above": 100 * (result.overhead(program) - best.overhead(program))
          if result.is_feasible and best.is_feasible
          else None,
        }


def coop(settings: Settings) -> Iterator[Row]:
  """Coop, its ablations, DTR and DTE in one arena, on Coop's models, by modelled seconds."""
  for name, batch in settings.of(zoo.COOP):
    settings.announce(f"{name}: tracing")
    program = zoo.build(name, batch, ProgramOptions(roofline=cost.CPU, outputs_take_budget=True))
    peak_bytes = peak_of(program, program.schedule)
    for share in _COOP_SHARES:
      for label, planner in {**ABLATIONS, "greedy": GREEDY}.items():
        settings.announce(f"{name} at {share:.0%}: {label}")
        budget_bytes = math.floor(share * peak_bytes)
        result = plan(planner, program, budget_bytes, settings.steps_for(program), order=program.schedule)
        yield {
          "model": name,
          "batch": batch,
          "ops": program.num_ops,
          "share": share,
          **_arena_row(label, result, program),
        }


def coop_large(settings: Settings) -> Iterator[Row]:
  """Coop's window beside DTR's loop at equal reuse of costs, on graphs of ten thousand values and more."""
  for num_ops in settings.sizes:
    for shape in _ARENA_SHAPES if num_ops <= _MOST_ARENA_OPS else ():
      program = SHAPES[shape](num_ops)
      peak_bytes = peak_of(program, program.schedule)
      for share in (0.7, 0.5):
        planners = {label: ABLATIONS[label] for label in _WINDOW_AND_LOOP}
        for label, planner in planners.items() if num_ops > GREEDY_TAKES else (*planners.items(), ("greedy", GREEDY)):
          settings.announce(f"{shape} of {num_ops:,} ops at {share:.0%}: {label}")
          budget_bytes = math.floor(share * peak_bytes)
          result = plan(planner, program, budget_bytes, settings.steps_for(program), order=program.schedule)
          yield {"shape": shape, "ops": num_ops, "share": share, **_arena_row(label, result, program)}


def _arena_row(label: str, result: PlannerResult, program: StepProgram) -> Row:
  counted = result.counters
  return {
    "planner": label,
    "holds": counted.get("failed_step", -1) < 0 and result.is_feasible,
    "overhead": result.overhead(program),
    "seconds": result.seconds,
    **{field: counted.get(field) for field in _COOP_COUNTERS},
  }


def model(settings: Settings) -> Iterator[Row]:
  """MODeL's order and addresses, no recompute: steps with their weight updates, in the order they are traced.

  Elementwise work is fused, and done in place where it may be; transposes are views. Beside what the planner finds, the
  order ILP on its own, from the order as traced.
  """
  options = ProgramOptions(fold_transposes=True, fuse_elementwise=True, share_elementwise=True)
  for name, batch in settings.of(zoo.MODEL):
    settings.announce(f"{name}, batch {batch}: tracing")
    program = zoo.build(name, batch, options, learning_rate=0.1)
    given_bytes = peak_of(program, program.schedule)
    greedy_bytes = peak_of(program, _core.schedule_by_rule(program.core, 1))
    settings.announce(f"{name}, batch {batch}: planning")
    result = plan(ModelPlanner(), program, 0, settings.steps_for(program))
    counted = result.counters
    settings.announce(f"{name}, batch {batch}: the ILP alone")
    alone = plan(_ILP_ALONE, program, 0, settings.steps_for(program))
    yield {
      "model": name,
      "batch": batch,
      "ops": program.num_ops,
      "given_bytes": given_bytes,
      "greedy_saves": 1 - greedy_bytes / given_bytes,
      "saves": 1 - result.peak_live_bytes / given_bytes,
      "gap": counted["gap"],
      "is_proven": bool(counted["is_proven"]),
      "ilps": counted["ilps"],
      "fell_back": bool(counted["fell_back"]),
      "fragmentation": counted["fragmentation"],
      "greedy_fragmentation": fragmentation_of_first_come(program, result.schedule),
      "seconds": result.seconds,
      "ilp_ops": alone.counters["ilp_ops"],
      "ilp_entries": alone.counters["ilp_entries"],
      "ilp_saves": 1 - alone.peak_live_bytes / given_bytes if alone.counters["ilps"] else None,
      "ilp_gap": alone.counters["ilp_gap"] if alone.counters["ilps"] else None,
      "ilp_solved": bool(alone.counters["ilps"] and not alone.counters["ilp_cut_short"]),
      "ilp_seconds": alone.seconds,
    }


def lifetimes(program: StepProgram, schedule: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """``(lower, upper, sizes)`` of the temporaries of a schedule that take bytes."""
  values, starts, ends = liveness.live_ranges(program, schedule)
  sizes = np.where(program.value_kind[values] == TEMPORARY, program.value_bytes[values], 0)
  kept = (sizes > 0) & (ends > starts)
  return starts[kept], ends[kept], sizes[kept]


def fragmentation_of_first_come(program: StepProgram, schedule: np.ndarray) -> float:
  """Of an eager allocator: values placed when they are made, best fit."""
  return pack(*lifetimes(program, schedule), method="best_fit", order="lower").fragmentation


def packing(settings: Settings) -> Iterator[Row]:
  """Offsets for fixed schedules: a plain greedy, ours and omnimalloc's, on the same live ranges in one run."""
  import omnimalloc_peer

  for name in settings.models or (
    "vgg11",
    "resnet50",
    "densenet121",
    "unet",
    "bert_base",
    "gpt2",
    "swin_tiny",
    "llama_7b",
  ):
    program = zoo.build(name)
    peak_bytes = peak_of(program, program.schedule)
    for share in (1.0, 0.5, 0.25):
      settings.announce(f"{name} at {share:.0%}: planning")
      schedule = program.schedule
      if share < 1:
        schedule = plan(PeakPlanner(), program, math.floor(share * peak_bytes), settings.steps_for(program)).schedule
      problem = lifetimes(program, schedule)
      row = {"model": name, "share": share, "buffers": len(problem[0])}
      for label, how in (
        ("greedy", {"method": "best_fit", "order": "lower"}),
        ("xla", {"method": "best_fit"}),
        ("search", {}),
      ):
        settings.announce(f"{name} at {share:.0%}: {label}")
        packed = pack(*problem, **how)
        row |= {f"{label}_fragmentation": packed.fragmentation, f"{label}_s": packed.seconds}
      settings.announce(f"{name} at {share:.0%}: omnimalloc")
      row |= omnimalloc_peer.measure(*problem, live_bytes=packed.peak_live_bytes, time_limit_s=_PEER_LIMIT_S)
      yield row


def mean(rows: list[Row], field: str) -> float:
  return statistics.fmean(row[field] for row in rows)
