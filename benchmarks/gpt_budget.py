"""Memory against time: coopjax beside per-block jax.checkpoint and XLA's own memory-first scheduler.

For the GPT of examples/train_gpt.py (its whole train step) and for ResNet-50, a decoder and VGG-16 (loss and
gradient) every variant is compiled, and its temporaries are read from the executable. Then all variants of a model
take turns, one step each, round after round, so that a busy machine slows all alike; a step time ratio is the median
over the unbudgeted program's of the same rounds. Recomputed FLOPs are what XLA's cost analysis counts in the compiled
program beyond what it counts in the unbudgeted one. "plan s" is the planner's time inside XLA's
pipeline; "in hook" is the rest of the hook (read, predict, rewrite, prove), as a share of XLA's own compile. Writes
benchmarks/results/gpt_budget.json.

  python benchmarks/gpt_budget.py                       # everything, some half an hour on two cores
  python benchmarks/gpt_budget.py --model decoder --rounds 20
"""

import argparse
import contextlib
import dataclasses
import gc
import os
import pathlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))

import gpt
import jax
import models
import numpy as np
import optax
import rich.box
import rich.progress
import rich.table
import tables

import coopjax
from coopjax.hlo_engine import hook

MIB = 2**20
RESULTS = tables.RESULTS / "gpt_budget.json"
BUDGETS = (0.5, 0.25, 0.12)
MEMORY_SCHEDULER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@dataclasses.dataclass(frozen=True)
class Case:
  """A model with the program that is measured.

  Attributes:
    name: for the table.
    loss: what coopjax is given.
    checkpointed_loss: the same with ``jax.checkpoint`` around every block.
    jit: makes the program from a loss.
    arguments: the program's arguments, made anew.
    advance: the next step's arguments from this step's arguments and outputs.
  """

  name: str
  loss: Callable
  checkpointed_loss: Callable
  jit: Callable[[Callable], Any]
  arguments: Callable[[], tuple]
  advance: Callable[[tuple, tuple], tuple] = lambda arguments, outputs: arguments


def gpt_case() -> Case:
  """The train step of the demo: AdamW, parameters and optimizer state donated."""
  config = gpt.GPTConfig()
  loss, _ = gpt.make_loss(config)
  checkpointed_loss, _ = gpt.make_loss(dataclasses.replace(config, checkpoint_blocks=True))
  optimizer = optax.adamw(3e-4)
  batch = next(gpt.batches(gpt.read_corpus(), config))

  def arguments():
    params = gpt.make_loss(config)[1]
    return params, optimizer.init(params), batch

  return Case(
    "GPT",
    loss,
    checkpointed_loss,
    lambda loss: gpt.make_train_step(loss, optimizer),
    arguments,
    lambda arguments, outputs: (*outputs[:2], arguments[2]),
  )


def gradient_case(model: models.Model) -> Case:
  """Loss and gradient of one of the plain models."""
  return Case(
    model.name,
    model.loss,
    model.checkpointed_loss,
    lambda loss: jax.jit(jax.value_and_grad(loss)),
    lambda: jax.device_put((model.params, *model.batch)),
  )


CASES = {
  "gpt": gpt_case,
  "resnet50": lambda: gradient_case(models.resnet50()),
  "decoder": lambda: gradient_case(models.decoder()),
  "vgg16": lambda: gradient_case(models.vgg16()),
}


@contextlib.contextmanager
def planning() -> Iterator[list[hook.Outcome]]:
  """Collects every plan that the HLO engine makes inside the block, while tracing and in XLA's pipeline."""
  outcomes, plan_module = [], hook.plan_module

  def recording(*args, **kwargs):
    outcomes.append(plan_module(*args, **kwargs))
    return outcomes[-1]

  hook.plan_module = recording
  try:
    yield outcomes
  finally:
    hook.plan_module = plan_module


class Variant:
  """One way to run a case: compiled once, then stepped in turn with the others."""

  def __init__(
    self,
    case: Case,
    name: str,
    loss: Callable,
    budget: float | int | None = None,
    *,
    compiler_options: dict[str, str] | None = None,
  ):
    self.case, self.name, self.budget = case, name, budget
    self._loss, self._compiler_options = loss, compiler_options
    self.step_s: list[float] = []

  def compile(self) -> None:
    self.arguments = self.case.arguments()
    with planning() as outcomes:
      start = time.perf_counter()
      lowered = self.case.jit(self._loss).lower(*self.arguments)
      self.trace_s = time.perf_counter() - start
      traced_outcomes = len(outcomes)
      start = time.perf_counter()
      self.step = lowered.compile(compiler_options=self._compiler_options)
      self.compile_s = time.perf_counter() - start
    in_hook = outcomes[traced_outcomes:]
    self.plan_s = sum(outcome.planning_s for outcome in in_hook)
    self.hook_s = sum(outcome.seconds for outcome in in_hook) - self.plan_s
    self.temp_bytes = self.step.memory_analysis().temp_size_in_bytes
    self.flops = self.step.cost_analysis()["flops"]

  def run(self) -> None:
    start = time.perf_counter()
    self.outputs = jax.block_until_ready(self.step(*self.arguments))
    self.step_s.append(time.perf_counter() - start)
    self.arguments = self.case.advance(self.arguments, self.outputs)


