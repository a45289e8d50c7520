"""Hand and budget: what each rung of the checkpoint policies that people use takes and repeats, and what coopjax does.

For each of five programs (benchmarks/ladder_programs.py) on each target and mesh, every rung of the ladder is compiled
around its layers: these are the hand's bytes. Then coopjax is given the program without a checkpoint, and those bytes
as its budget. Bytes are a device's temporaries of loss and gradient, by the compiler.

"Repeated" are FLOPs that the gradient has beyond that without checkpoints, counted in its jaxpr, loops with their
length, calls and kernels by what is inside (coopjax/jaxpr/cost.py): a device's share of all, and of products, ragged
products, convolutions and kernels alone. What the HLO engine clones comes on top, by its own count. "ratio" is ours
over the hand's; where both repeat nothing, 1. A rung that offloads is compared with a plan that may: there the ratio is
of what is repeated and of what could be computed while the device waits for its host ("waits", modelled:
coopjax/policy_engine/offload.py); "on host" are the bytes that go there, by hand and ours. The results file also has
the same of the compiled modules, on backends whose modules are read. "compiles" are those of planning, whole ones and,
after the plus, those that end at the schedule; all seconds are CPU seconds of this process.

  python benchmarks/hand_ladder.py                                           # on the CPU, one device
  python benchmarks/hand_ladder.py --programs decoder moe --rungs full minimal --engines policy
  python benchmarks/hand_ladder.py --targets tpu:v5e:2x4 gpu:h100:8 --meshes fsdp tensor
  python benchmarks/hand_ladder.py --targets tpu:v5e:2x2 --engines policy --rungs minimal_offloaded qkv_proj_offloaded

Each row joins the results file as soon as it is measured. Rows that are there already are kept (--again measures them
again), so a run that was stopped goes on where it was.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import backends
import jax
import ladder_programs
import tables
from jax.extend import core
from ladder_programs import ON_DEVICE, PLAIN, RUNGS, Program, Rung, Size

import coopjax
from coopjax import compat
from coopjax.jaxpr import cost, op_work
from coopjax.jaxpr.bodies import bodies_of
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.planning import host_offload
from coopjax.policy_engine.by_hand import on_host, user_name
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.ladders import Candidate
from coopjax.policy_engine.shards import shards_of
from coopjax.xla import targets
from coopjax.xla.compile import compile_draft, compile_trial, measure

Row = tables.Row
MIB, GIGA = 2**20, 1e9
RESULTS = tables.RESULTS / "hand_ladder.json"
ENGINES = ("policy", "auto")
KEY = ("target", "mesh", "program", "size", "rung", "engine")
COLUMNS = {
  "rung": "{rung}",
  "hand\nMiB": "{hand_mib:.2f}",
  "repeats\nGF": "{hand_gflop:.3f}",
  "engine": "{engine}",
  "ours\nMiB": "{mib:.2f}",
  "repeats\nGF ": "{gflop:.3f}",
  "ratio": "{ratio:.2f}",
  "of\nproducts": "{product_ratio:.2f}",
  "waits\nGF": "{hand_waits_gflop:.0f} {waits_gflop:.0f}",
  "on host\nMiB": "{hand_host_mib:.0f} {host_mib:.0f}",
  "compiles": "{num_compiles}+{num_schedules}",
  "planning\ns": "{planning_s:.1f}",
  "compile\ns": "{compile_s:.1f}",
}
_PRODUCTS = frozenset("conv_general_dilated dot_general mpmd_map pallas_call ragged_dot_general scaled_dot".split())


@dataclasses.dataclass(frozen=True)
class Flops:
  """Of one device.

  Attributes:
    total: all that `cost` counts.
    products: of products, convolutions and kernels.
    by_xla: in the compiled module, loops with their length; None where it is not read.
  """

  total: float
  products: float
  by_xla: float | None

  def beyond(self, plain: "Flops") -> Row:
    """What is repeated, as fields of a row."""
    is_read = self.by_xla is not None and plain.by_xla is not None
    return {
      "gflop": (self.total - plain.total) / GIGA,
      "product_gflop": (self.products - plain.products) / GIGA,
      "xla_gflop": (self.by_xla - plain.by_xla) / GIGA if is_read else None,
    }


@dataclasses.dataclass(frozen=True)
class Measured:
  """A program as it was compiled: temporaries of a device and of the host, FLOPs, and CPU seconds of its compile."""

  temp_bytes: int
  host_bytes: int
  flops: Flops
  compile_s: float


class Bench:
  """One program on one target and mesh."""

  def __init__(self, program: Program, target: str):
    self.program, self.target = program, targets.resolve(target)
    self._plain: Measured | None = None

  @property
  def cell(self) -> Row:
    """What the rows have in common."""
    size = list(dataclasses.astuple(self.program.size))
    return {"target": self.target.name, "mesh": self.program.mesh, "program": self.program.name, "size": size}

  @property
  def plain(self) -> Measured:
    """Without a checkpoint."""
    if self._plain is None:
      self._plain = self.compiled(self.program.loss(PLAIN))
    return self._plain

  def hand(self, rung: Rung) -> Row:
    """What a rung takes and repeats."""
    measured = self.compiled(self.program.loss(rung))
    fields = measured.flops.beyond(self.plain.flops) | {"mib": measured.temp_bytes / MIB}
    if rung.on_host:
      known = {user_name(name) for each in self.space.found for names in each.name_sets for name in names}
      chosen = frozenset(on_host(name) for name in rung.on_host if name in known)
      fields |= {
        "host_mib": measured.host_bytes / MIB,
        "waits_gflop": self.waits(lambda each: chosen in each.name_sets),
      }
    return {
      "hand_bytes": measured.temp_bytes,
      **{f"hand_{name}": value for name, value in fields.items()},
      "plain_mib": self.plain.temp_bytes / MIB,
      "forward_and_backward_gflop": self.plain.flops.total / GIGA,
    }

  @functools.cached_property
  def space(self) -> Candidates:
    """Of what may go to the host."""
    link = host_offload.link(coopjax.Budget(1, offload=True), self.target)
    traced = differentiable(trace(self.program.loss(), self.program.arguments))
    shards = shards_of(traced, lambda fn, avals: compile_draft(fn, avals, self.target))
    space = Candidates(traced, False, link=link, shards=shards)
    space.deepen()
    space.widen()
    return space

  def waits(self, is_it: Callable[[Candidate], bool]) -> float | None:
    """GFLOPs that a device could compute while it waits for the host under a candidate, modelled; None where there is
    no such candidate: in straight code a TPU offloads nothing.
    """
    found = itertools.chain.from_iterable(map(_forms, self.space.found))
    return next((each.waiting_flops / GIGA for each in found if is_it(each)), None)

  def ours(self, hand: Row, engine: str, offloads: bool) -> Row:
    """What a plan for a rung's bytes takes and repeats; nothing but the reason where there is none."""
    compile_s = self.plain.compile_s
    with compiling() as compiles:
      start_s = time.process_time()
      try:
        plan = coopjax.plan(
          self.program.loss(),
          *self.program.arguments,
          budget=coopjax.Budget(hand["hand_bytes"], offload=offloads),
          engine=engine,
          target=self.target.name,
        )
      except coopjax.BudgetInfeasibleError as error:
        reason = str(error).partition("\n")[0]
        return {"error": reason, "smallest_bytes": error.smallest_bytes, "num_compiles": len(compiles.whole)}
      planned_s = time.process_time() - start_s
    applied = plan.apply(self.program.loss())
    flops = self.traced(applied if plan.policy is not None else self.program.loss())
    cloned = 0.0
    if "hlo" in plan.engine:  # what the HLO engine does to the program
      with backends.outcomes() as made:
        compile_trial(*self._gradient(applied), self.target)
      cloned = sum(outcome.recompute_flops for outcome in made)
    of_plan = Flops(flops.total + cloned, flops.products + cloned, plan.measured.flops or None)
    row = {"mib": plan.measured.temp_bytes / MIB, "temp_bytes": plan.measured.temp_bytes, "carried_out_by": plan.engine}
    row |= of_plan.beyond(self.plain.flops)
    if offloads:
      waits_gflop = self.waits(lambda each: each.decisions == plan.policy)
      assert waits_gflop is not None  # what was planned is a candidate
      row |= {"host_mib": plan.measured.host_bytes / MIB, "waits_gflop": waits_gflop}
    costs = row["gflop"] + (row.get("waits_gflop") or 0.0)
    hand_costs = hand["hand_gflop"] + (hand.get("hand_waits_gflop") or 0.0)
    return row | {
      "ratio": ratio(costs, hand_costs),
      "product_ratio": ratio(row["product_gflop"], hand["hand_product_gflop"]),
      "byte_ratio": plan.measured.temp_bytes / hand["hand_bytes"],
      "cloned_gflop": cloned / GIGA,
      "num_compiles": len(compiles.whole),
      "num_schedules": len(compiles.scheduled),
      "planning_s": planned_s - sum(compiles.whole) - sum(compiles.scheduled),
      "compiles_s": sum(compiles.whole),
      "schedules_s": sum(compiles.scheduled),
      "compile_s": compile_s,
    }

  def compiled(self, loss: Callable) -> Measured:
    """The loss with its gradient, compiled."""
    fn, avals = self._gradient(loss)
    with compiling() as compiles:
      profile = measure(compile_trial(fn, avals, self.target), self.target)
    flops = dataclasses.replace(self.traced(loss), by_xla=profile.flops or None)
    return Measured(profile.temp_bytes, profile.host_bytes, flops, sum(compiles.whole))

  def traced(self, loss: Callable) -> Flops:
    """FLOPs of the loss with its gradient, as they stand in the jaxpr."""
    fn, avals = self._gradient(loss)
    jaxpr = compat.dce(jax.make_jaxpr(fn)(*avals))
    num_devices = self.program.device_mesh.size
    return Flops(cost.jaxpr_flops(jaxpr, 0.0) / num_devices, product_flops(jaxpr) / num_devices, None)

  def _gradient(self, loss: Callable) -> tuple[Callable, Any]:
    return fn_and_gradient(differentiable(trace(loss, self.program.arguments)))


