"""On the GPU or TPU that is here: compiled bytes against the allocator's real peak, and step times, inside budgets.

A step of AdamW on a decoder (`ladder_programs`: scanned, or unrolled), its state donated: as it is, under policies
that people pick by hand, and in budgets from "fits" down to a quarter of the temporaries and at the bytes of those
policies, by each engine and by the policy engine with values moved to the host ("offload"). Each variant
is planned and compiled in one process and run in another, which finds both: a peak can't be set back, and a GPU's
compiler tries kernels out, on as much memory as they are given. All begin with the same parameters and tokens. "total"
is the executable's (arguments and results, what they share counted once, and temporaries); "peak" is the most that the
allocator ever gave out. A variant that the device has no memory for is a row that says so. Writes
benchmarks/results/device.json.

  python benchmarks/device.py                                  # on one device; where there is none, it says so
  python benchmarks/device.py --layers 16 --batch 32 --engines auto policy
  python benchmarks/device.py --programs unrolled --layers 6 --engines hlo     # goes into the same file
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import ladder_programs
import optax
import tables

import coopjax
from coopjax.memory_profile import totals_of

MIB = 2**20
OUT = tables.RESULTS / "device.json"
HAND = ("plain", "full", "minimal")
BUDGETS = ("fits", "75%", "50%", "25%", "minimal", "full")
ENGINES = ("auto", "hlo", "policy", "offload")
NONE_HERE = "no accelerator here: nothing was measured (--anyway runs on the CPU, which tells no peak)"
PROGRAMS = ("decoder", "unrolled")
SIZE = ladder_programs.Size(14, 1024, 2048, 5632, 16, 8, 12, "bfloat16", 32000)
CASE = ("program", "size", "variant", "engine")
KEEPS_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
COLUMNS = {
  "program": "{program}",
  "variant": "{variant}",
  "engine": "{engine}",
  "planned and compiled in": "{plan_s:.1f} s",
  "total": "{total_mib:.1f} MiB",
  "temporaries": "{temp_mib:.1f} MiB",
  "peak": "{peak_mib:.1f} MiB",
  "peak / total": "{peak_ratio:.3f}",
  "step": "{step_ms:.2f} ms",
  "over plain": "{time_ratio:.2f}",
  "loss": "{loss:.4f}",
}


@dataclasses.dataclass(frozen=True)
class Variant:
  """What one process runs.

  Attributes:
    program: of `PROGRAMS`.
    name: a rung of `ladder_programs`, "plain", or what the budget is called.
    engine: of `ENGINES`; none where there is no budget.
    budget: bytes, "fits" or a share of the plain step's temporaries ("50%").
    size: of the decoder.
    num_steps: that are timed; with none it is planned and compiled alone.
  """

  program: str
  name: str
  engine: str | None
  budget: str | int | None
  size: list[Any]
  num_steps: int

  def run(self) -> tables.Row:
    """Plans, compiles and runs, here."""
    program = ladder_programs.Program(self.program, ladder_programs.Size(*self.size))
    rung = ladder_programs.PLAIN if self.engine else ladder_programs.RUNGS.get(self.name, ladder_programs.PLAIN)
    optimizer = optax.adamw(1e-4)
    loss = program.loss(rung)
    if self.engine is not None:
      loss = coopjax.remat(loss, budget=1.0)  # what the plan of the step decides on

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens):
      value, gradient = jax.value_and_grad(loss)(params, tokens)
      updates, state = optimizer.update(gradient, state, params)
      return optax.apply_updates(params, updates), state, value

    params, tokens = program.arguments
    arguments = params, jax.eval_shape(optimizer.init, params), tokens
    start = time.perf_counter()
    if self.engine is not None:
      budget, engine = self.budget, self.engine
      if engine == "offload":
        budget, engine = coopjax.Budget(budget, offload=True), "policy"
      step = coopjax.plan(step, *arguments, budget=budget, engine=engine).apply(step)
    compiled = step.lower(*arguments).compile()
    plan_s = time.perf_counter() - start
    memory = coopjax.MemoryProfile(**totals_of(compiled.memory_analysis()))
    total_mib = memory.total_bytes / MIB
    row = {"plan_s": plan_s, "total_mib": total_mib, "temp_mib": memory.temp_bytes / MIB}
    if not self.num_steps:
      return row
    times, peak, value = self._steps(compiled, *arguments, optimizer)
    row |= {"peak_mib": peak and peak / MIB, "peak_ratio": peak and peak / MIB / total_mib}
    return row | {"step_ms": 1e3 * statistics.median(times), "loss": value}

  def _steps(
    self, compiled: Any, params: Any, state: Any, tokens: Any, optimizer: Any
  ) -> tuple[list[float], int | None, float]:
    """Seconds of each step behind the first, the most bytes that were ever given out, and the last loss."""
    drawn = jax.jit(lambda key, leaf: (0.02 * jax.random.normal(key, leaf.shape)).astype(leaf.dtype), static_argnums=1)
    leaves, tree = jax.tree.flatten(params)
    params = tree.unflatten(drawn(jax.random.key(index), leaf) for index, leaf in enumerate(leaves))
    state = optimizer.init(params)
    tokens = jax.random.randint(jax.random.key(0), tokens.shape, 0, ladder_programs.Size(*self.size).vocabulary)
    params, state, value = compiled(params, state, tokens)
    times = []
    for _ in range(self.num_steps):
      jax.block_until_ready(value)
      start = time.perf_counter()
      params, state, value = compiled(params, state, tokens)
      jax.block_until_ready((params, value))
      times.append(time.perf_counter() - start)
    return times, (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"), float(value)


def in_process(variant: Variant) -> tables.Row:
  """The row of one variant, from a process that plans and compiles and one that runs; both end with it."""
  row: tables.Row = {"program": variant.program, "size": " ".join(map(str, variant.size))}
  row |= {"variant": variant.name, "engine": variant.engine or "", "error": ""}
  with tempfile.TemporaryDirectory() as kept:
    caches = {"COOPJAX_CACHE_DIR": kept, "JAX_COMPILATION_CACHE_DIR": kept, **KEEPS_ALL}
    for each in (dataclasses.replace(variant, num_steps=0), variant):
      command = [sys.executable, __file__, "--variant", json.dumps(dataclasses.asdict(each))]
      done = subprocess.run(command, capture_output=True, text=True, env=os.environ | caches)
      if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        error = next((line for line in said if "RESOURCE_EXHAUSTED" in line or "coopjax.errors" in line), said[-1])
        return row | {"error": error[:200]}
      row = json.loads(done.stdout.splitlines()[-1]) | row  # the first's seconds stay
  return row


def probed() -> tables.Row:
  """The device, seen by a process that gives it back."""
  look = (
    "import json, jax; d = jax.devices()[0]; "
    "print(json.dumps({'platform': d.platform, 'kind': d.device_kind, 'count': jax.device_count(), "
    "'memory_bytes': (d.memory_stats() or {}).get('bytes_limit')}))"
  )
  done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
  return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=["decoder"])
  parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
  parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=BUDGETS)
  parser.add_argument("--steps", type=int, default=10, help="that are timed, of each variant (10)")
  parser.add_argument("--anyway", action="store_true", help="on the CPU, too")
  parser.add_argument("--out", type=pathlib.Path, default=OUT, help="the file to write")
  parser.add_argument("--variant", help=argparse.SUPPRESS)
  for field in dataclasses.fields(SIZE):
    default = getattr(SIZE, field.name)
    parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(default), default=default, help=f"({default})")
  options = parser.parse_args()
  if options.variant:
    print(json.dumps(Variant(**json.loads(options.variant)).run()))
    return
  device = probed()
  if device["platform"] == "cpu" and not options.anyway:
    print(NONE_HERE)
    return
  size = [getattr(options, field.name) for field in dataclasses.fields(SIZE)]
  variants = [(name, None) for name in HAND]
  variants += [(name, engine) for engine in options.engines for name in options.budgets]
  before, rows = tables.read(options.out), []
  with tables.progress() as progress:
    bar = progress.add_task("variants", total=len(options.programs) * len(variants))
    for program in options.programs:
      by_hand: dict[str, tables.Row] = {}
      for name, engine in variants:
        progress.update(bar, description=f"{program} {name} {engine or ''}")
        budget = name
        if engine and name in by_hand:
          budget = int(by_hand[name].get("temp_mib", 0) * MIB)  # none where it did not compile, and that is no budget
        row = in_process(Variant(program, name, engine, budget, size, options.steps))
        if engine is None:
          by_hand[name] = row
        plain_ms = by_hand["plain"].get("step_ms")
        if plain_ms and "step_ms" in row:
          row["time_ratio"] = row["step_ms"] / plain_ms
        rows.append(row)
        tables.write(options.out, device=device, rows=tables.merged(before, rows, CASE))
        progress.advance(bar)
  tables.console().print(tables.table(rows, COLUMNS, f"{device['count']} x {device['kind']}, one of them in use"))
  for row in filter(lambda row: row["error"], rows):
    print(f"{row['program']} {row['variant']} {row['engine']}: {row['error']}")


if __name__ == "__main__":
  main()