def variants(case: Case) -> Iterator[Variant]:
  """What is compared; the first is the unbudgeted program. Each is compiled before the next is asked for."""
  yield Variant(case, "no remat", case.loss)
  yield Variant(case, "XLA memory scheduler", case.loss, compiler_options=MEMORY_SCHEDULER)
  per_block = Variant(case, "jax.checkpoint per block", case.checkpointed_loss)
  yield per_block
  for engine in ("hlo", "policy"):
    budgets = {f"{budget:.0%}": budget for budget in BUDGETS} | {"at checkpoint's bytes": per_block.temp_bytes}
    for name, budget in budgets.items():
      loss = coopjax.remat(case.loss, budget=budget, engine=engine, on_infeasible="best_effort")
      yield Variant(case, f"coopjax {engine} {name}", loss, budget)


def measure(case: Case, rounds: int, progress: rich.progress.Progress) -> list[dict[str, Any]]:
  """Compiles all variants of a case, then steps them in turn; one row a variant."""
  competitors = []
  bar = progress.add_task(case.name, total=None)
  for competitor in variants(case):
    progress.update(bar, description=f"{case.name}: compiling {competitor.name}")
    competitor.compile()
    competitors.append(competitor)
  progress.update(bar, total=len(competitors) * (rounds + 1))
  for turn in range(rounds + 1):  # the first round warms up
    progress.update(bar, description=f"{case.name}: round {turn} of {rounds}")
    shift = turn % len(competitors)  # nobody always follows the same neighbour
    for competitor in competitors[shift:] + competitors[:shift]:
      competitor.run()
      progress.advance(bar)
  progress.update(bar, description=case.name)
  return [as_row(competitor, competitors[0]) for competitor in competitors]


def as_row(variant: Variant, plain: Variant) -> dict[str, Any]:
  """A variant's figures, JSON-able."""
  times, plain_times = variant.step_s[1:], plain.step_s[1:]
  budget_bytes = None if variant.budget is None else coopjax.Budget.parse(variant.budget).resolve(plain.temp_bytes)
  ours, theirs = jax.tree.leaves(variant.outputs), jax.tree.leaves(plain.outputs)
  return {
    "model": variant.case.name,
    "variant": variant.name,
    "temp_bytes": variant.temp_bytes,
    "budget_bytes": budget_bytes,
    "within_budget": None if budget_bytes is None else variant.temp_bytes <= budget_bytes,
    "step_s": statistics.median(times),
    "step_min_s": min(times),
    "time_ratio": statistics.median(times) / statistics.median(plain_times),
    "time_ratio_of_min": min(times) / min(plain_times),
    "flops": variant.flops,
    "recomputed_flops": variant.flops - plain.flops,
    "trace_s": variant.trace_s,
    "compile_s": variant.compile_s,
    "plan_s": variant.plan_s,
    "hook_s": variant.hook_s,
    "hook_share": variant.hook_s / (variant.compile_s - variant.hook_s - variant.plan_s),
    "is_bit_identical": all(np.array_equal(our, their) for our, their in zip(ours, theirs, strict=True)),
  }


def table(rows: list[dict[str, Any]]) -> rich.table.Table:
  """One model's rows for people."""
  shown = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  shown.add_column(rows[0]["model"], no_wrap=True)
  for heading in (
    "temp\nMiB",
    "budget\nMiB",
    "holds",
    "step\ntime",
    "of\nminima",
    "recomputed\nGFLOP",
    "trace\ns",
    "compile\ns",
    "plan\ns",
    "in hook\ns (share)",
    "same\nbits",
  ):
    shown.add_column(heading, justify="right", no_wrap=True)
  for row in rows:
    has_budget = row["budget_bytes"] is not None
    shown.add_row(
      row["variant"],
      f"{row['temp_bytes'] / MIB:.1f}",
      f"{row['budget_bytes'] / MIB:.1f}" if has_budget else "",
      yes_no(row["within_budget"]) if has_budget else "",
      f"{row['time_ratio']:.3f}x",
      f"{row['time_ratio_of_min']:.3f}x",
      f"{row['recomputed_flops'] / 1e9:+.1f}",
      f"{row['trace_s']:.2f}",
      f"{row['compile_s']:.2f}",
      f"{row['plan_s']:.2f}" if row["plan_s"] else "",
      f"{row['hook_s']:.2f} ({row['hook_share']:.1%})" if row["hook_s"] else "",
      yes_no(row["is_bit_identical"]),
    )
  return shown


def yes_no(fact: bool) -> str:
  return "yes" if fact else "NO"


def main() -> None:
  summary, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--model", nargs="+", choices=CASES, default=list(CASES))
  parser.add_argument("--rounds", type=int, default=10, help="timed steps of each variant")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
  arguments = parser.parse_args()
  warnings.simplefilter("ignore", coopjax.BudgetExceededWarning)  # the table says which budgets are not held

  rows = []
  console = tables.console()
  with tables.progress() as progress:
    for name in arguments.model:
      rows += (measured := measure(CASES[name](), arguments.rounds, progress))
      console.print(table(measured))
      gc.collect()
  tables.write(arguments.out, rounds=arguments.rounds, rows=rows)
  console.print(f"written to {arguments.out}")


if __name__ == "__main__":
  main()
