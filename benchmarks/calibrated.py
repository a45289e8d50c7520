"""Predicted step times against measured ones, by a device's stored figures and by those that `coopjax calibrate` takes.

Ten plans, five programs at two budgets each: one of large products, one of exponentials, one that only moves memory,
one of many small ops, and a small decoder. The gradient of each is planned, compiled and run; the fastest run counts.
Its modelled seconds are those of its instructions, one after the other, under both sets of figures. Shown are
Spearman's rank correlation of the ten with what was measured, and by what factor predictions miss, geometric mean.
Writes benchmarks/results/calibrated.json.

  python benchmarks/calibrated.py      # on the device that is here, a minute or two; let nothing else run
  python benchmarks/calibrated.py --scale 32 --repeats 7 --out benchmarks/results/calibrated_h100.json  # on an H100
"""

import argparse
import math
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
import models
import numpy as np
import tables

import coopjax
from coopjax.program.cost import Roofline
from coopjax.xla import targets
from coopjax.xla.compile import module_of
from coopjax.xla.module import read_step_program

BUDGETS = (1.0, 0.6)
COLUMNS = {
  "program": "{program}",
  "budget": "{budget:.0%}",
  "engine": "{engine}",
  "measured": "{measured_s:.3e} s",
  "by stored figures": "{stored_s:.3e} s",
  "calibrated": "{calibrated_s:.3e} s",
}
RESULTS = tables.RESULTS / "calibrated.json"
type Program = tuple[Callable, tuple[Any, ...]]


def programs(scale: int) -> dict[str, Program]:
  """Losses with their arguments, by name; larger with `scale`."""

  def products(weights, x):
    for weight in weights:
      x = jnp.maximum(x @ weight, 0)
    return jnp.mean(x**2)

  def exponentials(scales, x):
    for factor in scales:
      x = jnp.tanh(jnp.exp(-x * factor)) + jnp.sin(x)
    return jnp.mean(x**2)

  def memory(scales, x):
    for factor in scales:
      x = jnp.roll(x, 7, axis=1) * factor
      x = jnp.cumsum(x.reshape(-1, 2), 1).reshape(x.shape)
    return jnp.mean(x**2)

  def small(weights, x):
    for weight in weights:
      x = jnp.sort(jnp.tanh(x @ weight))
    return jnp.mean(x**2)

  side = 128 * scale
  decoder = models.decoder(num_layers=2, width=16 * scale, context=16 * scale, batch_size=4, num_heads=2, vocab_size=64)
  losses = {
    "products": (products, ([jnp.eye(side)] * 6, jnp.ones((side, side)))),
    "exponentials": (exponentials, (jnp.ones(6), jnp.ones((side, side)))),
    "memory": (memory, (jnp.ones(6), jnp.ones((2 * side, 2 * side)))),
    "small": (small, ([jnp.eye(8)] * 40, jnp.ones((8, 8)))),
    "decoder": (decoder.loss, (decoder.params, *decoder.batch)),
  }
  dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16  # what products are calibrated with
  cast = lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
  return {name: (loss, jax.tree.map(cast, arguments)) for name, (loss, arguments) in losses.items()}


def measure(name: str, program: Program, budget: float, profile: coopjax.SpeedProfile, repeats: int) -> tables.Row:
  """One plan: its gradient's seconds, measured and by both sets of figures."""
  loss, arguments = program
  plan = coopjax.plan(loss, *arguments, budget=budget, target=profile.target, on_infeasible="best_effort")
  compiled = jax.jit(jax.value_and_grad(plan.apply(loss))).lower(*arguments).compile()
  jax.block_until_ready(compiled(*arguments))
  runs = []
  for _ in range(repeats):
    start = time.perf_counter()
    jax.block_until_ready(compiled(*arguments))
    runs.append(time.perf_counter() - start)
  module = module_of(compiled)
  seconds = lambda roofline: float(read_step_program(module, roofline)[0].op_cost_s.sum())
  return {
    "program": name,
    "budget": budget,
    "engine": plan.engine,
    "measured_s": min(runs),
    "stored_s": seconds(targets.running().roofline),
    "calibrated_s": seconds(_as_planned(profile)),
  }


def _as_planned(profile: coopjax.SpeedProfile) -> Roofline:
  """The figures to the digits that a target's name has."""
  return coopjax.target(profile.target).roofline


def rank_correlation(first: list[float], second: list[float]) -> float:
  """Spearman's; ties share their mean rank."""
  ranks = [[sum(b < a for b in values) + sum(b == a for b in values) / 2 for a in values] for values in (first, second)]
  return float(np.corrcoef(ranks)[0, 1])


def summary(rows: list[tables.Row], figures: str) -> tables.Row:
  """How well one set of figures predicts."""
  measured, predicted = ([row[key] for row in rows] for key in ("measured_s", figures))
  misses = [abs(math.log(a / b)) for a, b in zip(measured, predicted, strict=True)]
  return {
    "figures": figures.removesuffix("_s"),
    "rank_correlation": rank_correlation(measured, predicted),
    "missed_by": math.exp(sum(misses) / len(misses)),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--scale", type=int, default=8, help="of the programs (8)")
  parser.add_argument("--repeats", type=int, default=15, help="runs of each program (15)")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="the file to write")
  options = parser.parse_args()
  profile = coopjax.calibrate(repeats=options.repeats)
  rows = [
    measure(name, program, budget, profile, options.repeats)
    for name, program in programs(options.scale).items()
    for budget in BUDGETS
  ]
  summaries = [summary(rows, figures) for figures in ("stored_s", "calibrated_s")]
  tables.console().print(tables.table(rows, COLUMNS))
  for each in summaries:
    print(
      f"{each['figures']}: rank correlation {each['rank_correlation']:.3f}, missed by {each['missed_by']:.2f} times"
    )
  tables.write(options.out, profile=profile.target, summaries=summaries, rows=rows)
  print(f"written to {options.out}")


if __name__ == "__main__":
  main()
