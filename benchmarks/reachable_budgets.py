"""Budgets that can be reached, asked for: what checkpointing by hand takes, and the least that an error names.

Twelve small programs. By hand they are written with `jax.checkpoint` around each block, or around the whole loss; ours
have `coopjax.remat` around the loss, inside the user's own jit. The first budget is the least of what is taken by hand.
The second is a byte count that nothing reaches: its `BudgetInfeasibleError` names the least bytes, and these are asked
for. Held is what the user's own compiled program holds.

  python benchmarks/reachable_budgets.py --engines policy hlo --models residual scanned
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("COOPJAX_CACHE_DIR", "")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tables
from jax.sharding import PartitionSpec

import coopjax

OUT = tables.RESULTS / "reachable_budgets.json"
ENGINES = ("auto", "hlo", "policy")
BLOCKS, WIDTH, BATCH = 8, 64, 512
COLUMNS = {
  "program": "{model}",
  "engine": "{engine}",
  "as it is": "{plain_bytes:,}",
  "by hand": "{hand_bytes:,}",
  "got": "{hand_got_bytes:,}",
  "held": "{holds_hand}",
  "least named": "{least_bytes:,}",
  "least got": "{least_got_bytes:,}",
  "least held": "{holds_least}",
  "why not": "{error}",
}
Wrap = Callable[[Callable], Callable]


@dataclasses.dataclass(frozen=True)
class Model:
  """A program that takes a gradient.

  Attributes:
    block: of the state and one layer's weights, to the next state.
    is_scanned: layers run in a `lax.scan`.
    dtype: of weights and data.
    around: the step around the loss.
    layer_shape: of one layer's weights.
  """

  block: Callable
  is_scanned: bool = False
  dtype: str = "float32"
  around: Callable = jax.value_and_grad
  layer_shape: tuple[int, ...] = (WIDTH, WIDTH)

  def step(self, wrap_block: Wrap, wrap_loss: Wrap) -> Callable:
    """The program, with blocks and loss wrapped."""
    block = wrap_block(self.block)

    def loss(weights, x):
      if self.is_scanned:
        x, _ = jax.lax.scan(lambda x, weight: (block(x, weight), None), x, weights)
      else:
        for weight in weights:
          x = block(x, weight)
      return jnp.mean(x.astype(jnp.float32) ** 2)

    return self.around(wrap_loss(loss))

  def arguments(self) -> tuple[Any, jax.Array]:
    """Of the program."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * 0.1, self.dtype)
    weights = draw(BLOCKS, *self.layer_shape)
    return weights if self.is_scanned else list(weights), draw(BATCH, WIDTH)


def _residual(x, weight):
  return x + jnp.tanh(x @ weight)


def _gated(x, weight):
  y = x @ weight
  return x + jax.nn.silu(y) * jnp.tanh(y)


def _normed(x, weight):
  y = x - x.mean(-1, keepdims=True)
  return x + jax.nn.gelu((y * jax.lax.rsqrt((y**2).mean(-1, keepdims=True) + 1e-5)) @ weight)


def _wide(x, weight):
  return x + jnp.sin(x @ weight) @ weight.T


def _attention(x, weight):
  y = (x @ weight).reshape(8, -1, WIDTH)
  return x + (jax.nn.softmax(y @ y.swapaxes(1, 2) / 8.0) @ y).reshape(x.shape)


def _clipped(loss):
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

  def step(weights, x):
    value, grads = jax.value_and_grad(loss)(weights, x)
    updates, _ = optimizer.update(grads, optimizer.init(weights), weights)
    return optax.apply_updates(weights, updates), value

  return step


def _accumulated(loss):
  def step(weights, x):
    def turn(total, part):
      value, grads = jax.value_and_grad(loss)(weights, part)
      return jax.tree.map(jnp.add, total, grads), value

    return jax.lax.scan(turn, jax.tree.map(jnp.zeros_like, weights), x.reshape(2, -1, WIDTH))

  return step


