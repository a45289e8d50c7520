"""Budgets across backends: what the compiled program takes and recomputes, on a CPU, an H100 and a TPU v5e.

An 8-layer decoder (width 512, 8 heads, 8 sequences of 512 tokens; the loss and its gradient), bfloat16 and float32, its
layers unrolled or scanned over. GPU and TPU are compiled for ahead of time (extras gpu-target, tpu-target).
Each budget is a share of the compiled temporaries without remat. Beside coopjax: jax.checkpoint around every layer, the
policy dots_with_no_batch_dims_saveable around the loss (around the layer where they are scanned), and XLA's own
rematerialization, told that the device has the bytes that the budget leaves (arguments, outputs and temporaries);
where it keeps to that, coopjax is asked to do with what it took, too.
The floor is the least that the HLO engine reaches around idle layers, which do nothing (where they are scanned, a sine,
for the carry of each step): the logits are float32. Where a budget is missed, the lines below the table say what forces
the bytes that were reached.
Recomputed FLOPs are counted in the traced program, by coopjax's model of a jaxpr; what the HLO engine clones comes on
top. XLA's own are those that the compiled program has beyond the one without remat, as coopjax reads its HLO.

  python benchmarks/backends.py                                       # everything: hours on two cores
  python benchmarks/backends.py --targets gpu:h100 --forms scan --dtypes bf16 --budgets 0.5 0.25

Each row joins the results file as soon as it is measured. Rows that are there already are kept (--again measures them
again, or those that it names: --again "coopjax 12%"), so a run that was stopped goes on where it was.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import tables

import coopjax
from coopjax import compat
from coopjax.hlo_engine import hook
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.xla import targets
from coopjax.xla.compile import compile_trial, measure

Row = tables.Row
MIB = 2**20
ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = tables.RESULTS / "backends.json"
TARGETS, FORMS = ("cpu", "gpu:h100", "tpu:v5e:2x2"), ("scan", "unrolled")
DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}
BUDGETS = (0.5, 0.25, 0.12)
KEY = ("target", "form", "dtype", "variant", "size")
COLUMNS = {
  "variant": "{variant}",
  "budget\nMiB": "{budget_mib:.1f}",
  "temp\nMiB": "{temp_mib:.1f}",
  "holds": "{holds}",
  "recomputed\nGFLOP": "{recomputed_gflop:+.1f}",
  "rounds": "{rounds}",
  "engine": "{engine}",
  "s": "{seconds:.0f}",
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A decoder for one target.

  Attributes:
    target: name of the target.
    form: "scan" or "unrolled".
    dtype: "bf16" or "f32".
    size: batch, length, width, heads, layers, vocabulary.
  """

  target: str
  form: str
  dtype: str
  size: tuple[int, int, int, int, int, int] = (8, 512, 512, 8, 8, 4096)

  @property
  def cell(self) -> Row:
    """What the case's rows have in common."""
    return {"target": self.target, "form": self.form, "dtype": self.dtype, "size": list(self.size), "variant": None}

  @property
  def title(self) -> str:
    batch, length, width, heads, layers, vocabulary = self.size
    return (
      f"{self.target}, {self.form}, {self.dtype}: {layers} layers of width {width}, {heads} heads, "
      f"{batch} x {length} tokens of {vocabulary}"
    )

  @property
  def device(self) -> targets.Target:
    return targets.resolve(self.target)

  @property
  def shapes(self) -> tuple[Any, Any]:
    """Parameters and tokens."""
    batch, length, width, _, layers, vocabulary = self.size
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}

    def weights(*leading):
      return {name: jax.ShapeDtypeStruct((*leading, *shape), DTYPES[self.dtype]) for name, shape in shapes.items()}

    blocks = weights(layers) if self.form == "scan" else [weights() for _ in range(layers)]
    embedding = jax.ShapeDtypeStruct((vocabulary, width), DTYPES[self.dtype])
    return {"embedding": embedding, "blocks": blocks}, jax.ShapeDtypeStruct((batch, length), jnp.int32)

  def loss(self, block: Callable | None = None) -> Callable:
    """The loss, with another function for the layers if one is given."""
    block = block or functools.partial(decoder_block, self.size[3])

    def loss(params, tokens):
      return decoder_loss(block, params, tokens)

    return loss


def decoder_block(num_heads: int, x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
  """Pre-norm causal attention and multilayer perceptron."""
  batch, length, width = x.shape
  qkv = (normalized(x) @ weights["qkv"]).reshape(batch, length, 3, num_heads, -1)
  query, key, value = (qkv[:, :, i] for i in range(3))
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(width // num_heads)
  scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
  x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value).reshape(x.shape) @ weights["out"]
  return x + jax.nn.gelu(normalized(x) @ weights["up"]) @ weights["down"]


def normalized(x: jax.Array) -> jax.Array:
  centered = x - x.mean(-1, keepdims=True)
  return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)


