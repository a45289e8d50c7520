"""What fits a pod that is not at hand: Llama-like training steps under `budget="fits"`, beside the hand's ladder.

A step is AdamW on float32 weights, computed in bfloat16, with scanned layers, weights and batch spread over all
devices ("fsdp"). For coopjax and for each rung of MaxText's ladder the largest batch is looked for that the device
takes, reserve for what XLA does not count included; of each that fits, XLA:TPU's bytes of a device, FLOPs repeated and
seconds as modelled (instructions one after the other, at the vendor's speeds) stand in a row. The fastest of a ladder
is what a person who tried all of it would train with; the last row is coopjax at its batch. Seconds of search are CPU
seconds, compiles included. It takes XLA's compiler for TPUs: pip install 'coopjax[tpu-target]'. Writes
benchmarks/results/what_fits.json, row by row; rows that are there are kept.

  TPU_SKIP_MDS_QUERY=1 python benchmarks/what_fits.py                        # 1B on v5e:4x4, 8B on v5p:4x4x4
  TPU_SKIP_MDS_QUERY=1 python benchmarks/what_fits.py --jobs 1B --rungs full minimal
"""

import argparse
import bisect
import dataclasses
import functools
import math
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import ladder_programs
import optax
import tables
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from ladder_programs import ON_DEVICE, RUNGS, Rung, Size

import coopjax
from coopjax.xla import targets
from coopjax.xla.compile import OversizedProgram, compile_trial, measure
from coopjax.xla.device_budget import allowed

RESULTS = tables.RESULTS / "what_fits.json"
GIB, TERA = 2**30, 1e12
OURS = "coopjax"
OURS_AS_FAST = "coopjax, same batch"  # as the fastest rung
PER_DEVICE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # sequences, of which the largest that fits is looked for
COLUMNS = {
  "policy": "{policy}",
  "batch": "{batch}",
  "temporaries\nGiB": "{temp_gib:.2f}",
  "in total\nGiB": "{total_gib:.2f}",
  "repeats\nTF": "{repeated_tflop:.2f}",
  "step, modelled\ns": "{seconds:.3f}",
  "tokens/s\na device": "{tokens_per_s:,.0f}",
  "search\ns": "{search_s:.0f}",
}


@dataclasses.dataclass(frozen=True)
class Job(ladder_programs.Program):
  """A model on the devices of a target, all on the axis "fsdp"."""

  target: str = "tpu:v5e:4x4"

  @functools.cached_property
  def device_mesh(self) -> jax.sharding.Mesh:
    """Of the target's devices."""
    return coopjax.target(self.target).mesh((1, self.num_devices, 1), ladder_programs.AXES, (AxisType.Auto,) * 3)

  def _decoder_layer(self, x, weights, memory=None, is_causal=True):
    """Sequences stay whole on their devices, weights are gathered, not the other way round."""
    split = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(self.device_mesh, P(ladder_programs.BATCH)))
    return split(super()._decoder_layer(split(x), weights, memory, is_causal))

  @property
  def num_devices(self) -> int:
    return targets.resolve(self.target).num_devices

  def at_batch(self, batch: int) -> "Job":
    return dataclasses.replace(self, size=dataclasses.replace(self.size, batch=batch))

  def step(self, rung: Rung) -> Callable:
    """The jitted step; its state is donated."""
    optimizer, loss = optax.adamw(1e-4), self.loss(rung)

    def in_bfloat16(params, tokens):
      return loss(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params), tokens)

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state, tokens):
      params, moments = state
      value, grads = jax.value_and_grad(in_bfloat16)(params, tokens)
      updates, moments = optimizer.update(grads, moments, params)
      return (optax.apply_updates(params, updates), moments), value

    return train_step

  @property
  def step_arguments(self) -> tuple[Any, Any]:
    """State and tokens, as types with shardings; moments lie where their parameters do."""
    params, tokens = self.arguments
    optimizer = optax.adamw(1e-4)
    moments = optax.tree_map_params(
      optimizer,
      lambda _, param: param,
      jax.eval_shape(optimizer.init, params),
      params,
      transform_non_params=lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=NamedSharding(self.device_mesh, P())
      ),
    )
    return (params, moments), tokens


JOBS = {
  "1B": Job("decoder", Size(0, 2048, 2048, 8192, 32, 8, 16, vocabulary=32_000), mesh="fsdp", target="tpu:v5e:4x4"),
  "8B": Job("decoder", Size(0, 2048, 4096, 14336, 32, 8, 32, vocabulary=128_256), mesh="fsdp", target="tpu:v5p:4x4x4"),
}


