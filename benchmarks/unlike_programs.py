"""Fifteen small programs of unlike shapes, for `hand_policies`: what people train besides a scanned decoder.

Each is a function of what wraps its layer, to a loss and its arguments.
"""

import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, PartitionSpec

LAYERS, WIDTH, BATCH, LENGTH = 6, 64, 4, 64
Layer = Callable[..., Any]
Program = Callable[[Callable[[Layer], Layer]], tuple[Callable[..., jax.Array], tuple[Any, ...]]]
PROGRAMS: dict[str, Program] = {}


def program(make: Program) -> Program:
  PROGRAMS[make.__name__.strip("_")] = make
  return make


def normal(name: str, *shape: int, scale: float = 0.05) -> jax.Array:
  rng = np.random.default_rng(zlib.crc32(f"{name}{shape}".encode()))
  return jnp.asarray(rng.normal(size=shape) * scale, jnp.float32)


def stacked(**shapes: tuple[int, ...]) -> dict[str, jax.Array]:
  return {name: normal(name, LAYERS, *shape) for name, shape in shapes.items()}


def listed(**shapes: tuple[int, ...]) -> list[dict[str, jax.Array]]:
  of_all = stacked(**shapes)
  return [{name: value[i] for name, value in of_all.items()} for i in range(LAYERS)]


def _tokens(size: int) -> jax.Array:
  return jnp.asarray(np.random.default_rng(0).integers(0, size, (BATCH, LENGTH)))


def norm(x: jax.Array) -> jax.Array:
  return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def attend(x: jax.Array, weight: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  query, key, value = jnp.split(x @ weight, 3, -1)
  scores = query @ key.mT / 8.0
  return jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -1e9)) @ value


def feed(x: jax.Array, weights: Any) -> jax.Array:
  return jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def dense(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
  x = x + attend(norm(x), weights["qkv"])
  return x + feed(x, weights), None


DENSE = {"qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
activations = functools.partial(normal, "x", BATCH, LENGTH, WIDTH, scale=1.0)


def scanned(layer: Layer) -> Callable[..., jax.Array]:
  return lambda weights, x: jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)


@program
def _state_space(wrap):
  """An associative scan in each layer of a scan."""

  def layer(x, weights):
    y = norm(x)
    value, gate = jax.nn.silu(y @ weights["value"]), y @ weights["gate"]
    step = jax.nn.softplus(gate)
    combine = lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1])
    _, state = jax.lax.associative_scan(combine, (jnp.exp(-step), value * step), axis=1)
    return x + (state * jax.nn.silu(gate)) @ weights["out"], None

  wide = (WIDTH, 2 * WIDTH)
  return scanned(wrap(layer)), (stacked(value=wide, gate=wide, out=wide[::-1]), activations())


@program
def _recurrent(wrap):
  """A scan over time in a scan over layers: LSTMs."""

  def layer(x, weights):
    def step(carry, token):
      hidden, cell = carry
      gates = jnp.split(jnp.concatenate([token, hidden], -1) @ weights["gates"], 4, -1)
      cell = jax.nn.sigmoid(gates[1]) * cell + jax.nn.sigmoid(gates[0]) * jnp.tanh(gates[2])
      hidden = jax.nn.sigmoid(gates[3]) * jnp.tanh(cell)
      return (hidden, cell), hidden

    start = jnp.zeros((BATCH, WIDTH))
    return jax.lax.scan(step, (start, start), x)[1], None

  return scanned(wrap(layer)), (stacked(gates=(2 * WIDTH, 4 * WIDTH)), activations().swapaxes(0, 1))


def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
  layout = ("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NWC", "WIO", "NWC")
  return jax.lax.conv_general_dilated(x, kernel, (1,) * (x.ndim - 2), "SAME", dimension_numbers=layout)


