"""More small programs, for `hand_policies`: other loops, sharing, rules and calls than layers of a model have.

As in `unlike_programs`, each is a function of what wraps its layer, to a loss and its arguments.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from unlike_programs import (
  BATCH,
  DENSE,
  LAYERS,
  LENGTH,
  WIDTH,
  activations,
  attend,
  dense,
  feed,
  listed,
  norm,
  normal,
  program,
  scanned,
  stacked,
)
from unlike_programs import (
  PROGRAMS as PROGRAMS,  # all of them, those below among them
)


@program
def _simulation(wrap):
  """A layer is a step of time: a nonlinear field that the same small net pushes, with a loss along the way."""
  steps = 24

  def step(field, forcing, weights):
    around = lambda shift, axis: jnp.roll(field, shift, axis) + jnp.roll(field, -shift, axis)
    flow = around(1, 0) + around(1, 1) - 4 * field
    push = jnp.tanh(field @ weights["in"]) @ weights["out"]
    field = field + 0.1 * (flow + jnp.sin(field) * push + forcing)
    return field, jnp.mean(field**2)

  step = wrap(step)

  def loss(weights, field, forcings):
    _, energies = jax.lax.scan(lambda field, forcing: step(field, forcing, weights), field, forcings)
    return energies.sum()

  weights = {"in": normal("in", 2 * WIDTH, WIDTH), "out": normal("out", WIDTH, 2 * WIDTH)}
  return loss, (weights, normal("field", 96, 2 * WIDTH), normal("forcing", steps, 96, 1))


@program
def _tied(wrap):
  """All layers have the same weights, and what they get from the input is added each time."""

  def layer(x, start, weights):
    x = x + attend(norm(x + start), weights["qkv"])
    return x + feed(norm(x), weights)

  layer = wrap(layer)

  def loss(weights, x):
    y, _ = jax.lax.scan(lambda y, _: (layer(y, x, weights), None), jnp.zeros_like(x), length=LAYERS)
    return jnp.mean(y**2)

  return loss, ({name: normal(name, *shape) for name, shape in DENSE.items()}, activations())


@program
def _two_towers(wrap):
  """One encoder for two inputs, and a loss on all pairs."""

  def layer(x, weights):
    return x + feed(norm(x + attend(norm(x), weights["qkv"])), weights)

  layer = wrap(layer)

  def encode(layers, x):
    for weights in layers:
      x = layer(x, weights)
    return norm(x.reshape(-1, WIDTH))

  def loss(layers, left, right):
    scores = encode(layers, left) @ encode(layers, right).T
    return jnp.mean(jax.nn.logsumexp(scores, -1) - jnp.diagonal(scores))

  shapes = {"qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
  layers = [{name: normal(f"{name}{i}", *shape) for name, shape in shapes.items()} for i in range(4)]
  return loss, (layers, activations(), activations())


@program
def _fourier(wrap):
  """Layers that multiply in the frequency domain."""

  def layer(x, weights):
    modes = jnp.fft.rfft(x, axis=1)[:, :16]
    parts = jnp.einsum("bkc,kcd->bkd", jnp.concatenate([modes.real, modes.imag], -1), weights["spectral"])
    mixed = jax.lax.complex(*jnp.split(parts, 2, -1))
    back = jnp.fft.irfft(mixed, LENGTH, axis=1)
    return x + jax.nn.gelu(back + x @ weights["pointwise"]), None

  return scanned(wrap(layer)), (stacked(spectral=(16, 2 * WIDTH, 2 * WIDTH), pointwise=(WIDTH, WIDTH)), activations())


@program
def _pairs(wrap):
  """A representation of pairs: triangles multiplied, and attention over rows, a few rows at a time."""
  size, width = 32, 16

  def layer(pairs, weights):
    left, right = jax.nn.sigmoid(pairs @ weights["left"]), jnp.tanh(pairs @ weights["right"])
    pairs = pairs + jnp.einsum("ikc,jkc->ijc", left, right) @ weights["out"] / size
    rows = jax.lax.map(lambda row: attend(row, weights["qkv"]), norm(pairs), batch_size=8)
    return pairs + feed(norm(pairs + rows), weights), None

  square = (width, width)
  shapes = {"left": square, "right": square, "out": square, "qkv": (width, 3 * width)}
  return scanned(wrap(layer)), (
    stacked(**shapes, up=(width, 4 * width), down=(4 * width, width)),
    normal("pairs", size, size, width, scale=1.0),
  )


@program
def _inner_steps(wrap):
  """Through steps of gradient descent: the layer is a step, with a gradient inside."""

  def inner_loss(weights, x):
    return jnp.mean((jnp.tanh(jnp.tanh(x @ weights["in"]) @ weights["middle"]) @ weights["out"] - x) ** 2)

  def step(weights, x):
    slopes = jax.grad(inner_loss)(weights, x)
    return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, slopes), None

  step = wrap(step)

  def loss(weights, support, query):
    adapted, _ = jax.lax.scan(step, weights, support)
    return inner_loss(adapted, query)

  shapes = {"in": (WIDTH, WIDTH), "middle": (WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
  weights = {name: normal(name, *shape) for name, shape in shapes.items()}
  return loss, (weights, normal("support", LAYERS, 256, WIDTH, scale=1.0), normal("query", 256, WIDTH, scale=1.0))


@program
def _quantized(wrap):
  """Products of rounded values, whose gradients pass straight through."""

  @jax.custom_vjp
  def product(x, weight):
    scale = jnp.max(jnp.abs(x), -1, keepdims=True) / 127
    return (jnp.round(x / scale).astype(jnp.int8).astype(jnp.float32) @ weight) * scale

  product.defvjp(
    lambda x, weight: (product(x, weight), (x, weight)),
    lambda kept, grad: (grad @ kept[1].T, jnp.einsum("btd,bte->de", kept[0], grad)),
  )

  def layer(x, weights):
    y = jax.nn.silu(product(norm(x), weights["gate"])) * product(norm(x), weights["up"])
    return x + product(y, weights["down"])

  layer = wrap(layer)

  def loss(layers, x):
    for weights in layers:
      x = layer(x, weights)
    return jnp.mean(x**2)

  return loss, (listed(gate=(WIDTH, 4 * WIDTH), up=(WIDTH, 4 * WIDTH), down=(4 * WIDTH, WIDTH)), activations())


@program
def _unrolled_time(wrap):
  """A recurrent cell, called in a Python loop over time."""

  def cell(hidden, token, weights):
    update, reset = jnp.split(jax.nn.sigmoid(jnp.concatenate([token, hidden], -1) @ weights["gates"]), 2, -1)
    proposed = jnp.tanh(jnp.concatenate([token, reset * hidden], -1) @ weights["proposed"])
    return (1 - update) * hidden + update * proposed

  cell = wrap(cell)

  def loss(weights, x):
    hidden, total = jnp.zeros_like(x[0]), 0.0
    for token in x:
      hidden = cell(hidden, token, weights)
      total += jnp.mean((hidden - token) ** 2)
    return total

  weights = {"gates": normal("gates", 2 * WIDTH, 2 * WIDTH), "proposed": normal("proposed", 2 * WIDTH, WIDTH)}
  return loss, (weights, normal("x", 16, 64, WIDTH, scale=1.0))


@program
def _memory(wrap):
  """Segments of a long text in a scan, each with what its layers remember of the one before; layers in a scan."""

  def layer(x, inputs):
    weights, remembered = inputs
    y = jnp.concatenate([jax.lax.stop_gradient(remembered), norm(x)], 1)
    query, (key, value) = norm(x) @ weights["query"], jnp.split(y @ weights["kv"], 2, -1)
    x = x + jax.nn.softmax(query @ key.mT / 8.0) @ value
    return x + feed(norm(x), weights), norm(x)

  layer = wrap(layer)

  def loss(weights, text):
    def segment(memory, x):
      y, memory = jax.lax.scan(layer, x, (weights, memory))
      return memory, jnp.mean((y - x) ** 2)

    memory = jnp.zeros((LAYERS, BATCH, LENGTH // 4, WIDTH))
    return jax.lax.scan(segment, memory, text.reshape(BATCH, 4, -1, WIDTH).swapaxes(0, 1))[1].sum()

  shapes = {"query": (WIDTH, WIDTH), "kv": (WIDTH, 2 * WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
  return loss, (stacked(**shapes), activations())


@program
def _ensemble(wrap):
  """Members under vmap, each a scan over layers with a top-k and a sort."""

  def layer(x, weights):
    scores = norm(x) @ weights["router"]
    values, chosen = jax.lax.top_k(scores, 8)
    gathered = jnp.take_along_axis(x, chosen, -1) * jax.nn.softmax(values)
    ranked = jnp.sort(x, -1)[..., ::8]
    return x + jax.nn.gelu(jnp.concatenate([gathered, ranked], -1) @ weights["up"]) @ weights["down"], None

  member = scanned(wrap(layer))
  shapes = {"router": (WIDTH, WIDTH), "up": (16, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
  weights = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), stacked(**shapes))
  return lambda weights, x: jax.vmap(member, (0, None))(weights, x).sum(), (weights, activations())


def _in_a_row(wrap):
  layer = wrap(dense)

  def loss(weights, x):
    for each in weights:
      x, _ = layer(x, each)
    return jnp.mean(x**2)

  return loss


@program
def _of_one_device(wrap):
  """Written for one device, in a `shard_map`, with its layers in a row."""
  mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
  local = lambda weights, x: jax.lax.pmean(_in_a_row(wrap)(weights, x), "data")
  loss = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
  return loss, (listed(**DENSE), activations())


@program
def _in_a_branch(wrap):
  """All layers in one of two branches: what a batch that is no good skips."""
  skipped = lambda weights, x: jnp.mean(x)
  loss = lambda weights, x: jax.lax.cond(jnp.isfinite(x).all(), _in_a_row(wrap), skipped, weights, x)
  return loss, (listed(**DENSE), activations())


@program
def _in_a_jit(wrap):
  """All layers in a jit that says where its result lies."""
  whole = NamedSharding(jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,)), P())
  return jax.jit(_in_a_row(wrap), out_shardings=whole), (listed(**DENSE), activations())


@program
def _solver(wrap):
  """A neural differential equation: each step of time runs its one layer four times (Runge and Kutta)."""
  change = wrap(lambda x, weights: dense(x, weights)[0] - x)

  def loss(weights, x):
    def turn(x, _):
      first = change(x, weights)
      second = change(x + first / 20, weights)
      third = change(x + second / 20, weights)
      last = change(x + third / 10, weights)
      return x + (first + 2 * second + 2 * third + last) / 60, None

    return jnp.mean(jax.lax.scan(turn, x, length=8)[0] ** 2)

  weights = {name: normal(name, *shape) for name, shape in DENSE.items()}
  return loss, (weights, activations())
