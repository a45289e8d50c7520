"""The HLO pass, module by module: what XLA compiles from its output, how small that gets, and how long it takes.

  corpus      every program of hlo_corpus x budgets {90, 70, 50, 30 %} x {order only, both}: compiled and run, its
              outputs compared bit by bit with the program's own. Where a budget is out of reach, the smallest
              temporaries reached stand next to a lower bound: for an order what its buffers take however they are
              packed (live bytes, offsets aligned, tables of tuples), for both the bytes that no schedule avoids.
  schedulers  order only against XLA:CPU's default scheduler and its memory-optimized one (predicted, which is exact),
              and the bytes of temporaries that no order goes below
  targets     order only against the schedulers of XLA:GPU (H100) and XLA:TPU (v5e), compiled ahead of time
  networks    ResNet-50, decoder, VGG-16, Inception V3 and DenseNet-121 at 50%, 25% and as small as it gets, next to the
              largest operands and results of one op (the last two need Keras: KERAS_BACKEND=jax)
  speed       a decoder of some 85,000 instructions (10 MB): parsed, planned and emitted
  loops       150 loops one after the other, all of which are in the way of 60%: planned and emitted

  python benchmarks/hlo_pass.py corpus
  python benchmarks/hlo_pass.py corpus --names gpt_gradient fft
  python benchmarks/hlo_pass.py                             # everything

What is measured joins what is in the results file.
"""

import argparse
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import hlo_corpus
import jax
import jax.numpy as jnp
import models
import numpy as np
import tables
import temp_bounds
from hlo_capture import capture, post_scheduler
from hlo_pass_corpus import corpus_rows

from coopjax import _core
from coopjax.hlo_engine.recompute_order import Changes, RecomputeOrderResult, recompute_order
from coopjax.planners.effort import steps_of
from coopjax.xla import targets
from coopjax.xla.module import parse_module, predict_memory, read_step_program

MIB = 2**20
RESULTS = tables.RESULTS / "hlo_pass.json"
BUDGETS = (0.9, 0.7, 0.5, 0.3)
NETWORK_BUDGETS = (0.5, 0.25, 0.0)
KEY = ("part", "program", "changes", "budget")
MEMORY_SCHEDULER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
TARGETS = {"gpu:h100": "cuda", "tpu:v5e:2x2": "tpu"}
TARGET_PROGRAMS = (
  "mlp_gradient",
  "gpt_gradient",
  "gpt_bf16_step_donated",
  "resnet_step_donated",
  "unet_gradient",
  "adam_step_donated",
)
COLUMNS = {
  "corpus": {
    "program": "{program}",
    "budget": "{budget:.0%}",
    "changes": "{changes}",
    "temp\nKiB": "{before_kib:.0f}",
    "allowed": "{budget_kib:.0f}",
    "reached": "{temp_kib:.0f}",
    "verdict": "{verdict}",
    "over\nbound": "{over_bound:+.1%}",
    "recompute": "{overhead:+.1%}",
    "same\nbits": "{same_bits}",
    "s": "{seconds:.2f}",
  },
  "schedulers": {
    "program": "{program}",
    "default\nKiB": "{default_kib:.0f}",
    "memory-\noptimized": "{memory_kib:.0f}",
    "ours": "{temp_kib:.0f}",
    "to default": "{saves:+.1%}",
    "to memory-\noptimized": "{saves_memory:+.1%}",
    "over\nbound": "{over_bound:+.1%}",
    "order": "{order}",
    "s": "{seconds:.2f}",
  },
  "targets": {
    "program": "{program}",
    "target": "{changes}",
    "default\nKiB": "{default_kib:.0f}",
    "ours": "{temp_kib:.0f}",
    "saves": "{saves:+.1%}",
    "reason": "{reason}",
  },
  "networks": {
    "program": "{program}",
    "budget": "{budget:.0%}",
    "temp\nMiB": "{before_mib:.1f}",
    "order\nonly": "{order_mib:.1f}",
    "reached": "{temp_mib:.1f}",
    "largest\nop": "{largest_mib:.1f}",
    "bound": "{bound_mib:.1f}",
    "recompute": "{overhead:+.1%}",
    "CPU\ns": "{cpu_s:.2f}",
    "of a\ncompile": "{compile_cpu_s:.2f}",
  },
  "speed": {
    "program": "{program}",
    "instructions": "{instructions:,}",
    "MB": "{megabytes:.1f}",
    "ops": "{ops:,}",
    "changes": "{changes}",
    "budget": "{budget:.0%}",
    "reached": "{share:.1%}",
    "parse s": "{parse_s:.2f}",
    "all s": "{seconds:.2f}",
    "CPU s": "{cpu_s:.2f}",
    "compile s": "{compile_s:.0f}",
    "of compile": "{of_compile:.1%}",
  },
  "loops": {
    "program": "{program}",
    "instructions": "{instructions:,}",
    "budget": "{budget:.0%}",
    "reached": "{share:.1%}",
    "loops\nplanned": "{planned}",
    "recompute": "{overhead:+.1%}",
    "plans": "{plans}",
    "s": "{seconds:.1f}",
    "CPU s": "{cpu_s:.1f}",
  },
}