def decoder_loss(block: Callable, params: Any, tokens: jax.Array) -> jax.Array:
  """Mean cross-entropy of the next token."""
  x, blocks = params["embedding"][tokens], params["blocks"]
  if isinstance(blocks, dict):
    x, _ = jax.lax.scan(lambda x, weights: (block(x, weights), None), x, blocks)
  else:
    for weights in blocks:
      x = block(x, weights)
  logits = (normalized(x) @ params["embedding"].T).astype(jnp.float32)
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.roll(tokens, -1, 1)[..., None], -1).mean()


class Bench:
  """Measures one case, row by row; `known` are rows that need not be measured again, by variant."""

  def __init__(self, case: Case, known: dict[str, Row]):
    self.case, self.device, self._known = case, case.device, known
    self.plain = self._program(case.loss())
    self.plain_flops = gradient_flops(*self.plain)

  def rows(self, budgets: list[float]) -> Iterator[Row]:
    """What others do first: the budgets are shares of what the first row takes."""
    case = self.case
    baseline = yield from self._one("no remat", None, self._unplanned)
    yield from self._one("floor (idle layers)", None, self._floor)
    block = functools.partial(decoder_block, case.size[3])
    saves_dots = {"policy": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
    whole = case.form == "unrolled"
    peers = {
      "jax.checkpoint per layer": case.loss(jax.checkpoint(block)),
      "dots_with_no_batch_dims_saveable": jax.checkpoint(case.loss(), **saves_dots)
      if whole
      else case.loss(jax.checkpoint(block, **saves_dots)),
    }
    for name, loss in peers.items():
      peer = yield from self._one(name, None, functools.partial(self._checkpointed, loss))
      if name == "jax.checkpoint per layer":
        budget_bytes = peer["temp_bytes"]
        yield from self._one("coopjax at its bytes", budget_bytes, functools.partial(self._planned, budget_bytes))
    for share in budgets:
      budget_bytes = int(share * baseline["temp_bytes"])
      yield from self._one(f"coopjax {share:.0%}", budget_bytes, functools.partial(self._planned, budget_bytes))
      if case.target != "cpu":  # XLA:CPU has no rematerialization
        total_bytes = budget_bytes + baseline["resident_bytes"]
        run = functools.partial(self._by_xla, total_bytes, baseline)
        xla = yield from self._one(f"XLA's remat {share:.0%}", budget_bytes, run)
        if xla["within_budget"]:
          its_bytes = xla["temp_bytes"]
          yield from self._one(f"coopjax at XLA's {share:.0%}", its_bytes, functools.partial(self._planned, its_bytes))

  def _one(self, variant: str, budget_bytes: int | None, run: Callable) -> Iterator[Row]:
    if variant in self._known:
      yield self._known[variant]
      return self._known[variant]
    start = time.perf_counter()
    row = {
      **self.case.cell,
      "variant": variant,
      "budget": budget_bytes,
      "budget_mib": None if budget_bytes is None else budget_bytes / MIB,
    }
    try:
      profile, more = run()
      row |= {"temp_bytes": profile.temp_bytes, "resident_bytes": profile.resident_bytes, **more}
    except coopjax.BudgetInfeasibleError as error:
      message = str(error).replace(f"{ROOT}{os.sep}", "")
      row |= {"temp_bytes": error.smallest_bytes, "error": message}  # the least that was reached
    except coopjax.CompileMemoryError as error:
      row |= {"error": str(error).partition("\n")[0]}
    temp_bytes = row.get("temp_bytes")
    if temp_bytes is not None:
      row["temp_mib"] = temp_bytes / MIB
    if budget_bytes is not None:
      row["within_budget"] = temp_bytes is not None and temp_bytes <= budget_bytes
      row["holds"] = "yes" if row["within_budget"] else "NO"
    row["seconds"] = time.perf_counter() - start
    yield row
    return row

  def _unplanned(self) -> tuple[coopjax.MemoryProfile, Row]:
    profile = self._measure(self.plain)
    return profile, {"compiled_flops": profile.flops}

  def _measure(self, program: tuple[Callable, Any]) -> coopjax.MemoryProfile:
    return measure(compile_trial(*program, self.device))

  def _floor(self) -> tuple[coopjax.MemoryProfile, Row]:
    """For a budget that nothing reaches."""
    loss = self.case.loss((lambda x, _: jnp.sin(x)) if self.case.form == "scan" else (lambda x, _: x))
    plan = coopjax.plan(loss, *self.case.shapes, budget=1, target=self.case.target, engine="hlo")
    return plan.measured, {}

  def _checkpointed(self, loss: Callable) -> tuple[coopjax.MemoryProfile, Row]:
    program = self._program(loss)
    return self._measure(program), self._repeated(gradient_flops(*program) - self.plain_flops)

  def _planned(self, budget_bytes: int) -> tuple[coopjax.MemoryProfile, Row]:
    with outcomes() as made:
      plan = coopjax.plan(self.case.loss(), *self.case.shapes, budget=budget_bytes, target=self.case.target)
    flops = self.plain_flops
    if plan.policy is not None:
      flops = gradient_flops(*self._program(plan.apply(self.case.loss())))
    if "hlo" in plan.engine:  # under the policy engine, what it did to the program that was taken
      taken = min(made, key=lambda each: abs(each.predicted.temp_bytes - plan.measured.temp_bytes))
      flops += taken.recompute_flops
    return plan.measured, {
      "engine": plan.engine,
      "rounds": len(plan.rounds),
      **self._repeated(flops - self.plain_flops),
    }

  def _by_xla(self, total_bytes: int, baseline: Row) -> tuple[coopjax.MemoryProfile, Row]:
    """XLA's rematerialization at a limit on everything; its program is not traced, compiled FLOPs can be compared."""
    profile = measure(compile_limited(*self.plain, self.device, total_bytes))
    flops = baseline.get("compiled_flops")
    return profile, self._repeated(profile.flops - flops) if flops and profile.flops else {}

  def _program(self, loss: Callable) -> tuple[Callable, Any]:
    return fn_and_gradient(differentiable(trace(loss, self.case.shapes)))

  def _repeated(self, flops: float) -> Row:
    return {"recomputed_flops": flops, "recomputed_gflop": flops / 1e9}


@contextlib.contextmanager
def outcomes() -> Iterator[list[hook.Outcome]]:
  """Collects every plan that the HLO engine makes inside the block."""
  made, plan_module = [], hook.plan_module

  def recording(*args, **kwargs):
    made.append(plan_module(*args, **kwargs))
    return made[-1]

  hook.plan_module = recording
  try:
    yield made
  finally:
    hook.plan_module = plan_module


def gradient_flops(fn: Callable, avals: Any) -> float:
  """FLOPs of a function as it is traced, what its checkpoints repeat included, what nothing reads not."""
  return cost.jaxpr_flops(compat.dce(jax.make_jaxpr(fn)(*avals).jaxpr))


def compile_limited(fn: Callable, avals: Any, device: targets.Target, limit_bytes: int) -> jax.stages.Compiled:
  """The program under XLA's own rematerialization, for a device with so much memory."""
  options = {"xla_tpu_max_hbm_size_mib": max(limit_bytes // MIB, 1)} if device.platform == "tpu" else None
  if device.platform == "gpu":
    device = dataclasses.replace(device, memory_bytes=limit_bytes)
  avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=device.sharding) for aval in avals]
  try:
    return jax.jit(fn).lower(*avals).compile(compiler_options=options)
  except jax.errors.JaxRuntimeError as error:
    raise coopjax.CompileMemoryError(str(error), memory_bytes=limit_bytes) from error


def key(row: Row) -> tuple[Any, ...]:
  """What tells rows apart."""
  return tuple(str(row[name]) for name in KEY)


def merge(path: pathlib.Path, row: Row) -> None:
  """Puts a row into a results file, in place of one for the same cell; the file is whole at any time."""
  known = tables.read(path)
  rows = {key(each): each for each in known} | {key(row): row}
  tables.write(path, rows=list(rows.values()))


def main() -> None:
  summary, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--targets", nargs="+", default=TARGETS)
  parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
  parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
  parser.add_argument("--budgets", nargs="*", type=float, default=BUDGETS)
  parser.add_argument(
    "--size",
    nargs=6,
    type=int,
    default=Case.size,
    metavar=("BATCH", "LENGTH", "WIDTH", "HEADS", "LAYERS", "VOCABULARY"),
  )
  parser.add_argument("--again", nargs="*", metavar="VARIANT", help="measure what is there already, or these variants")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
  arguments = parser.parse_args()
  for category in (coopjax.RematNoEffectWarning, coopjax.BudgetExceededWarning):
    warnings.simplefilter("ignore", category)  # the table says so

  console = tables.console()
  for target, form, dtype in itertools.product(arguments.targets, arguments.forms, arguments.dtypes):
    case, rows = Case(target, form, dtype, tuple(arguments.size)), []
    is_known = lambda row: arguments.again is None or (arguments.again and row["variant"] not in arguments.again)
    known = {
      row["variant"]: row
      for row in tables.read(arguments.out)
      if key({**row, "variant": None}) == key(case.cell) and is_known(row)
    }
    with tables.progress() as progress:
      bar = progress.add_task(f"{target} {form} {dtype}", total=None)
      for row in Bench(case, known).rows(arguments.budgets):
        rows.append(row)
        progress.update(bar, description=f"{target} {form} {dtype}: {row['variant']} done")
        merge(arguments.out, row)
    console.print(tables.table(rows, COLUMNS, case.title))
    for row in rows:
      if "error" in row:
        console.print(f"{row['variant']}: {row['error']}\n")
  console.print(f"written to {arguments.out}")


if __name__ == "__main__":
  main()
