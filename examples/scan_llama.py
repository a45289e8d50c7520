"""Trains a LLaMA-style decoder, its layers in a scan, on a mesh of 8 virtual devices inside a budget per device.

RMSNorm, rotary positions, grouped queries and SwiGLU. The mesh is data x model: the batch is split over "data", heads
and hidden units over "model", and every weight and its AdamW state over both. ``coopjax.plan`` gets the whole training
step with shapes and shardings, before a parameter exists, so it knows what one device holds. The data is made up: every
sequence counts upwards by a step of its own. Shown are the compiler's temporary bytes of the step on one device, the
time of a step, and the losses, which are owed within rounding.

  python examples/scan_llama.py
  python examples/scan_llama.py --layers 4 --width 64 --context 64 --steps 2 --budget 0.5
"""

import argparse
import dataclasses
import functools
import math
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import coopjax

MIB = 2**20
VOCABULARY = 512
BATCH = P("data")  # [batch, context]


@dataclasses.dataclass(frozen=True)
class Llama:
  """Sizes; a head has ``width // heads`` features, and ``heads // key_heads`` of them share a key and a value."""

  layers: int = 8
  width: int = 128
  context: int = 128
  batch: int = 16
  heads: int = 8
  key_heads: int = 4

  @property
  def hidden(self) -> int:
    """Units between the two halves of the feed-forward layer."""
    return 8 * self.width // 3 // 16 * 16

  def weights(self) -> dict[str, Any]:
    """Shape and sharding of every parameter; those of the layers are stacked."""
    head, split_in, split_out = self.width // self.heads, P(None, "data", "model"), P(None, "model", "data")
    layer = {
      "attention_norm": ((self.width,), P()),
      "mlp_norm": ((self.width,), P()),
      "query": ((self.width, self.heads * head), split_in),
      "key": ((self.width, self.key_heads * head), split_in),
      "value": ((self.width, self.key_heads * head), split_in),
      "out": ((self.heads * head, self.width), split_out),
      "gate": ((self.width, self.hidden), split_in),
      "up": ((self.width, self.hidden), split_in),
      "down": ((self.hidden, self.width), split_out),
    }
    return {
      "embedding": ((VOCABULARY, self.width), P("model")),
      "norm": ((self.width,), P()),
      "unembedding": ((self.width, VOCABULARY), P("data", "model")),
      "layers": {name: ((self.layers, *shape), spec) for name, (shape, spec) in layer.items()},
    }

  def layer(self, x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """Attention and feed-forward layer, each normalized first and added to its input ``[batch, context, width]``."""
    split = lambda y: y.reshape(*y.shape[:2], -1, self.width // self.heads)
    y = rms_norm(x, weights["attention_norm"])
    query, key, value = (split(y @ weights[name]) for name in ("query", "key", "value"))
    mixed = jax.nn.dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
    x = x + mixed.reshape(*x.shape[:2], -1) @ weights["out"]
    y = rms_norm(x, weights["mlp_norm"])
    return split_batch(x + (jax.nn.silu(y @ weights["gate"]) * (y @ weights["up"])) @ weights["down"])

  def loss(self, params: dict[str, Any], tokens: jax.Array, checkpoint: Callable = lambda layer: layer) -> jax.Array:
    """Mean cross-entropy of the next token of ``[batch, context + 1]``."""
    body = checkpoint(self.layer)
    x = split_batch(params["embedding"][tokens[:, :-1]])
    x, _ = jax.lax.scan(lambda x, weights: (body(x, weights), None), x, params["layers"])
    logits = rms_norm(x, params["norm"]) @ params["unembedding"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def split_batch(x: jax.Array) -> jax.Array:
  """``[batch, context, width]`` with its batch split over the devices, and nothing else."""
  return jax.lax.with_sharding_constraint(x, BATCH)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
  """``x`` over its root mean square, times ``1 + scale``."""
  return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + scale)


def rotate(x: jax.Array) -> jax.Array:
  """Rotary positions for ``[batch, context, heads, features]``."""
  half = x.shape[-1] // 2
  angles = jnp.arange(x.shape[1])[:, None, None] * 10_000.0 ** (-jnp.arange(half) / half)
  first, second = x[..., :half], x[..., half:]
  return jnp.concatenate(
    [first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles) + first * jnp.sin(angles)], -1
  )


def abstract_state(model: Llama, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh) -> Any:
  """Shapes and shardings of the parameters and of the optimizer's moments, which lie where their parameters do."""
  place = lambda shape, dtype, spec: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
  params = jax.tree.map(
    lambda leaf: place(leaf[0], jnp.float32, leaf[1]), model.weights(), is_leaf=lambda leaf: isinstance(leaf, tuple)
  )
  moments = optax.tree_map_params(
    optimizer,
    lambda _, param: param,
    jax.eval_shape(optimizer.init, params),
    params,
    transform_non_params=lambda count: place(count.shape, count.dtype, P()),
  )
  return params, moments


def init(model: Llama, optimizer: optax.GradientTransformation, shardings: Any) -> Any:
  """Parameters and moments where they shall lie; norms start at 0, matrices at 1 / sqrt(inputs)."""

  def make(path, leaf):
    if "norm" in path[-1].key:
      return jnp.zeros(leaf[0])
    key = jax.random.key(zlib.crc32(jax.tree_util.keystr(path).encode()))
    return jax.random.normal(key, leaf[0]) * leaf[0][-2] ** -0.5

  def make_all():
    is_leaf = lambda leaf: isinstance(leaf, tuple)
    params = jax.tree_util.tree_map_with_path(make, model.weights(), is_leaf=is_leaf)
    return params, optimizer.init(params)

  return jax.jit(make_all, out_shardings=shardings)()


def make_batch(model: Llama, step: int, sharding: NamedSharding) -> jax.Array:
  """Tokens ``[batch, context + 1]``."""
  starts, steps = jax.random.split(jax.random.key(step))
  draw = functools.partial(jax.random.randint, shape=(model.batch, 1), maxval=VOCABULARY)
  tokens = (draw(starts, minval=0) + jnp.arange(model.context + 1) * (draw(steps, minval=0) % 8 + 1)) % VOCABULARY
  return jax.device_put(tokens, sharding)


def make_step(loss: Callable, optimizer: optax.GradientTransformation, shardings: Any) -> Callable:
  """The jitted ``(state, tokens) -> (state, loss)``; the state is donated, and stays where it is."""

  @functools.partial(jax.jit, donate_argnums=0, out_shardings=(shardings, None))
  def train_step(state, tokens):
    params, moments = state
    value, grads = jax.value_and_grad(loss)(params, tokens)
    updates, moments = optimizer.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), value

  return train_step


