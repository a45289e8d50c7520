"""Fifteen more small programs, for `hand_policies`: what runs on one device of a mesh, and layers unlike a decoder's.

As in `unlike_programs`, each is a function of what wraps its layer, to a loss and its arguments.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from unlike_loops import PROGRAMS as PROGRAMS  # all of them, those below among them
from unlike_programs import (
  BATCH,
  DENSE,
  LAYERS,
  LENGTH,
  WIDTH,
  activations,
  attend,
  convolve,
  dense,
  feed,
  norm,
  normal,
  program,
  scanned,
  stacked,
)


def _mesh(**sizes: int) -> jax.sharding.Mesh:
  kinds = (AxisType.Auto,) * len(sizes)
  return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=jax.devices()[:4])


def _over(mesh: jax.sharding.Mesh, value: Any, *spec: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))


@program
def _pipeline(wrap):
  """Four stages on four devices: in each turn of a loop all of them run their layers, and hand on what they made."""
  mesh, layer, num_batches = _mesh(stage=4), wrap(dense), 8

  def local(weights, batches):
    weights, stage = jax.tree.map(lambda weight: weight[0], weights), jax.lax.axis_index("stage")

    def turn(carry, number):
      handed_on, outputs = carry
      x = jnp.where(stage == 0, batches[jnp.minimum(number, num_batches - 1)], handed_on)
      x, _ = jax.lax.scan(layer, x, weights)
      finished = jnp.clip(number - 3, 0, num_batches - 1)
      outputs = jax.lax.dynamic_update_index_in_dim(outputs, jnp.where(stage == 3, x, 0.0), finished, 0)
      return (jax.lax.ppermute(x, "stage", [(i, (i + 1) % 4) for i in range(4)]), outputs), None

    start = jax.lax.pcast((jnp.zeros_like(batches[0]), jnp.zeros_like(batches)), "stage", to="varying")
    (_, outputs), _ = jax.lax.scan(turn, start, jnp.arange(num_batches + 3))
    return jax.lax.psum(jnp.mean(outputs**2), "stage")

  specs = PartitionSpec("stage"), PartitionSpec()
  loss = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
  weights = {name: jax.ShapeDtypeStruct((4, 2, *shape), jnp.float32) for name, shape in DENSE.items()}
  batches = jax.ShapeDtypeStruct((num_batches, BATCH, LENGTH, WIDTH), jnp.float32)
  return loss, (jax.tree.map(lambda weight: _over(mesh, weight, "stage"), weights), _over(mesh, batches))


@program
def _one_device(wrap):
  """All of a loss but the embedding as what one device does: it gathers weights layer by layer, and its loss is in
  pieces.
  """
  mesh = _mesh(data=4)
  gathered = functools.partial(jax.lax.all_gather, axis_name="data", tiled=True)
  layer = wrap(lambda x, weights: dense(x, jax.tree.map(gathered, weights)))

  def local(weights, head, x):
    x, _ = jax.lax.scan(layer, x, weights)
    head = gathered(head)

    def piece(total, rows):
      logits = rows @ head
      return total + jnp.sum(jax.nn.logsumexp(logits, -1) - logits[..., 0]), None

    total, _ = jax.lax.scan(piece, 0.0 * x.sum(), x.reshape(4, -1, WIDTH))
    return jax.lax.pmean(total, "data")

  specs = PartitionSpec(None, "data"), PartitionSpec("data"), PartitionSpec("data")
  of_all = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
  loss = lambda weights, head, table, tokens: of_all(weights, head, table[tokens]) + 1e-3 * jnp.mean(table**2)
  weights = jax.tree.map(lambda weight: _over(mesh, weight, None, "data"), stacked(**DENSE))
  head, table = normal("head", WIDTH, 1024), normal("table", 1024, WIDTH)
  tokens = jax.ShapeDtypeStruct((16 * BATCH, LENGTH), jnp.int32)
  return loss, (weights, *(_over(mesh, value, "data") for value in (head, table, tokens)))


@program
def _partly_manual(wrap):
  """A batch cut by hand, weights by the partitioner."""
  mesh, layer = _mesh(data=2, model=2), wrap(dense)

  def local(weights, x):
    x, _ = jax.lax.scan(layer, x, weights)
    return jax.lax.pmean(jnp.mean(x**2), "data")

  specs = PartitionSpec(), PartitionSpec("data")
  loss = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), axis_names={"data"})
  columns = {name: (None, "model") if name == "down" else (None, None, "model") for name in DENSE}
  weights = {name: _over(mesh, weight, *columns[name]) for name, weight in stacked(**DENSE).items()}
  return jax.jit(loss), (weights, _over(mesh, normal("x", 8 * BATCH, LENGTH, WIDTH), "data"))


@program
def _adapters(wrap):
  """Weights that nobody differentiates, and small ones beside them."""
  frozen = stacked(**DENSE)

  def layer(x, weights):
    base, adapter = jax.lax.stop_gradient(weights[0]), weights[1]
    x = x + attend(norm(x), base["qkv"] + adapter["a"] @ adapter["b"])
    return x + feed(x, base) + (x @ adapter["c"]) @ adapter["d"], None

  layer, rank = wrap(layer), 4
  loss = lambda adapters, x: jnp.mean(jax.lax.scan(layer, x, (frozen, adapters))[0] ** 2)
  adapters = stacked(a=(WIDTH, rank), b=(rank, 3 * WIDTH), c=(WIDTH, rank), d=(rank, WIDTH))
  return loss, (adapters, activations())


@program
def _windows(wrap):
  """Attention inside of windows, then inside of shifted ones."""

  def layer(x, weights):
    for shift in (0, 4):
      y = jnp.roll(norm(x), -shift, 1).reshape(-1, 8, WIDTH)
      x = x + jnp.roll(attend(y, weights["qkv"]).reshape(x.shape), shift, 1)
    return x + feed(norm(x), weights), None

  return scanned(wrap(layer)), (stacked(**DENSE), activations())


@program
def _dilated(wrap):
  """Gated convolutions, each over twice the reach of the one before, whose second outputs are summed."""
  shapes = {"filter": (2, 32, 32), "gate": (2, 32, 32), "skip": (32, 64), "residual": (32, 32)}
  weights = [{name: normal(f"{name}{i}", *shape, scale=0.2) for name, shape in shapes.items()} for i in range(8)]

  def block(x, weights, reach):
    layout = ("NWC", "WIO", "NWC")
    convolved = lambda kernel: jax.lax.conv_general_dilated(
      x, kernel, (1,), [(reach, 0)], rhs_dilation=(reach,), dimension_numbers=layout
    )
    y = jnp.tanh(convolved(weights["filter"])) * jax.nn.sigmoid(convolved(weights["gate"]))
    return x + y @ weights["residual"], y @ weights["skip"]

  def loss(weights, x):
    skips = 0.0
    for i, of_block in enumerate(weights):
      x, skip = wrap(functools.partial(block, reach=2**i))(x, of_block)
      skips = skips + skip
    return -jnp.mean(jax.nn.log_softmax(jax.nn.relu(skips))[..., 0])

  return loss, (weights, normal("x", BATCH, 512, 32, scale=1.0))


@program
def _quantizer(wrap):
  """Residual blocks before and behind a codebook, through which the gradient goes straight."""
  block = wrap(lambda x, kernels: x + convolve(jax.nn.relu(convolve(jax.nn.relu(x), kernels[0])), kernels[1]))
  weights = [(normal(f"wide{i}", 3, 3, 32, 32), normal(f"narrow{i}", 1, 1, 32, 32)) for i in range(LAYERS)]

  def loss(weights, book, x):
    y = functools.reduce(lambda y, kernels: block(y, kernels), weights[:3], x)
    nearest = book[jnp.argmin(jnp.sum((y[..., None, :] - book) ** 2, -1), -1)]
    fixed = jax.lax.stop_gradient
    apart = jnp.mean((fixed(nearest) - y) ** 2) + jnp.mean((fixed(y) - nearest) ** 2)
    y = functools.reduce(lambda y, kernels: block(y, kernels), weights[3:], y + fixed(nearest - y))
    return jnp.mean((y - x) ** 2) + apart

  return loss, (weights, normal("book", 64, 32, scale=1.0), normal("x", BATCH, 24, 24, 32, scale=1.0))


@program
def _batch_statistics(wrap):
  """Blocks that hand out what they normalize by."""

  def block(x, weights):
    y = convolve(x, weights["wide"])
    mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
    y = jax.nn.relu((y - mean) * jax.lax.rsqrt(variance + 1e-5) * weights["scale"])
    return x + convolve(y, weights["narrow"]), jnp.sum(mean**2) + jnp.sum(variance)

  block, shapes = wrap(block), {"wide": (3, 3, 32, 64), "scale": (64,), "narrow": (3, 3, 64, 32)}
  weights = [{name: normal(f"{name}{i}", *shape) for name, shape in shapes.items()} for i in range(LAYERS)]

  def loss(weights, x):
    total = 0.0
    for of_block in weights:
      x, statistics = block(x, of_block)
      total = total + statistics
    return jnp.mean(x**2) + 1e-3 * total

  return loss, (weights, normal("x", BATCH, 24, 24, 32, scale=1.0))


@program
def _three_heads(wrap):
  """Three predictions over one vocabulary, more bytes than all layers."""
  layer = wrap(dense)

  def loss(weights, head, x):
    x, _ = jax.lax.scan(layer, x, weights)
    logits = [jnp.roll(x, ahead, 1) @ head for ahead in range(3)]
    return sum(jnp.mean(jax.nn.logsumexp(each, -1) - each[..., i]) for i, each in enumerate(logits))

  return loss, (stacked(**DENSE), normal("head", WIDTH, 2048), activations())


@program
def _stages(wrap):
  """A scan of layers in a scan of stages."""
  layer = wrap(dense)

  def stage(x, weights):
    x, _ = jax.lax.scan(layer, x, weights[0])
    return jnp.tanh(x @ weights[1]), None

  loss = lambda weights, mixes, x: jnp.mean(jax.lax.scan(stage, x, (weights, mixes))[0] ** 2)
  weights = jax.tree.map(lambda weight: weight.reshape(3, -1, *weight.shape[1:]), stacked(**DENSE))
  return loss, (weights, normal("mix", 3, WIDTH, WIDTH, scale=0.3), activations())


@program
def _score(wrap):
  """A layer is a step along the gradient of an energy."""

  def energy(x, weights):
    return jnp.sum(jnp.tanh(jax.nn.silu(x @ weights["up"]) @ weights["down"]) ** 2)

  layer = wrap(lambda x, weights: (x - 0.1 * jax.grad(energy)(x, weights), None))
  return scanned(layer), (stacked(up=(WIDTH, 4 * WIDTH), down=(4 * WIDTH, WIDTH)), activations())


@program
def _latents(wrap):
  """The same few layers again and again, that look into a long input each time."""

  def block(x, inputs, shared, weights):
    query, (key, value) = x @ shared["query"], jnp.split(inputs @ shared["both"], 2, -1)
    x = x + jax.nn.softmax(query @ key.mT / 8.0) @ value
    return jax.lax.scan(dense, x, weights)[0]

  block = wrap(block)

  def loss(shared, weights, x, inputs):
    x = jnp.broadcast_to(x, (BATCH, *x.shape))
    x, _ = jax.lax.scan(lambda x, _: (block(x, inputs, shared, weights), None), x, None, length=4)
    return jnp.mean(x**2)

  shared = {"query": normal("query", WIDTH, WIDTH), "both": normal("both", WIDTH, 2 * WIDTH)}
  weights = jax.tree.map(lambda weight: weight[:2], stacked(**DENSE))
  return loss, (shared, weights, normal("x", 16, WIDTH, scale=1.0), normal("inputs", BATCH, 512, WIDTH, scale=1.0))


@program
def _in_pieces(wrap):
  """A recurrent net over time in pieces, each a scan."""

  def piece(hidden, tokens, weights):
    def step(hidden, token):
      hidden = jnp.tanh(token @ weights["in"] + hidden @ weights["again"])
      return hidden, hidden @ weights["out"]

    return jax.lax.scan(step, hidden, tokens)

  piece = wrap(piece)

  def loss(weights, tokens):
    def turn(hidden, tokens):
      hidden, outputs = piece(hidden, tokens, weights)
      return hidden, jnp.mean(outputs**2)

    return jnp.sum(jax.lax.scan(turn, jnp.zeros((32, WIDTH)), tokens)[1])

  shapes = {"in": (32, WIDTH), "again": (WIDTH, WIDTH), "out": (WIDTH, 32)}
  weights = {name: normal(name, *shape) for name, shape in shapes.items()}
  return loss, (weights, normal("tokens", 8, 16, 32, 32, scale=1.0))


@program
def _basic_blocks(wrap):
  """Blocks of two convolutions with their norms, in stages that are half as wide and twice as deep."""

  def normed(x, kernel, stride=1):
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)
    return (y - y.mean((0, 1, 2))) * jax.lax.rsqrt(y.var((0, 1, 2)) + 1e-5)

  @wrap
  def block(x, kernels):
    stride = kernels[0].shape[3] // x.shape[3]
    y = normed(jax.nn.relu(normed(x, kernels[0], stride)), kernels[1])
    return jax.nn.relu(y + (normed(x, kernels[2], stride) if len(kernels) > 2 else x))

  def loss(stem, weights, x):
    x = functools.reduce(lambda x, kernels: block(x, kernels), weights, normed(x, stem))
    return jnp.mean(jax.nn.logsumexp(x.mean((1, 2)), -1))

  weights = []
  for i, (width, out) in enumerate(((16, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64))):
    shapes = [(3, 3, width, out), (3, 3, out, out), *[(1, 1, width, out)] * (width != out)]
    weights.append([normal(f"kernel{i}", *shape) for shape in shapes])
  return loss, (normal("stem", 3, 3, 3, 16), weights, normal("x", 8, 32, 32, 3, scale=1.0))


@program
def _looked_up(wrap):
  """Layers in a loop that take their weights from the stack by the turn."""
  turn = wrap(lambda x, i, weights: dense(x, jax.tree.map(lambda weight: weight[i], weights)))
  loss = lambda weights, x: jnp.mean(jax.lax.scan(lambda x, i: turn(x, i, weights), x, jnp.arange(LAYERS))[0] ** 2)
  return loss, (stacked(**DENSE), activations())