@program
def _unet(wrap):
  """Blocks of unlike shapes, with skips."""
  widths = [(4, 8), (8, 16), (16, 32), (64, 32), (48, 16), (24, 8)]
  weights = [(normal("a", 3, 3, *width), normal("b", 3, 3, width[1], width[1])) for width in widths]

  def block(x, kernels):
    x = jax.nn.silu(convolve(x, kernels[0]))
    x = x - x.mean((1, 2), keepdims=True)
    x = x * jax.lax.rsqrt((x**2).mean((1, 2), keepdims=True) + 1e-5)
    return jax.nn.silu(convolve(x, kernels[1]))

  block = wrap(block)

  def loss(weights, head, x):
    y, skips = x, []
    for kernels in weights[:3]:
      y = block(y, kernels)
      skips.append(y)
      y = jax.lax.reduce_window(y, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") / 4
    for kernels, skip in zip(weights[3:], reversed(skips), strict=True):
      y = jax.image.resize(y, (*skip.shape[:3], y.shape[-1]), "nearest")
      y = block(jnp.concatenate([y, skip], -1), kernels)
    return jnp.mean((convolve(y, head) - x) ** 2)

  return loss, (weights, normal("head", 1, 1, 8, 4), normal("x", 2, 32, 32, 4, scale=1.0))


@program
def _experts(wrap):
  """Two of four experts for each token, by products with one-hot gates, and an auxiliary loss."""

  def layer(x, weights):
    x = x + attend(norm(x), weights["qkv"])
    flat = x.reshape(-1, WIDTH)
    shares = jax.nn.softmax(flat @ weights["router"])
    top, chosen = jax.lax.top_k(shares, 2)
    gates = jnp.sum(jax.nn.one_hot(chosen, 4) * top[..., None], 1)
    inner = jax.nn.gelu(jnp.einsum("td,te,edf->etf", flat, gates, weights["up"]))
    mean = shares.mean(0)
    return x + jnp.einsum("etf,efd->td", inner, weights["down"]).reshape(x.shape), -jnp.sum(mean * jnp.log(mean))

  layer = wrap(layer)

  def loss(weights, x):
    y, auxiliary = jax.lax.scan(layer, x, weights)
    return jnp.mean(y**2) + auxiliary.mean()

  shapes = {"qkv": DENSE["qkv"], "router": (WIDTH, 4), "up": (4, WIDTH, 4 * WIDTH), "down": (4, 4 * WIDTH, WIDTH)}
  return loss, (stacked(**shapes), activations())


@program
def _dropout(wrap):
  """Unrolled, with random keys."""
  drop = lambda key, x: jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)

  def block(x, weights, key):
    of_attention, of_feed = jax.random.split(key)
    x = x + drop(of_attention, attend(norm(x), weights["qkv"]))
    return x + drop(of_feed, feed(norm(x), weights))

  block = wrap(block)

  def loss(layers, x, key):
    for i, weights in enumerate(layers):
      x = block(x, weights, jax.random.fold_in(key, i))
    return jnp.mean(x**2)

  return loss, (listed(**DENSE), activations(), jax.random.key(0))


@program
def _alternating(wrap):
  """Branches in a scan: attention or feed-forward, by the number of the layer."""

  def layer(carry, weights):
    x, number = carry
    ways = (lambda x: x + attend(x, weights["qkv"]), lambda x: x + feed(x, weights))
    return (jax.lax.cond(number % 2 == 0, *ways, x), number + 1), None

  layer = wrap(layer)
  return lambda weights, x: jnp.mean(jax.lax.scan(layer, (x, 0), weights)[0][0] ** 2), (
    stacked(**DENSE),
    activations(),
  )