@dataclasses.dataclass(frozen=True)
class ByHand:
  """A job's step with a rung."""

  job: Job
  rung: Rung

  def lower(self) -> jax.stages.Lowered:
    """As it is compiled."""
    return self.job.step(self.rung).lower(*self.job.step_arguments)

  def fits(self) -> bool:
    """By a draft, for a TPU a twentieth of a compile."""
    target, state = targets.resolve(self.job.target), jax.tree.leaves(self.job.step_arguments)
    held_bytes = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in state)
    drafted = compile_trial(self, (), target, draft_above=held_bytes)
    if isinstance(drafted, OversizedProgram):
      drafted = drafted.as_allocated(target)
    return within(self._measured(drafted), target)

  def row(self) -> tables.Row | None:
    """What it takes, compiled; None where it does not fit."""
    target = targets.resolve(self.job.target)
    profile = self._measured(compile_trial(self, (), target))
    return row_of(self.job, profile) if within(profile, target) else None

  def _measured(self, compiled: jax.stages.Compiled | OversizedProgram) -> coopjax.MemoryProfile:
    target = targets.resolve(self.job.target)
    return measure(compiled, target, as_allocated=target.platform == "tpu")


def within(profile: coopjax.MemoryProfile, target: targets.Target) -> bool:
  """Whether a program fits, reserve included."""
  limit = allowed(coopjax.Budget.parse("fits"), target).resolve(profile.temp_bytes, profile.resident_bytes)
  return profile.temp_bytes <= limit


def planned(job: Job) -> tables.Row | None:
  """The step with coopjax's plan in place of its layers' `jax.checkpoint`; None where none fits."""
  point = coopjax.fit(
    job.step(RUNGS["full"]), lambda batch: job.at_batch(batch).step_arguments, batches=[job.size.batch]
  ).points[0]
  return None if point.plan is None else row_of(job, point.plan.measured)


def row_of(job: Job, profile: coopjax.MemoryProfile) -> tables.Row:
  tokens = job.size.batch * job.size.length / job.num_devices
  return {
    "batch": job.size.batch,
    "temp_gib": profile.temp_bytes / GIB,
    "total_gib": profile.total_bytes / GIB,
    "tflop": profile.flops / TERA,
    "tflop_per_sequence": profile.flops / TERA / job.size.batch,
    "seconds": profile.modelled_s,
    "tokens_per_s": tokens / profile.modelled_s if profile.modelled_s else None,
  }


def largest(job: Job, policy: str) -> tables.Row:
  """The row of the largest batch that a policy fits, by bisection over `PER_DEVICE`; without a batch if none does.

  A rung's batches are drafted, and what may be the largest is compiled; coopjax plans each.
  """
  start = time.process_time()
  jobs = [job.at_batch(number * job.num_devices) for number in PER_DEVICE]
  plans: dict[Job, tables.Row | None] = {}

  def is_too_large(at_batch: Job) -> bool:
    if policy != OURS:
      return not ByHand(at_batch, RUNGS[policy]).fits()
    plans[at_batch] = planned(at_batch)
    return plans[at_batch] is None

  fitting = jobs[: bisect.bisect_left(jobs, True, key=is_too_large)]
  rows = (plans[at] if policy == OURS else ByHand(at, RUNGS[policy]).row() for at in reversed(fitting))
  found = next(filter(None, rows), {})
  return {"policy": policy, **found, "search_s": time.process_time() - start}


def at_fastest(job: Job, shown: Sequence[tables.Row]) -> tables.Row:
  """What coopjax plans at the batch of the fastest rung."""
  start = time.process_time()
  by_hand = [row for row in shown if row["policy"] != OURS and row.get("tokens_per_s")]
  fastest = max(by_hand, key=lambda row: row["tokens_per_s"], default=None)
  found = planned(job.at_batch(fastest["batch"])) if fastest else None
  return {"policy": OURS_AS_FAST, **(found or {}), "search_s": time.process_time() - start}


def main() -> None:
  summary, details = (__doc__ or "").split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
  parser.add_argument("--rungs", nargs="*", choices=RUNGS, default=ON_DEVICE)
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
  arguments = parser.parse_args()
  os.environ["COOPJAX_CACHE_DIR"] = ""  # every plan is made, none is found
  warnings.simplefilter("ignore", coopjax.BudgetExceededWarning)  # what does not fit has no row
  console = tables.console()
  for name in arguments.jobs:
    job = JOBS[name]
    shown = list[tables.Row]()
    for policy in (OURS, *arguments.rungs, OURS_AS_FAST):
      rows = tables.read(arguments.out)
      row = next((row for row in rows if (row["job"], row["policy"]) == (name, policy)), None)
      if row is None:
        made = largest(job, policy) if policy != OURS_AS_FAST else at_fastest(job, shown)
        row = {"job": name, "target": job.target, **made}
        tables.write(arguments.out, rows=[*rows, row])
      shown.append(row)
    least = min((row["tflop_per_sequence"] for row in shown if "batch" in row), default=0.0)
    for row in shown:
      if "batch" in row:
        row["repeated_tflop"] = (row["tflop_per_sequence"] - least) * row["batch"]
    console.print(tables.table(shown, COLUMNS, f"{name} on {job.target}, {job.size.length} tokens a sequence"))


if __name__ == "__main__":
  main()
