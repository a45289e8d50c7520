"""Memory against time: coopjax beside what people write by hand, and beside XLA's own memory-first scheduler.

The GPT of examples/train_gpt.py (its whole train step), ResNet-50, VGG-16 and a decoder in plain JAX, and a Llama whose
layers are scanned (loss and gradient). By hand: `jax.checkpoint` around every block with each policy that people pick,
for the Llama the rungs of MaxText's ladder. Every variant of a model is compiled, and its temporaries are read from the
executable; then all take turns, one step each, round after round, so that a busy machine slows all alike. A step time
ratio is the median over the unbudgeted program's of the same rounds. Recomputed FLOPs are those of the compiled
program beyond the unbudgeted one's, loops with their length. "plan s" is the planner's time inside XLA's pipeline; "in
hook" is the rest of the hook (read, predict, rewrite, prove), as a share of XLA's own compile. Writes
benchmarks/results/peers.json and peers.png; rows of models that are not measured this time are kept.

  python benchmarks/peers.py                       # everything, some half an hour on two cores
  python benchmarks/peers.py --model decoder --rounds 20
"""

import argparse
import dataclasses
import functools
import gc
import os
import pathlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))

import backends
import gpt
import jax
import ladder_programs
import matplotlib.pyplot as plt
import models
import numpy as np
import optax
import rich.progress
import tables
from flax import nnx

import coopjax
from coopjax.xla.compile import measure as measure_compiled

