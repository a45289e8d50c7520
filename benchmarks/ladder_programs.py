"""Five programs as language models are trained, small, and the rungs of checkpoint policies that people choose by hand.

Values have the names that MaxText gives them, so its rungs (`remat_policy`) read as they do there. A program is a loss
of parameters and tokens; a rung says what stands around a layer. Arrays are whole, and spread by the shardings of the
arguments: batches over "data" and "fsdp", weights over "fsdp" and "tensor".
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flash_attention import flash_attention
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from coopjax.jaxpr.user_policy import over_names

NUM_EXPERTS, EXPERTS_PER_TOKEN = 8, 2
AXES = ("data", "fsdp", "tensor")
MESHES = {"one": (1, 1, 1), "data": (8, 1, 1), "fsdp": (1, 8, 1), "tensor": (1, 1, 8), "mixed": (2, 2, 2)}
BATCH, SPLIT_IN, SPLIT_OUT = ("data", "fsdp"), ("fsdp", "tensor"), ("tensor", "fsdp")
_QKV = ("query_proj", "key_proj", "value_proj", "qkv_proj")
_MLP = ("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo")
_SAVED = {  # MaxText's, by name
  "full": (),
  "save_out_proj": ("out_proj",),
  "save_qkv_proj": _QKV,
  "save_dot_except_mlp": (*_QKV, "out_proj"),
  "save_dot_with_context_except_mlp": (*_QKV, "context", "out_proj"),
  "save_dot_except_mlpwi": (*_QKV, "out_proj", "mlpwo"),
  "minimal": (*_QKV, "out_proj", *_MLP),
  "minimal_with_context": (*_QKV, "context", "out_proj", *_MLP),
}
_OFFLOADED = {  # MaxText's, too; what goes to the host
  "qkv_proj_offloaded": _QKV,
  "minimal_offloaded": _SAVED["minimal"],
}


@dataclasses.dataclass(frozen=True)
class Rung:
  """What stands around each layer.

  Attributes:
    name: as MaxText or JAX have it; "nested" is a scan of scans, both checkpointed, with nothing saved by name.
    policy: of the layer's checkpoint.
    is_plain: no checkpoint at all.
    on_host: names of values that go to the host's memory, which a CPU has not.
  """

  name: str
  policy: Callable[..., Any] | None = None
  is_plain: bool = False
  on_host: tuple[str, ...] = ()

  def fold(self, layer: Callable, x: jax.Array, weights: Any) -> jax.Array:
    """``x`` through all layers: those of a list one by one, stacked ones in a scan."""
    if isinstance(weights, list):
      return self._unrolled(layer if self.is_plain else self._checkpoint(layer, prevent_cse=True), x, weights)
    wrapped = layer if self.is_plain else self._checkpoint(layer)
    run = lambda x, stack: lax.scan(lambda x, one: (wrapped(x, one), None), x, stack)[0]
    if self.name != "nested":
      return run(x, weights)
    num = jax.tree.leaves(weights)[0].shape[0]
    groups = jax.tree.map(lambda leaf: leaf.reshape(_outer(num), -1, *leaf.shape[1:]), weights)
    return lax.scan(lambda x, group: (self._checkpoint(run)(x, group), None), x, groups)[0]

  def _unrolled(self, layer: Callable, x: jax.Array, weights: list[Any]) -> jax.Array:
    run = lambda x, group: functools.reduce(lambda x, one: layer(x, one), group, x)
    if self.name != "nested":
      return run(x, weights)
    size = len(weights) // _outer(len(weights))
    for start in range(0, len(weights), size):
      x = self._checkpoint(run, prevent_cse=True)(x, weights[start : start + size])
    return x

  def _checkpoint(self, fn: Callable, prevent_cse: bool = False) -> Callable:
    """Outside of a loop XLA would merge what is repeated with what it repeats."""
    return jax.checkpoint(fn, policy=self.policy, prevent_cse=prevent_cse)


def _outer(num_layers: int) -> int:
  """Turns of the outer scan: the divisor next to the square root."""
  return min((n for n in range(1, num_layers + 1) if num_layers % n == 0), key=lambda n: abs(n - math.sqrt(num_layers)))


PLAIN = Rung("plain", is_plain=True)
RUNGS = {
  **{name: Rung(name, jax.checkpoint_policies.save_only_these_names(*saved)) for name, saved in _SAVED.items()},
  "dots_saveable": Rung("dots_saveable", jax.checkpoint_policies.dots_saveable),
  "dots_no_batch": Rung("dots_no_batch", jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
  "nested": Rung("nested"),
  **{name: Rung(name, over_names((), names), on_host=names) for name, names in _OFFLOADED.items()},
}
ON_DEVICE = [name for name, rung in RUNGS.items() if not rung.on_host]  # what a CPU has, too


@dataclasses.dataclass(frozen=True)
class Size:
  """Of a program; a head has ``width // heads`` features, and ``heads // key_heads`` of them share a key."""

  batch: int = 8
  length: int = 256
  width: int = 256
  hidden: int = 704
  heads: int = 8
  key_heads: int = 4
  layers: int = 8
  dtype: str = "float32"
  vocabulary: int = 512