@dataclasses.dataclass
class Run:
  """One way to train, and what was measured; `budget_bytes` is what a device may take."""

  name: str
  compiled: jax.stages.Compiled
  budget_bytes: int | None = None
  state: Any = None
  losses: list[float] = dataclasses.field(default_factory=list)
  seconds: list[float] = dataclasses.field(default_factory=list)

  @property
  def temp_bytes(self) -> int:
    """Temporaries of the step on one device."""
    return self.compiled.memory_analysis().temp_size_in_bytes

  def train(self, tokens: jax.Array) -> None:
    """One step."""
    start = time.perf_counter()
    self.state, loss = self.compiled(self.state, tokens)
    self.losses.append(float(loss))
    self.seconds.append(time.perf_counter() - start)


def compare(runs: list[Run]) -> list[str]:
  """Prints the table; what a run promised and did not hold."""
  plain, faults = runs[0], []
  print(
    f"{'run':>22} {'budget MiB':>10} {'temp MiB':>8} {'step s':>6} {'time':>6}  loss after {len(plain.losses)} steps"
  )
  for run in runs:
    step_s, plain_s = (statistics.median(each.seconds[1:]) for each in (run, plain))
    budget = "" if run.budget_bytes is None else f"{run.budget_bytes / MIB:.1f}"
    print(
      f"{run.name:>22} {budget:>10} {run.temp_bytes / MIB:8.1f} {step_s:6.2f} {step_s / plain_s:5.2f}x  "
      f"{run.losses[-1]:.7f}"
    )
    if run.budget_bytes is not None and run.temp_bytes > run.budget_bytes:
      faults.append(f"{run.name}: {run.temp_bytes} bytes of temporaries on a device, over {run.budget_bytes}")
    if not all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(run.losses, plain.losses, strict=True)):
      faults.append(f"{run.name}: the losses differ from those without remat: {run.losses} {plain.losses}")
  return faults


def parse_arguments() -> argparse.Namespace:
  summary, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument(
    "--budget",
    nargs="+",
    type=float,
    default=[0.5, 0.25],
    metavar="B",
    help="shares of the un-rematerialized step's temporaries on one device",
  )
  parser.add_argument("--steps", type=int, default=5, help="training steps of each run; the first is not timed")
  for field in dataclasses.fields(Llama):
    parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=field.default, metavar="N")
  arguments = parser.parse_args()
  if arguments.steps < 2:
    parser.error("--steps must be at least 2: the first step is not timed")
  return arguments


def main() -> None:
  arguments = parse_arguments()
  jax.config.update("jax_num_cpu_devices", 8)
  mesh = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
  jax.set_mesh(mesh)
  model = Llama(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Llama)})
  optimizer, batch = optax.adamw(1e-3), NamedSharding(mesh, BATCH)
  state = abstract_state(model, optimizer, mesh)
  shapes = state, jax.ShapeDtypeStruct((model.batch, model.context + 1), jnp.int32, sharding=batch)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)

  losses = {"no remat": model.loss, "jax.checkpoint a layer": functools.partial(model.loss, checkpoint=jax.checkpoint)}
  runs = [Run(name, make_step(loss, optimizer, shardings).lower(*shapes).compile()) for name, loss in losses.items()]
  for share in arguments.budget:
    step = make_step(coopjax.remat(model.loss, budget=share), optimizer, shardings)
    plan = coopjax.plan(step, *shapes, budget=share)
    print(plan.explain(top=0), flush=True)
    runs.append(Run(f"coopjax {share:.0%}", plan.apply(step).lower(*shapes).compile(), int(share * runs[0].temp_bytes)))
  for run in runs:
    run.state = init(model, optimizer, shardings)
  for step in range(arguments.steps):
    tokens = make_batch(model, step, batch)
    for run in runs:
      run.train(tokens)
  sys.exit("\n".join(compare(runs)) or 0)


if __name__ == "__main__":
  main()