MIB = 2**20
RESULTS = tables.RESULTS / "peers.json"
BUDGETS = (0.5, 0.25, 0.12)
MEMORY_SCHEDULER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
PER_BLOCK = "jax.checkpoint per block"
POLICIES = {
  PER_BLOCK: None,
  "dots saveable": jax.checkpoint_policies.dots_saveable,
  "dots without batch saveable": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
_PRODUCTS = ("dot_general", "conv_general_dilated")
IMAGE_POLICIES = {PER_BLOCK: None, "products saveable": lambda primitive, *_, **__: primitive.name in _PRODUCTS}
COLUMNS = {
  "variant": "{variant}",
  "temp\nMiB": "{temp_mib:.1f}",
  "budget\nMiB": "{budget_mib:.1f}",
  "holds": "{holds}",
  "step\ntime": "{time_ratio:.3f}x",
  "of\nminima": "{time_ratio_of_min:.3f}x",
  "recomputed\nGFLOP": "{recomputed_gflop:+.1f}",
  "trace\ns": "{trace_s:.2f}",
  "compile\ns": "{compile_s:.2f}",
  "plan\ns": "{plan_s:.2f}",
  "in hook\ns": "{hook_s:.2f}",
  "share": "{hook_share:.1%}",
  "same\nbits": "{is_bit_identical}",
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A model with the program that is measured.

  Attributes:
    name: for the table.
    loss: what coopjax is given.
    hand: the same with `jax.checkpoint` around every block, by policy; the first saves nothing inside.
    jit: makes the program from a loss.
    arguments: the program's arguments, made anew.
    advance: the next step's arguments from this step's arguments and outputs.
    engines: of coopjax.
    rivals: those by hand whose bytes are budgets, too, by what the rows call them.
  """

  name: str
  loss: Callable
  hand: dict[str, Callable]
  jit: Callable[[Callable], Any]
  arguments: Callable[[], tuple]
  advance: Callable[[tuple, tuple], tuple] = lambda arguments, outputs: arguments
  engines: tuple[str, ...] = ("hlo", "policy")
  rivals: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"per-block": PER_BLOCK})


def gpt_case() -> Case:
  """The train step of the demo: AdamW, parameters and optimizer state donated."""
  config = gpt.GPTConfig()
  loss_of = lambda **changes: gpt.make_loss(dataclasses.replace(config, **changes))[0]
  optimizer = optax.adamw(3e-4)
  batch = next(gpt.batches(gpt.read_corpus(), config))

  def arguments():
    params = gpt.make_loss(config)[1]
    return params, optimizer.init(params), batch

  return Case(
    "GPT",
    loss_of(),
    {name: loss_of(remat=functools.partial(nnx.remat, policy=policy)) for name, policy in POLICIES.items()},
    lambda loss: gpt.make_train_step(loss, optimizer),
    arguments,
    lambda arguments, outputs: (*outputs[:2], arguments[2]),
  )


def _gradient(loss: Callable) -> Callable:
  return jax.jit(jax.value_and_grad(loss))


def gradient_case(model: models.Model, policies: dict[str, models.Policy]) -> Case:
  """Loss and gradient of one of the plain models."""
  return Case(
    model.name,
    model.loss,
    {name: model.checkpointed(policy) for name, policy in policies.items()},
    _gradient,
    lambda: jax.device_put((model.params, *model.batch)),
  )


def llama_case() -> Case:
  """Scanned layers, with values named as MaxText names them; every rung of its ladder."""
  program = ladder_programs.Program("decoder", ladder_programs.Size(length=512))
  params, tokens = program.arguments

  def arguments():
    rng = np.random.default_rng(0)
    draw = lambda leaf: (0.02 * rng.standard_normal(leaf.shape)).astype(leaf.dtype)
    return jax.device_put(
      (jax.tree.map(draw, params), rng.integers(0, program.size.vocabulary, tokens.shape, np.int32))
    )

  rungs = {
    PER_BLOCK if name == "full" else name: program.loss(ladder_programs.RUNGS[name])
    for name in ladder_programs.ON_DEVICE
  }
  rivals = {"per-block": PER_BLOCK} | {name: name for name in ("save_qkv_proj", "minimal")}
  return Case("scanned Llama", program.loss(), rungs, _gradient, arguments, engines=("auto", "policy"), rivals=rivals)


CASES = {
  "gpt": gpt_case,
  "resnet50": lambda: gradient_case(models.resnet50(), IMAGE_POLICIES),
  "llama": llama_case,
  "decoder": lambda: gradient_case(models.decoder(), POLICIES),
  "vgg16": lambda: gradient_case(models.vgg16(), IMAGE_POLICIES),
}


class Variant:
  """One way to run a case: compiled once, then stepped in turn with the others."""

  def __init__(
    self,
    case: Case,
    kind: str,
    name: str,
    loss: Callable,
    budget: float | int | None = None,
    *,
    compiler_options: dict[str, str] | None = None,
  ):
    self.case, self.kind, self.name, self.budget = case, kind, name, budget
    self._loss, self._compiler_options = loss, compiler_options
    self.step_s: list[float] = []

  def compile(self) -> None:
    self.arguments = self.case.arguments()
    with backends.outcomes() as outcomes:
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
    self.flops = measure_compiled(self.step).flops

  def run(self) -> None:
    start = time.perf_counter()
    self.outputs = jax.block_until_ready(self.step(*self.arguments))
    self.step_s.append(time.perf_counter() - start)
    self.arguments = self.case.advance(self.arguments, self.outputs)


def variants(case: Case) -> Iterator[Variant]:
  """What is compared; the first is the unbudgeted program. Each is compiled before the next is asked for."""
  yield Variant(case, "plain", "no remat", case.loss)
  yield Variant(case, "xla", "XLA memory scheduler", case.loss, compiler_options=MEMORY_SCHEDULER)
  by_hand = {name: Variant(case, "hand", name, loss) for name, loss in case.hand.items()}
  yield from by_hand.values()
  at_bytes = {f"at {name} bytes": by_hand[rival].temp_bytes for name, rival in case.rivals.items()}
  for engine in case.engines:
    for name, budget in ({f"{budget:.0%}": budget for budget in BUDGETS} | at_bytes).items():
      loss = coopjax.remat(case.loss, budget=budget, engine=engine, on_infeasible="best_effort")
      yield Variant(case, engine, f"coopjax {engine} {name}", loss, budget)


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
    "kind": variant.kind,
    "variant": variant.name,
    "temp_mib": variant.temp_bytes / MIB,
    "budget_mib": None if budget_bytes is None else budget_bytes / MIB,
    "holds": None if budget_bytes is None else variant.temp_bytes <= budget_bytes,
    "step_s": statistics.median(times),
    "step_min_s": min(times),
    "time_ratio": statistics.median(times) / statistics.median(plain_times),
    "time_ratio_of_min": min(times) / min(plain_times),
    "gflop": variant.flops / 1e9,
    "recomputed_gflop": (variant.flops - plain.flops) / 1e9,
    "trace_s": variant.trace_s,
    "compile_s": variant.compile_s,
    "plan_s": variant.plan_s or None,
    "hook_s": variant.hook_s or None,
    "hook_share": variant.hook_s / (variant.compile_s - variant.hook_s - variant.plan_s) or None,
    "is_bit_identical": all(np.array_equal(our, their) for our, their in zip(ours, theirs, strict=True)),
  }


def by_model(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
  """The rows of each model, in order."""
  found: dict[str, list[dict[str, Any]]] = {}
  for row in rows:
    found.setdefault(row["model"], []).append(row)
  return found


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
  """Step time over temporaries, a panel a model; down and left is better."""
  of_models = by_model(rows)
  figure, panels = plt.subplots(1, len(of_models), figsize=(3.4 * len(of_models), 3.4), squeeze=False)
  labels = {"plain": "no remat", "xla": "XLA memory scheduler", "hand": "by hand"}
  for axes, (model, of_model) in zip(panels[0], of_models.items(), strict=True):
    for kind in dict.fromkeys(row["kind"] for row in of_model):
      points = sorted((row["temp_mib"], row["time_ratio_of_min"]) for row in of_model if row["kind"] == kind)
      style = {"plain": "k*", "xla": "x", "hand": "o"}.get(kind, "s-")
      axes.plot(*zip(*points, strict=True), style, label=labels.get(kind, f"coopjax {kind}"), markersize=5, linewidth=1)
    axes.set(title=model, xlabel="temporaries, MiB")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
  panels[0][0].set_ylabel("step time over no remat's")
  figure.tight_layout()
  figure.savefig(path, dpi=110)
  plt.close(figure)


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
      console.print(tables.table(measured, COLUMNS, title=measured[0]["model"]))
      gc.collect()
  rows = [row for of_model in (by_model(tables.read(arguments.out)) | by_model(rows)).values() for row in of_model]
  tables.write(arguments.out, rounds=arguments.rounds, rows=rows)
  draw(rows, arguments.out.with_suffix(".png"))
  console.print(f"written to {arguments.out}")


if __name__ == "__main__":
  main()