def order_only(module: bytes, **options: Any) -> RecomputeOrderResult:
  return recompute_order(module, changes=Changes.ORDER, **options)


def scheduler_rows(names: list[str]) -> Iterator[tables.Row]:
  for name in names:
    default, memory = (capture(hlo_corpus.PROGRAMS[name]().lower(), options) for options in (None, MEMORY_SCHEDULER))
    start = time.perf_counter()
    result = order_only(default)
    seconds = time.perf_counter() - start
    default_bytes, memory_bytes = result.before.temp_bytes, predict_memory(memory).temp_bytes
    if not default_bytes:
      continue
    temp_bytes, bound_bytes = result.after.temp_bytes, temp_bounds.least_temp_bytes(default, temp_bounds.of_orders)
    yield {
      "part": "schedulers",
      "program": name,
      "changes": "order",
      "budget": None,
      "default_kib": default_bytes / 1024,
      "memory_kib": memory_bytes / 1024,
      "temp_kib": temp_bytes / 1024,
      "saves": 1 - temp_bytes / default_bytes,
      "saves_memory": 1 - temp_bytes / memory_bytes,
      "bound_kib": bound_bytes / 1024,
      "over_bound": temp_bytes / bound_bytes - 1 if bound_bytes else None,
      "can_save": 1 - bound_bytes / default_bytes,
      "order": result.orders[0][0],
      "seconds": seconds,
    }


def target_rows(names: list[str]) -> Iterator[tables.Row]:
  for target, platform in TARGETS.items():
    device = targets.resolve(target)
    for name in names:
      program, reasons = hlo_corpus.PROGRAMS[name](), []
      avals = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device.sharding), program.args)
      lowered = [
        jax.jit(lambda *args, fn=program.fn: fn(*args), donate_argnums=program.donated).lower(*avals) for _ in range(2)
      ]  # of functions of their own: no cache knows the second
      plain = lowered[0].compile()

      def rewrite(module, reasons=reasons, device=device):
        if b"entry_computation" in module[:100]:  # XLA:GPU tunes single instructions in modules of their own
          return None
        result = order_only(bytes(module), roofline=device.roofline)
        reasons.append(result.reason)
        return result.module_bytes

      with post_scheduler(rewrite, platform):
        ours = lowered[1].compile()
      before, after = (each.memory_analysis().temp_size_in_bytes for each in (plain, ours))
      yield {
        "part": "targets",
        "program": name,
        "changes": target,
        "budget": None,
        "default_kib": before / 1024,
        "temp_kib": after / 1024,
        "saves": 1 - after / before if before else 0.0,
        "reason": " ".join(reasons),
      }


def _keras(name: str, batch: int) -> jax.stages.Lowered:
  import zoo

  jaxpr = zoo.MODELS[name].step().trace(batch).jaxpr
  return jax.jit(jax.extend.core.jaxpr_as_fun(jaxpr)).lower(
    *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in jaxpr.in_avals)
  )