@dataclasses.dataclass(frozen=True)
class Program:
  """One of the five.

  Attributes:
    name: of `PROGRAMS`.
    size: of its layers.
    mesh: of `MESHES`.
  """

  name: str
  size: Size = Size()
  mesh: str = "one"

  @functools.cached_property
  def device_mesh(self) -> jax.sharding.Mesh:
    """On devices of the default backend."""
    shape = MESHES[self.mesh]
    return jax.make_mesh(shape, AXES, (AxisType.Auto,) * 3, devices=jax.devices()[: math.prod(shape)])

  @property
  def arguments(self) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Parameters and tokens ``[batch, length + 1]``, as types; sharded where there are several devices."""
    size, is_moe = self.size, self.name == "moe"
    features = size.width // size.heads
    attention = {
      "norm": ((size.width,), ()),
      "query": ((size.width, size.heads * features), SPLIT_IN),
      "key": ((size.width, size.key_heads * features), SPLIT_IN),
      "value": ((size.width, size.key_heads * features), SPLIT_IN),
      "out": ((size.heads * features, size.width), SPLIT_OUT),
    }
    experts, on_experts = ((NUM_EXPERTS,), (None,)) if is_moe else ((), ())
    mlp = {
      "norm": ((size.width,), ()),
      "wi_0": ((*experts, size.width, size.hidden), (*on_experts, *SPLIT_IN)),
      "wi_1": ((*experts, size.width, size.hidden), (*on_experts, *SPLIT_IN)),
      "wo": ((*experts, size.hidden, size.width), (*on_experts, *SPLIT_OUT)),
    }
    if is_moe:
      mlp["router"] = ((size.width, NUM_EXPERTS), ("fsdp",))
    layer = {"attention": attention, "mlp": mlp}
    params = {
      "embedding": self._array((size.vocabulary, size.width), ("tensor", "fsdp")),
      "norm": self._array((size.width,), ()),
      "unembedding": self._array((size.width, size.vocabulary), SPLIT_IN),
      "layers": [self._weights(layer) for _ in range(size.layers)]
      if self.name == "unrolled"
      else self._weights(layer, size.layers),
    }
    if self.name == "encoder_decoder":
      params["encoder"] = self._weights(layer, size.layers)
      params["layers"] = self._weights({**layer, "cross": attention}, size.layers)
    return params, self._array((size.batch, size.length + 1), (BATCH,), "int32")

  def loss(self, rung: Rung = PLAIN) -> Callable[[Any, jax.Array], jax.Array]:
    """Mean cross-entropy of the next token, of parameters and tokens."""

    def loss(params, tokens):
      x = params["embedding"][tokens[:, :-1]]
      layer = self._decoder_layer
      if self.name == "encoder_decoder":
        memory = rung.fold(functools.partial(self._decoder_layer, is_causal=False), x[:, ::-1], params["encoder"])
        layer = functools.partial(self._decoder_layer, memory=memory)
      x = rung.fold(layer, x, params["layers"])
      logits = (rms_norm(x, params["norm"]) @ params["unembedding"]).astype(jnp.float32)
      picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
      return (jax.nn.logsumexp(logits, -1) - picked).mean()

    return loss

  def _decoder_layer(self, x, weights, memory=None, is_causal=True):
    x = x + self._attend(x, x, weights["attention"], is_causal)
    if memory is not None:
      x = x + self._attend(x, memory, weights["cross"], is_causal=False)
    y = rms_norm(x, weights["mlp"]["norm"])
    return x + (self._experts if self.name == "moe" else swiglu)(y, weights["mlp"])

  def _attend(self, x, source, weights, is_causal):
    y = rms_norm(x, weights["norm"])
    kv = y if source is x else source
    split = lambda y: y.reshape(*y.shape[:2], -1, self.size.width // self.size.heads)
    query = checkpoint_name(rotate(split(y @ weights["query"])), "query_proj")
    key = checkpoint_name(rotate(split(kv @ weights["key"])), "key_proj")
    value = checkpoint_name(split(kv @ weights["value"]), "value_proj")
    if self.name == "flash":
      context = self._flash(query, key, value)
    else:
      context = checkpoint_name(attention(query, key, value, is_causal), "context")
    return checkpoint_name(context.reshape(*x.shape[:2], -1) @ weights["out"], "out_proj")

  def _flash(self, query, key, value):
    """A Pallas kernel, each device's own heads of its own sequences."""
    if self.mesh == "one":
      return flash_attention(query, key, value)
    spec = P(BATCH, None, "tensor")
    mesh = self.device_mesh.abstract_mesh
    # As many keys as queries, so that any number of devices can share them.
    key, value = (jnp.repeat(each, query.shape[2] // each.shape[2], axis=2) for each in (key, value))
    sharded = jax.shard_map(flash_attention, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    return sharded(query, key, value)

  def _experts(self, x, weights):
    """Each token by the experts that its router likes best; tokens are sorted by expert."""
    tokens = x.reshape(-1, x.shape[-1])
    gates, chosen = lax.top_k(jax.nn.softmax(tokens @ weights["router"]), EXPERTS_PER_TOKEN)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=NUM_EXPERTS).astype(jnp.int32)
    rows = tokens[order // EXPERTS_PER_TOKEN]
    gate = checkpoint_name(lax.ragged_dot(rows, weights["wi_0"], sizes), "mlpwi_0")
    up = checkpoint_name(lax.ragged_dot(rows, weights["wi_1"], sizes), "mlpwi_1")
    out = checkpoint_name(lax.ragged_dot(jax.nn.silu(gate) * up, weights["wo"], sizes), "mlpwo")
    by_token = jnp.zeros_like(out).at[order].set(out).reshape(*gates.shape, -1)
    return (by_token * gates[..., None].astype(x.dtype)).sum(1).reshape(x.shape)

  def _weights(self, shapes: Any, *stacked: int) -> Any:
    is_leaf = lambda leaf: isinstance(leaf, tuple)
    on_stack = (None,) * len(stacked)
    return jax.tree.map(lambda leaf: self._array((*stacked, *leaf[0]), (*on_stack, *leaf[1])), shapes, is_leaf=is_leaf)

  def _array(self, shape: tuple[int, ...], spec: tuple[Any, ...], dtype: str | None = None) -> jax.ShapeDtypeStruct:
    sharding = None if self.mesh == "one" else NamedSharding(self.device_mesh, P(*spec))
    return jax.ShapeDtypeStruct(shape, dtype or self.size.dtype, sharding=sharding)


PROGRAMS = ("decoder", "flash", "moe", "encoder_decoder", "unrolled")


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
  """``x`` over its root mean square, times ``1 + scale``."""
  precise = x.astype(jnp.float32)
  return (precise * lax.rsqrt((precise**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * (1 + scale)


def rotate(x: jax.Array) -> jax.Array:
  """Rotary positions for ``[batch, length, heads, features]``."""
  half = x.shape[-1] // 2
  angles = jnp.arange(x.shape[1])[:, None, None] * 10_000.0 ** (-jnp.arange(half) / half)
  first, second, cos, sin = x[..., :half], x[..., half:], jnp.cos(angles), jnp.sin(angles)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def attention(query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool) -> jax.Array:
  """Softmax attention for ``[batch, length, heads, features]``; several heads of queries share a key and a value."""
  batch, length, heads, features = query.shape
  grouped = query.reshape(batch, length, key.shape[2], -1, features)
  scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, key) / math.sqrt(features)
  if is_causal:
    scores = jnp.where(jnp.tril(jnp.ones((length, key.shape[1]), bool)), scores, -1e30)
  weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(query.dtype)
  return jnp.einsum("bhgqk,bkhd->bqhgd", weights, value).reshape(batch, length, heads, features)


def swiglu(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
  """The feed-forward layer."""
  gate = checkpoint_name(x @ weights["wi_0"], "mlpwi_0")
  up = checkpoint_name(x @ weights["wi_1"], "mlpwi_1")
  return checkpoint_name((jax.nn.silu(gate) * up) @ weights["wo"], "mlpwo")