def _forms(candidate: Candidate | None) -> Iterator[Candidate]:
  while candidate is not None:
    yield candidate
    candidate = candidate.twin


def product_flops(jaxpr: core.Jaxpr) -> float:
  """FLOPs of the products, convolutions and kernels of one evaluation of a jaxpr."""
  total = 0.0
  for equation in jaxpr.eqns:
    inside = bodies_of(equation)
    total += inside.total([product_flops(body) for body in inside.jaxprs]) if inside.jaxprs else 0.0
    if equation.primitive.name in _PRODUCTS:
      total += op_work.own_work(equation).flops
  return total


def ratio(ours: float, hand: float) -> float | None:
  """Of what is repeated; less than a millionth of a GFLOP is nothing."""
  if hand > 1e-6:
    return ours / hand
  return 1.0 if ours < 1e-6 else None


@dataclasses.dataclass(frozen=True)
class Compiles:
  """CPU seconds of each compile: of whole ones, and of those that end at the schedule or are drafts."""

  whole: list[float] = dataclasses.field(default_factory=list)
  scheduled: list[float] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def compiling() -> Iterator[Compiles]:
  """Collects the compiles inside the block."""
  compiles, compile_lowered = Compiles(), jax.stages.Lowered.compile

  def timed(*args, **kwargs):
    start_s, kind = time.process_time(), compiles.scheduled
    try:
      compiled = compile_lowered(*args, **kwargs)
      if "optimization_level" not in (kwargs.get("compiler_options") or {}):
        kind = compiles.whole
      return compiled
    finally:
      kind.append(time.process_time() - start_s)

  jax.stages.Lowered.compile = timed
  try:
    yield compiles
  finally:
    jax.stages.Lowered.compile = compile_lowered


