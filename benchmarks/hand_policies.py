"""Never worse than JAX's own policies: forty-four unlike programs at the bytes of `jax.checkpoint` around each layer.

By hand nothing is saved, all products, or those without batch dimensions. At the compiled bytes of each, a plan of the
program without checkpoints is asked for. Repeated are the FLOPs of loss and gradient beyond those of the plain program,
as they stand in the traced program, and what the HLO engine repeats. A policy that takes no less than the plain program
is left out.

  python benchmarks/hand_policies.py --programs recurrent unet --engines policy
"""

import argparse
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("COOPJAX_CACHE_DIR", "")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import backends
import hand_ladder
import jax
import tables
from unlike_layers import PROGRAMS

import coopjax
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, is_floating, trace
from coopjax.xla.compile import compile_trial, measure

OUT = tables.RESULTS / "hand_policies.json"
ENGINES = ("auto", "policy")
POLICIES: dict[str, Callable | None] = {
  "nothing": None,
  "products": jax.checkpoint_policies.dots_saveable,
  "products without batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
KEY = ("program", "policy", "engine")
COLUMNS = {
  "program": "{program}",
  "by hand": "{policy}",
  "MiB": "{hand_mib:.2f}",
  "repeats\nMF": "{hand_mflop:.2f}",
  "engine": "{engine}",
  "ours\nMiB": "{mib:.2f}",
  "repeats\nMF ": "{mflop:.2f}",
  "ratio": "{ratio:.2f}",
}


def _gradient(loss: Callable, arguments: Any) -> tuple[Callable, Any]:
  return fn_and_gradient(differentiable(trace(loss, arguments)))


def flops(loss: Callable, arguments: Any) -> float:
  """Of loss and gradient, as traced."""
  return backends.gradient_flops(*_gradient(loss, arguments))


def temp_bytes(loss: Callable, arguments: Any) -> int:
  """Compiled temporaries of loss and gradient."""
  return measure(compile_trial(*_gradient(loss, arguments))).temp_bytes


def planned(loss: Callable, arguments: Any, plain_flops: float, budget_bytes: int, engine: str) -> tables.Row:
  """What a plan takes and repeats beyond `loss`, whose FLOPs are given; where there is none, the least bytes."""
  start_s = time.process_time()
  # All that there are, said: none of these is a step.
  argnums = [i for i, argument in enumerate(arguments) if all(map(is_floating, jax.tree.leaves(argument)))]
  try:
    plan = coopjax.plan(loss, *arguments, budget=budget_bytes, engine=engine, argnums=argnums)
  except coopjax.BudgetInfeasibleError as error:
    return {"mib": None, "mflop": None, "ratio": None, "least_bytes": error.smallest_bytes}
  planning_s, applied = time.process_time() - start_s, plan.apply(loss)
  with backends.outcomes() as made:
    compile_trial(*_gradient(applied, arguments))
  repeated = flops(applied, arguments) - plain_flops if plan.policy is not None else 0.0
  repeated += sum(outcome.recompute_flops for outcome in made)
  assert plan.measured is not None  # a CPU's compiler says
  return {"mib": plan.measured.temp_bytes / 2**20, "mflop": repeated / 1e6, "planning_s": planning_s}


def rows_of(name: str, engines: list[str]) -> Iterator[tables.Row]:
  """One row for each policy and engine."""
  loss, arguments = PROGRAMS[name](lambda layer: layer)
  plain_bytes, plain_flops = temp_bytes(loss, arguments), flops(loss, arguments)
  for title, policy in POLICIES.items():
    by_hand, _ = PROGRAMS[name](lambda layer, policy=policy: jax.checkpoint(layer, policy=policy))
    hand_bytes = temp_bytes(by_hand, arguments)
    if hand_bytes >= plain_bytes:
      continue
    hand_flops = flops(by_hand, arguments) - plain_flops
    for engine in engines:
      row = planned(loss, arguments, plain_flops, hand_bytes, engine)
      if row["mflop"] is not None:
        row["ratio"] = hand_ladder.ratio(row["mflop"] / 1e3, hand_flops / 1e9)
      hand = {"policy": title, "hand_mib": hand_bytes / 2**20, "hand_mflop": hand_flops / 1e6}
      yield {"program": name, "engine": engine, "plain_mib": plain_bytes / 2**20} | hand | row


def main() -> None:
  text, details = (__doc__ or "").split("\n\n", 1)
  parser = argparse.ArgumentParser(description=text, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
  parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
  parser.add_argument("--out", type=pathlib.Path, default=OUT)
  arguments = parser.parse_args()
  warnings.simplefilter("ignore")
  before, rows = tables.read(arguments.out), []
  with tables.progress() as progress:
    bar = progress.add_task("programs", total=len(arguments.programs))
    for name in arguments.programs:
      progress.update(bar, description=name)
      rows += rows_of(name, arguments.engines)
      tables.write(arguments.out, rows=tables.merged(before, rows, KEY))
      progress.advance(bar)
  console = tables.console()
  console.print(tables.table(rows, COLUMNS, "at the bytes of JAX's own policies around each layer"), summary(rows))


def summary(rows: list[tables.Row]) -> str:
  """How many rows repeat at most what the hand's policy does."""
  ratios = sorted(row["ratio"] for row in rows if row["ratio"] is not None)
  refused = sum(row["mflop"] is None for row in rows)
  within = sum(ratio <= 1.005 for ratio in ratios)
  median = ratios[len(ratios) // 2] if ratios else 0.0
  return (
    f"{within} of {len(rows)} at most 1.00, {refused} refused; median {median:.2f}, worst {max(ratios, default=0):.2f}"
  )


if __name__ == "__main__":
  main()