def _gradient(model: models.Model) -> jax.stages.Lowered:
  return jax.jit(jax.value_and_grad(model.loss)).lower(model.params, *model.batch)


NETWORKS: dict[str, Callable[[], jax.stages.Lowered]] = {
  "ResNet-50": lambda: _gradient(models.resnet50()),
  "decoder": lambda: _gradient(models.decoder()),
  "VGG-16": lambda: _gradient(models.vgg16()),
  "Inception V3": lambda: _keras("inception_v3", 8),
  "Inception V3, batch 2": lambda: _keras("inception_v3", 2),
  "DenseNet-121": lambda: _keras("densenet121", 8),
}


def largest_op_bytes(module: bytes) -> int:
  """Temporary operands and results of the op that has most."""
  program, _ = read_step_program(module)
  sizes = np.where(program.value_kind == 0, program.value_bytes, 0)
  return max(int(sizes[program.inputs(op)].sum() + sizes[program.outputs(op)].sum()) for op in range(program.num_ops))


def network_rows(names: list[str]) -> Iterator[tables.Row]:
  for name in names:
    lowered = NETWORKS[name]()
    module, compile_s = capture(lowered), cpu_seconds(lowered.compile)
    program, _ = read_step_program(module)
    order_bytes, before = order_only(module).after.temp_bytes, predict_memory(module).temp_bytes
    for share in NETWORK_BUDGETS:
      start, start_cpu = time.perf_counter(), time.process_time()
      max_steps = steps_of("normal", parse_module(module).num_instructions)
      result = recompute_order(module, int(share * before), max_steps=max_steps)
      yield {
        "part": "networks",
        "program": name,
        "changes": "both",
        "budget": share,
        "before_mib": before / MIB,
        "order_mib": order_bytes / MIB,
        "temp_mib": result.after.temp_bytes / MIB,
        "largest_mib": largest_op_bytes(module) / MIB,
        "bound_mib": _core.lower_bound(program.core)[0] / MIB,
        "overhead": result.recompute_cost_s / float(program.op_cost_s.sum()),
        "seconds": time.perf_counter() - start,
        "cpu_s": time.process_time() - start_cpu,
        "compile_cpu_s": compile_s,
      }


def cpu_seconds(work: Callable[[], Any]) -> float:
  start = time.process_time()
  work()
  return time.process_time() - start


def speed_rows(num_layers: int) -> Iterator[tables.Row]:
  """A decoder's gradient, deep and thin: the compile to compare with is one of its own."""
  model = models.decoder(num_layers, width=32, context=32, batch_size=2, num_heads=2, vocab_size=64)
  modules = []
  with post_scheduler(lambda module: modules.append(bytes(module))):
    lowered = _gradient(model)
    start, start_cpu = time.perf_counter(), time.process_time()
    lowered.compile()
    compile_s, compile_cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
  module = max(modules, key=len)
  for share, changes in ((None, Changes.ORDER), (0.5, Changes.BOTH)):
    start, start_cpu = time.perf_counter(), time.process_time()
    parsed = parse_module(module)
    parse_s = time.perf_counter() - start
    budget_bytes = None if share is None else int(share * predict_memory(parsed).temp_bytes)
    result = recompute_order(parsed, budget_bytes, changes=changes)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    yield {
      "part": "speed",
      "program": f"decoder, {num_layers} blocks",
      "changes": changes.name.lower(),
      "budget": share,
      "instructions": parsed.num_instructions,
      "megabytes": len(module) / 1e6,
      "ops": len(result.order),
      "share": result.after.temp_bytes / result.before.temp_bytes,
      "parse_s": parse_s,
      "timing_s": result.timing_s,
      "seconds": seconds,
      "compile_s": compile_s,
      "of_compile": seconds / compile_s,
      "cpu_s": cpu_s,
      "compile_cpu_s": compile_cpu_s,
    }