def rows_of(bench: Bench, rungs: list[str], engines: list[str], known: dict[tuple[Any, ...], Row]) -> Iterator[Row]:
  """A row for each rung and engine, as soon as it is measured."""
  for name in rungs:
    cells = [{**bench.cell, "rung": name, "engine": engine} for engine in engines]
    if all(key(cell) in known for cell in cells):
      yield from (known[key(cell)] for cell in cells)
      continue
    hand, offloads = bench.hand(RUNGS[name]), bool(RUNGS[name].on_host)
    for cell in cells:
      yield known.get(key(cell)) or {**cell, **hand, **bench.ours(hand, cell["engine"], offloads)}


def key(row: Row) -> tuple[Any, ...]:
  """What tells rows apart."""
  return tuple(str(row[name]) for name in KEY)


def merge(path: pathlib.Path, row: Row) -> None:
  """Puts a row into a results file, in place of one for the same cell; the file is whole at any time."""
  rows = {key(each): each for each in tables.read(path)} | {key(row): row}
  tables.write(path, rows=list(rows.values()))


def summary(rows: list[Row]) -> str:
  """How often we repeat no more than the hand."""
  found = []
  for engine in dict.fromkeys(row["engine"] for row in rows):
    mine = [row for row in rows if row["engine"] == engine]
    ratios = [row["ratio"] for row in mine if row.get("ratio") is not None]
    median = f", median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}" if ratios else ""
    found.append(f"{engine}: at most the hand's at {sum(each <= 1 for each in ratios)} of {len(mine)} rungs{median}")
  return "\n".join(found)


def main() -> None:
  first, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=first, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--programs", nargs="+", choices=ladder_programs.PROGRAMS, default=ladder_programs.PROGRAMS)
  parser.add_argument("--targets", nargs="+", default=("cpu",))
  parser.add_argument("--meshes", nargs="+", choices=ladder_programs.MESHES, default=("one",))
  parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=ON_DEVICE)
  parser.add_argument("--engines", nargs="+", choices=("policy", "hlo", "auto"), default=ENGINES)
  parser.add_argument("--again", action="store_true", help="measure what is there already")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
  for field in dataclasses.fields(Size):
    parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
  arguments = parser.parse_args()
  size = Size(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Size)})
  if set(arguments.meshes) != {"one"}:
    jax.config.update("jax_num_cpu_devices", 8)
  os.environ["COOPJAX_CACHE_DIR"] = ""  # every plan is made, none is found
  for category in (coopjax.RematNoEffectWarning, coopjax.BudgetExceededWarning):
    warnings.simplefilter("ignore", category)  # the table says so

  console = tables.console()
  for target, mesh, name in itertools.product(arguments.targets, arguments.meshes, arguments.programs):
    bench = Bench(Program(name, size, mesh), target)
    known = {} if arguments.again else {key(row): row for row in tables.read(arguments.out)}
    rows = []
    for row in rows_of(bench, arguments.rungs, arguments.engines, known):
      rows.append(row)
      merge(arguments.out, row)
    shown = tables.table(rows, COLUMNS, f"{name} on {target}, mesh {mesh}: {rows[0]['plain_mib']:.2f} MiB without")
    console.print(shown, summary(rows), "", sep="\n")


if __name__ == "__main__":
  main()
