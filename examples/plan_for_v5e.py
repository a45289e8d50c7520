"""The budget of a 1B-parameter decoder for a TPU v5e that is not there: shapes only, compiled ahead of time.

No array is made and no device is needed, only XLA's TPU compiler: pip install 'coopjax[tpu-target]'. The decoder scans
over its layers, in bfloat16; what is planned is its loss with the gradient, as one chip would run them. Every number of
bytes is the compiler's.

  python examples/plan_for_v5e.py
  python examples/plan_for_v5e.py --batch-size 4 --budget 14GiB --target tpu:v6e:2x2
  python examples/plan_for_v5e.py --target cpu --num-layers 6 --width 64 --length 64 --vocabulary 128 --budget 0.7
"""

import argparse
import dataclasses
import math
import sys
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp

import coopjax
from coopjax.budget import format_bytes
from coopjax.xla import targets


@dataclasses.dataclass(frozen=True)
class Decoder:
  """A GPT of pre-normalized blocks without biases; embedding and output share weights."""

  num_layers: int
  width: int
  num_heads: int
  length: int
  vocabulary: int
  batch_size: int

  @property
  def shapes(self) -> tuple[dict[str, Any], jax.ShapeDtypeStruct]:
    """Parameters, the blocks stacked, and tokens: types without values."""

    def weight(*shape):
      return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    layers, width = self.num_layers, self.width
    blocks = {
      "qkv": weight(layers, width, 3 * width),
      "out": weight(layers, width, width),
      "up": weight(layers, width, 4 * width),
      "down": weight(layers, 4 * width, width),
    }
    params = {"embedding": weight(self.vocabulary, width), "blocks": blocks}
    return params, jax.ShapeDtypeStruct((self.batch_size, self.length), jnp.int32)

  def loss(self, params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token."""
    x = params["embedding"][tokens]
    x, _ = jax.lax.scan(lambda x, block: (self.block(block, x), None), x, params["blocks"])
    logits = (normalized(x) @ params["embedding"].T).astype(jnp.float32)
    targets = jnp.roll(tokens, -1, 1)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()

  def block(self, weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Causal attention, then the multilayer perceptron."""
    heads = (*x.shape[:2], self.num_heads, -1)
    query, key, value = (part.reshape(heads) for part in jnp.split(normalized(x) @ weights["qkv"], 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    causal = jnp.tril(jnp.ones((self.length, self.length), bool))
    attention = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", attention, value).reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(normalized(x) @ weights["up"]) @ weights["down"]


def normalized(x: jax.Array) -> jax.Array:
  """Layer normalization without parameters, in float32."""
  y = x.astype(jnp.float32)
  y = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
  return y.astype(x.dtype)


def show(plan: coopjax.RematPlan, target: targets.Target, seconds: float) -> None:
  """The table of before and after, and what is recomputed."""
  print(
    f"\n{'':>12} {'arguments':>11} {'outputs':>11} {'temporaries':>12} {'in total':>11}"
    f"  on {format_bytes(target.memory_bytes)}"
  )
  for name, profile in (("no remat", plan.baseline), ("planned", plan.measured)):
    does_fit = "fits" if profile.total_bytes <= target.memory_bytes else "DOES NOT FIT"
    print(
      f"{name:>12} {format_bytes(profile.argument_bytes):>11} {format_bytes(profile.output_bytes):>11} "
      f"{format_bytes(profile.temp_bytes):>12} {format_bytes(profile.total_bytes):>11}  {does_fit}"
    )
  print(
    f"\nbudget {plan.budget}: {format_bytes(plan.budget_bytes)} of temporaries, "
    f"{'held' if plan.fits else 'NOT HELD'} with {plan.overhead:+.1%} modelled cost (engine {plan.engine}), "
    f"{len(plan.rounds)} rounds in {seconds:.0f} s"
  )
  for decision in ("saved", "recomputed"):
    values = [each for each in plan.decisions if each.decision == decision]
    print(f"\n{decision}: {len(values)} values, {format_bytes(sum(each.num_bytes for each in values))} in all layers")
    for each in values[:8]:
      print(f"  {format_bytes(each.num_bytes):>11}  {each.type:<26} {each.source}")


def main() -> None:
  summary, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--target", default="tpu:v5e:2x2", help="hardware to plan for")
  parser.add_argument("--budget", help="of temporaries, '6GiB' or 0.5; without it, all that the device has, 3%% spared")
  for name, default in (
    ("num-layers", 18),
    ("width", 2048),
    ("num-heads", 16),
    ("length", 2048),
    ("vocabulary", 32000),
    ("batch-size", 4),
  ):
    parser.add_argument(f"--{name}", type=int, default=default)
  options = vars(parser.parse_args())
  target, budget = targets.resolve(options.pop("target")), options.pop("budget")
  if budget is None:
    budget = coopjax.Budget.total(int(0.97 * target.memory_bytes))
  elif budget.replace(".", "", 1).isdigit():
    budget = float(budget)
  decoder = Decoder(**options)
  num_params = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(decoder.shapes[0]))
  tokens = f"{decoder.batch_size} x {decoder.length} tokens"
  print(f"{num_params / 1e9:.2f}B parameters, {tokens}, {target.name}", flush=True)
  start = time.perf_counter()
  result = coopjax.plan(decoder.loss, *decoder.shapes, budget=budget, target=target.name, engine="policy")
  show(result, target, time.perf_counter() - start)
  sys.exit(0 if result.fits else "the plan does not hold its budget")


if __name__ == "__main__":
  warnings.simplefilter("ignore", coopjax.RematNoEffectWarning)  # the table says so
  main()