def _sharded(loss):
  mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  of_data, whole = PartitionSpec("data"), PartitionSpec()

  @functools.partial(jax.shard_map, mesh=mesh, in_specs=(whole, of_data), out_specs=(whole, whole))
  def step(weights, x):
    varying = jax.tree.map(lambda weight: jax.lax.pcast(weight, "data", to="varying"), weights)
    value, grads = jax.value_and_grad(loss)(varying, x)
    return jax.lax.pmean(value, "data"), jax.lax.pmean(grads, "data")

  return step


def _mapped(loss):
  def step(weights, x):
    value, grads = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0))(weights, x.reshape(2, -1, WIDTH))
    return value.mean(), jax.tree.map(lambda grad: grad.mean(0), grads)

  return step


MODELS = {
  "residual": Model(_residual),
  "gated": Model(_gated),
  "normed": Model(_normed),
  "wide": Model(_wide, layer_shape=(WIDTH, 4 * WIDTH)),
  "attention": Model(_attention),
  "scanned": Model(_residual, is_scanned=True),
  "scanned normed": Model(_normed, is_scanned=True),
  "bfloat16": Model(_gated, dtype="bfloat16"),
  "clipped step": Model(_residual, around=_clipped),
  "accumulated step": Model(_residual, around=_accumulated),
  "shard_map": Model(_residual, around=_sharded),
  "vmap of grad": Model(_residual, around=_mapped),
}


def measure(name: str, engine: str) -> tables.Row:
  """One row: the program by hand and with `coopjax.remat`."""
  model, same = MODELS[name], lambda fn: fn
  arguments = model.arguments()
  temp_bytes = lambda *wraps: _temp_bytes(model.step(*wraps), arguments)
  plain_bytes = temp_bytes(same, same)
  hand_bytes = min(temp_bytes(jax.checkpoint, same), temp_bytes(same, jax.checkpoint), plain_bytes)

  def asked(budget_bytes: int) -> int:
    return temp_bytes(same, functools.partial(coopjax.remat, budget=budget_bytes, engine=engine))

  row = {"model": name, "engine": engine, "plain_bytes": plain_bytes, "hand_bytes": hand_bytes, "error": ""}
  row |= {"hand_got_bytes": None, "least_bytes": None, "least_got_bytes": None}
  try:
    row["hand_got_bytes"] = asked(hand_bytes)
  except coopjax.BudgetInfeasibleError as error:
    row["error"] = f"least for the budget by hand: {error.smallest_bytes:,}"
  try:
    asked(1)
  except coopjax.BudgetInfeasibleError as error:
    row["least_bytes"] = error.smallest_bytes
    try:
      row["least_got_bytes"] = asked(error.smallest_bytes)
    except coopjax.BudgetInfeasibleError as again:
      row["error"] += f" then {again.smallest_bytes:,} was the least"
  row["holds_hand"] = row["hand_got_bytes"] is not None and row["hand_got_bytes"] <= hand_bytes
  row["holds_least"] = row["least_got_bytes"] is not None and row["least_got_bytes"] <= row["least_bytes"]
  return row


def _temp_bytes(fn: Callable, arguments: Sequence[Any]) -> int:
  memory = jax.jit(fn).lower(*arguments).compile().memory_analysis()
  assert memory is not None  # a CPU's compiler says
  return memory.temp_size_in_bytes


def main() -> None:
  text, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=text, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
  parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
  parser.add_argument("--out", type=pathlib.Path, default=OUT)
  arguments = parser.parse_args()
  warnings.simplefilter("ignore")  # what is over its budget is a row that is not held
  before, rows = tables.read(arguments.out), []
  with tables.progress() as progress:
    bar = progress.add_task("programs", total=len(arguments.models) * len(arguments.engines))
    for name in arguments.models:
      for engine in arguments.engines:
        progress.update(bar, description=f"{name}, {engine}")
        rows.append(measure(name, engine))
        tables.write(arguments.out, rows=tables.merged(before, rows, ("model", "engine")))
        progress.advance(bar)
  console = tables.console()
  console.print(tables.table(rows, COLUMNS, "budgets that are known to be reachable"))
  held = sum(row["holds_hand"] + row["holds_least"] for row in rows)
  refused = sum(row["hand_got_bytes"] is None for row in rows)
  console.print(f"{held} of {2 * len(rows)} budgets held, {refused} by hand refused")
  sys.exit(held + refused < 2 * len(rows))


if __name__ == "__main__":
  main()