@program
def _chunked_loss(wrap):
  """A scan over layers, then one over pieces of the sequence for the logits."""
  layer, chunks = wrap(dense), 8

  def loss(table, weights, tokens):
    x, _ = jax.lax.scan(layer, table[tokens], weights)

    def turn(total, piece):
      logits = piece[0] @ table.T
      right = jnp.take_along_axis(logits, piece[1][..., None], -1)[..., 0]
      return total + jnp.sum(jax.nn.logsumexp(logits, -1) - right), None

    split = lambda y: y.reshape(BATCH, chunks, LENGTH // chunks, *y.shape[2:]).swapaxes(0, 1)
    return jax.lax.scan(turn, 0.0, (split(x), split(tokens)))[0] / tokens.size

  return loss, (normal("table", 512, WIDTH, scale=0.3), stacked(**DENSE), _tokens(512))


@program
def _graph_network(wrap):
  """Messages along edges, gathered and summed."""
  nodes, edges = 256, 1024
  ends = jnp.asarray(np.random.default_rng(0).integers(0, nodes, (2, edges)))

  def block(x, weights):
    message = jax.nn.relu(jnp.concatenate([x[ends[0]], x[ends[1]]], -1) @ weights["message"])
    gathered = jax.ops.segment_sum(message, ends[1], nodes)
    return x + jax.nn.relu(jnp.concatenate([x, gathered], -1) @ weights["update"])

  block, shape = wrap(block), (2 * WIDTH, WIDTH)
  loss = lambda layers, x: jnp.mean(functools.reduce(block, layers, x) ** 2)
  return loss, (listed(message=shape, update=shape), normal("x", nodes, WIDTH, scale=1.0))


@program
def _mixed_precision(wrap):
  """Weights cast to bfloat16 in the layer, and names."""

  def layer(x, weights):
    weights = jax.tree.map(lambda value: value.astype(jnp.bfloat16), weights)
    x = x + checkpoint_name(attend(norm(x), weights["qkv"]), "context")
    up = checkpoint_name(x @ weights["up"], "up")
    return x + jax.nn.silu(up) @ weights["down"], None

  loss = scanned(wrap(layer))
  return lambda weights, x: loss(weights, x.astype(jnp.bfloat16)).astype(jnp.float32), (
    stacked(**DENSE),
    activations(),
  )


@program
def _local_and_global(wrap):
  """Two unlike layers in the body of a scan."""
  causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
  near = causal & (jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH) < 16)

  def group(x, weights):
    for i, mask in enumerate((near, causal)):
      here = jax.tree.map(lambda value, i=i: value[i], weights)
      x = x + attend(x, here["qkv"], mask)
      x = x + feed(x, here)
    return x, None

  pairs = jax.tree.map(lambda value: value.reshape(LAYERS // 2, 2, *value.shape[1:]), stacked(**DENSE))
  return scanned(wrap(group)), (pairs, activations())


@program
def _denoiser(wrap):
  """Convolutions conditioned on noise that is made inside."""

  def block(x, weights, time):
    scale, shift = jnp.split(time @ weights["film"], 2, -1)
    inner = convolve(jax.nn.silu(x), weights["first"]) * (1 + scale[:, None]) + shift[:, None]
    return x + convolve(jax.nn.silu(inner), weights["second"])

  block = wrap(block)

  def loss(layers, table, x, key):
    of_time, of_noise = jax.random.split(key)
    time, noise = jax.random.uniform(of_time, (BATCH, 1)), jax.random.normal(of_noise, x.shape)
    y = jnp.cos(time)[..., None] * x + jnp.sin(time)[..., None] * noise
    for weights in layers:
      y = block(y, weights, jnp.sin(time @ table))
    return jnp.mean((y - noise) ** 2)

  kernel = (3, WIDTH, WIDTH)
  layers = listed(first=kernel, second=kernel, film=(WIDTH, 2 * WIDTH))
  return loss, (layers, normal("table", 1, WIDTH), activations(), jax.random.key(1))


@program
def _relative_bias(wrap):
  """Unrolled; heads as einsums, and one table that all layers read."""

  def block(x, weights, bias):
    y = norm(x)
    query, key, value = (jnp.einsum("btd,dhk->bthk", y, weights[name]) for name in ("query", "key", "value"))
    shares = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", query, key) + bias)
    x = x + jnp.einsum("bhts,bshk,hkd->btd", shares, value, weights["out"])
    return x + feed(norm(x), weights)

  block, heads = wrap(block), 4
  each = dict.fromkeys(("query", "key", "value"), (WIDTH, heads, WIDTH // heads))
  layers = listed(**each, out=(heads, WIDTH // heads, WIDTH), up=DENSE["up"], down=DENSE["down"])
  loss = lambda layers, bias, x: jnp.mean(functools.reduce(lambda x, w: block(x, w, bias), layers, x) ** 2)
  return loss, (layers, normal("bias", heads, LENGTH, LENGTH), activations())


@program
def _sharded(wrap):
  """Weights and batch over four devices."""
  mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
  over = lambda value, *spec: jax.ShapeDtypeStruct(
    value.shape, value.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec))
  )
  weights = jax.tree.map(lambda value: over(value, None, "data"), stacked(**DENSE))
  return scanned(wrap(dense)), (weights, over(activations(), "data"))


@program
def _first_layer_apart(wrap):
  """One layer of its own, then a scan, and a head that is the table."""
  layer = wrap(dense)

  def loss(table, first, weights, tokens):
    x, _ = jax.lax.scan(layer, layer(table[tokens], first)[0], weights)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x @ table.T), tokens[..., None], -1))

  first = {"qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 8 * WIDTH), "down": (8 * WIDTH, WIDTH)}
  first = {name: normal(f"first {name}", *shape) for name, shape in first.items()}
  return loss, (normal("table", 256, WIDTH, scale=0.3), first, stacked(**DENSE), _tokens(256))


@program
def _own_flash(wrap):
  """Attention with a derivative rule of its own, whose forward pass is a loop."""
  size = 16

  def forward(query, key, value):
    def turn(carry, piece):
      most, total, out = carry
      scores = query @ piece[0].mT / 8.0
      now = jnp.maximum(most, scores.max(-1))
      shares, shrink = jnp.exp(scores - now[..., None]), jnp.exp(most - now)
      return (now, total * shrink + shares.sum(-1), out * shrink[..., None] + shares @ piece[1]), None

    split = lambda y: y.reshape(BATCH, LENGTH // size, size, WIDTH).swapaxes(0, 1)
    start = jnp.full((BATCH, LENGTH), -1e30), jnp.zeros((BATCH, LENGTH)), jnp.zeros_like(query)
    (most, total, out), _ = jax.lax.scan(turn, start, (split(key), split(value)))
    out = out / total[..., None]
    return out, (query, key, value, out, most + jnp.log(total))

  def backward(kept, grad):
    query, key, value, out, log_total = kept
    shares = jnp.exp(query @ key.mT / 8.0 - log_total[..., None])
    of_scores = shares * (grad @ value.mT - (out * grad).sum(-1)[..., None]) / 8.0
    return of_scores @ key, of_scores.mT @ query, shares.mT @ grad

  flash = jax.custom_vjp(lambda query, key, value: forward(query, key, value)[0])
  flash.defvjp(forward, backward)

  def layer(x, weights):
    x = x + flash(*jnp.split(x @ weights["qkv"], 3, -1))
    return x + feed(x, weights), None

  return scanned(wrap(layer)), (stacked(**DENSE), activations())
