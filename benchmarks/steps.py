"""Whole training steps in a total: coopjax beside per-block jax.checkpoint.

A decoder in mixed precision (f32 weights, bf16 compute), two batches accumulated by a scan, with AdamW and donated
state. Every variant is the whole step, compiled; bytes are the executable's (total = arguments + outputs + temporaries
- aliased), recomputed FLOPs are what XLA's cost analysis counts beyond the plain step's (of one turn of the scan), and
all steps are timed in turns, the fastest of each shown. Writes benchmarks/results/steps.json.

  python benchmarks/steps.py       # some three minutes on two cores
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import models
import numpy as np
import optax
import tables

import coopjax

MIB = 2**20
NUM_TURNS, NUM_ROUNDS = 2, 5
SHARES = (0.5, 0.25)  # of the plain step's temporaries
COLUMNS = {
  "step": "{name}",
  "budget, total": "{budget_mib:.1f} MiB",
  "total": "{total_mib:.1f} MiB",
  "temporaries": "{temp_mib:.1f} MiB",
  "recomputed": "{recompute_gflops:+.2f} GFLOP",
  "step time": "{step_s:.2f} s",
  "planned in": "{plan_s:.0f} s",
  "engine": "{engine}",
}
RESULTS = tables.RESULTS / "steps.json"


def make_step(loss: Callable, optimizer: optax.GradientTransformation) -> Any:
  """The jitted step; its state is donated."""

  def value_and_grad(params, tokens):
    cast = lambda params: jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), params)
    return jax.value_and_grad(lambda params: loss(cast(params), tokens).astype(jnp.float32))(params)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def train_step(params, state, batches):
    turn = lambda sums, tokens: (jax.tree.map(jnp.add, sums, value_and_grad(params, tokens)), None)
    value, grads = jax.lax.scan(turn, (0.0, jax.tree.map(jnp.zeros_like, params)), batches)[0]
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value

  return train_step


def row(name: str, compiled: jax.stages.Compiled, **fields: Any) -> tables.Row:
  """What the compiler says of a step."""
  sizes = compiled.memory_analysis()
  total = (
    sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes
  )
  return {
    "name": name,
    "temp_mib": sizes.temp_size_in_bytes / MIB,
    "total_mib": total / MIB,
    "gflops": compiled.cost_analysis()["flops"] / 1e9,
    **fields,
  }


def measure() -> list[tables.Row]:
  """One row per variant."""
  model, optimizer = models.decoder(width=128, context=128), optax.adamw(1e-3)
  batches = np.stack([np.roll(model.batch[0], turn) for turn in range(NUM_TURNS)])

  def arguments():
    params = jax.tree.map(jnp.array, model.params)
    return params, optimizer.init(params), batches

  steps = {
    name: make_step(loss, optimizer).lower(*arguments()).compile()
    for name, loss in (("plain", model.loss), ("checkpoint per block", model.checkpointed_loss))
  }
  rows = [row(name, compiled) for name, compiled in steps.items()]
  plain, checkpointed = rows
  resident_mib = plain["total_mib"] - plain["temp_mib"]
  budgets = [checkpointed["total_mib"], *(resident_mib + share * plain["temp_mib"] for share in SHARES)]
  fitted = make_step(coopjax.remat(model.loss, budget=1.0), optimizer)
  for budget_mib in budgets:
    start, name = time.perf_counter(), f"coopjax, {budget_mib:.1f} MiB"
    plan = coopjax.plan(fitted, *arguments(), budget=coopjax.Budget.total(int(budget_mib * MIB)))
    plan_s = time.perf_counter() - start
    steps[name] = plan.apply(fitted).lower(*arguments()).compile()
    rows.append(row(name, steps[name], budget_mib=budget_mib, plan_s=plan_s, engine=plan.engine))
  times = {name: [] for name in steps}
  for _ in range(NUM_ROUNDS):
    for name, compiled in steps.items():
      inputs = jax.block_until_ready(arguments())
      start = time.perf_counter()
      jax.block_until_ready(compiled(*inputs))
      times[name].append(time.perf_counter() - start)
  return [
    {**each, "step_s": min(times[each["name"]]), "recompute_gflops": each["gflops"] - plain["gflops"]} for each in rows
  ]


def main() -> None:
  rows = measure()
  tables.console().print(tables.table(rows, COLUMNS))
  tables.write(RESULTS, rows=rows)
  print(f"written to {RESULTS}")


if __name__ == "__main__":
  main()