def descents(num_loops: int, depth: int = 8, width: int = 64, batch_size: int = 512) -> jax.stages.Lowered:
  """A network trained in loop after loop; each body holds all that its gradient reads."""

  def loss(weights, x):
    for weight in weights:
      x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)

  def fn(weights, batches):
    for k in range(num_loops):

      def step(weights, x, k=k):
        gradient = jax.grad(loss)(weights, x + k)  # a body of its own
        return jax.tree.map(lambda weight, change: weight - 0.1 * change, weights, gradient), None

      weights, _ = jax.lax.scan(step, weights, batches)
    return weights

  weights = [jax.ShapeDtypeStruct((width, width), "float32")] * depth
  return jax.jit(fn).lower(weights, jax.ShapeDtypeStruct((2, batch_size, width), "float32"))


def loop_rows(num_loops: int = 150, share: float = 0.6) -> Iterator[tables.Row]:
  module = parse_module(capture(descents(num_loops)))
  cost_s = float(read_step_program(module)[0].op_cost_s.sum())
  start, start_cpu = time.perf_counter(), time.process_time()
  result = recompute_order(module, int(share * predict_memory(module).temp_bytes), max_steps=_core.UNLIMITED_STEPS)
  seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
  yield {
    "part": "loops",
    "program": f"{num_loops} loops",
    "changes": "both",
    "budget": share,
    "instructions": module.num_instructions,
    "share": result.after.temp_bytes / result.before.temp_bytes,
    "planned": len(result.inner),
    "overhead": result.recompute_cost_s / cost_s,
    "plans": len(result.rounds),
    "timing_s": result.timing_s,
    "seconds": seconds,
    "cpu_s": cpu_s,
  }


def summary(rows: list[tables.Row]) -> Iterator[str]:
  """What the rows of a part come to, a line each."""
  part = rows[0]["part"]
  if part == "corpus":
    for changes in ("order", "both"):
      verdicts = [row["verdict"] for row in rows if row["changes"] == changes]
      counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("holds", "smallest", "misses"))
      yield f"{changes}: {len(verdicts)} cells, {counts}"
    yield f"outputs differ in {sum(not row['same_bits'] for row in rows)} cells"
  if part in ("schedulers", "targets"):
    for key in ("saves", "saves_memory", "can_save", "over_bound"):
      saves = [row[key] for row in rows if row.get(key) is not None]
      if saves:
        mean, median = np.mean(saves), np.median(saves)
        yield f"{key}: mean {mean:.1%}, median {median:.1%}, most {max(saves):.1%}, least {min(saves):.1%}"


def merge(path: pathlib.Path, rows: list[tables.Row]) -> list[tables.Row]:
  """The rows of a results file, with these in place of those for the same cells."""
  known = json.loads(path.read_text())["rows"] if path.exists() else []
  key = lambda row: tuple(row[name] for name in KEY)
  new = {key(row) for row in rows}
  return [row for row in known if key(row) not in new] + rows


def main() -> None:
  text, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=text, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("parts", nargs="*", choices=[[], *COLUMNS], default=[], metavar="part", help=", ".join(COLUMNS))
  parser.add_argument("--names", nargs="+", help="programs of the corpus, or networks; all by default")
  parser.add_argument("--layers", type=int, default=24, help="of the decoder whose planning is timed")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
  arguments = parser.parse_args()
  hlo_corpus.use_virtual_devices()
  parts = {
    "corpus": lambda: corpus_rows(arguments.names or list(hlo_corpus.PROGRAMS), BUDGETS),
    "schedulers": lambda: scheduler_rows(arguments.names or list(hlo_corpus.PROGRAMS)),
    "targets": lambda: target_rows(arguments.names or list(TARGET_PROGRAMS)),
    "networks": lambda: network_rows(arguments.names or list(NETWORKS)),
    "speed": lambda: speed_rows(arguments.layers),
    "loops": loop_rows,
  }
  console = tables.console()
  for part in arguments.parts or parts:
    rows = []
    with tables.progress() as progress:
      bar = progress.add_task(part, total=None)
      for row in parts[part]():
        rows.append(row)
        progress.update(bar, description=f"{part}: {row['program']}")
        tables.write(arguments.out, rows=merge(arguments.out, rows))
    console.print(tables.table(rows, COLUMNS[part], part))
    for line in summary(rows):
      console.print(line)
  console.print(f"written to {arguments.out}")


if __name__ == "__main__":
  main()
