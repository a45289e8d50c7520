"""A launch file in the manner of large trainers: a YAML with a remat policy goes in, one that fits a budget comes out.

The decoder scans over layers under `jax.checkpoint`, with MaxText's names on what a layer makes and its words for what
is saved of it. The step is jitted with shardings and donated state, on a mesh of 8 virtual devices. With `budget`, the
step is planned as it stands, before a parameter exists, and what comes out is `remat_policy: custom` with a line a
tensor, which any later run takes without coopjax. Training stops half way, is restored from its checkpoint and goes on.

  python examples/launch_file.py                                # plans, trains 20 steps, stops and resumes after 10
  python examples/launch_file.py out/launch_file/policy.yml     # the policy that was found, pasted: no plan
  python examples/launch_file.py resume=true steps=30           # goes on
  python examples/launch_file.py steps=6 width=32 remat_policy=minimal budget= offload_state=true
"""

import functools
import math
import pathlib
import sys
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import yaml
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

DEFAULTS = yaml.safe_load("""
layers: 4
width: 128
heads: 4
vocabulary: 256
length: 64
batch: 16
steps: 20
learning_rate: 1.0e-3
mesh: {fsdp: 4, tensor: 2}
remat_policy: full       # or minimal, none, custom: then every tensor is 'device', 'offload' or 'remat'
budget: 60%              # of what the step takes with all saved; a size, or fits. Empty: the policy as it stands
offload_state: false
resume: false            # from the checkpoint in `out`
out: out/launch_file
""")
TENSORS = ("query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")
type Config = dict[str, Any]


def read_config(arguments: list[str]) -> Config:
  """The defaults, then YAML files, then key=value."""
  config = dict(DEFAULTS)
  for argument in arguments:
    name, equals, value = argument.partition("=")
    given = {name: yaml.safe_load(value)} if equals else yaml.safe_load(pathlib.Path(argument).read_text())
    if unknown := given.keys() - DEFAULTS.keys() - set(TENSORS):
      sys.exit(f"{argument}: no such setting: {', '.join(sorted(unknown))}")
    config |= given
  return config


def checkpointed(layer: Callable, config: Config) -> Callable:
  """A layer under the checkpoint that the configuration asks for."""
  if config["remat_policy"] == "none":
    return layer
  where = {"full": "remat", "minimal": "device"}.get(config["remat_policy"])
  placed = {name: where or config.get(name, "remat") for name in TENSORS}
  policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[name for name, place in placed.items() if place == "device"],
    names_which_can_be_offloaded=[name for name, place in placed.items() if place == "offload"],
    offload_src="device",
    offload_dst="pinned_host",
  )
  return jax.checkpoint(layer, policy=policy, prevent_cse=False)  # a scan stands around it


def layer(heads: int, x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array, None]:
  """Attention and gated feed-forward layer, each added to its input ``[batch, length, width]``."""
  made = lambda name, y: checkpoint_name(y @ weights[name], name)
  split = lambda y: y.reshape(*y.shape[:2], heads, -1)
  y = normalized(x)
  query, key, value = (split(made(name, y)) for name in ("query_proj", "key_proj", "value_proj"))
  mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(x.shape)
  x = x + made("out_proj", checkpoint_name(mixed, "context"))
  y = normalized(x)
  return split_batch(x + made("mlpwo", jax.nn.silu(made("mlpwi_0", y)) * made("mlpwi_1", y))), None


def normalized(x: jax.Array) -> jax.Array:
  """``x`` over its root mean square."""
  return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def split_batch(x: jax.Array) -> jax.Array:
  """``x`` with its batch over the devices of "fsdp"."""
  return jax.lax.with_sharding_constraint(x, P("fsdp"))


def loss(config: Config, params: dict[str, Any], tokens: jax.Array) -> jax.Array:
  """Mean cross-entropy of the next token of ``[batch, length + 1]``."""
  x = split_batch(params["embedding"][tokens[:, :-1]])
  body = checkpointed(functools.partial(layer, config["heads"]), config)
  x, _ = jax.lax.scan(body, x, params["layers"])
  logits = normalized(x) @ params["embedding"].T
  return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def abstract_params(config: Config, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """Shapes and shardings of the parameters; those of the layers are stacked."""
  width, hidden, num_layers = config["width"], 4 * config["width"], config["layers"]
  place = lambda shape, *axes: jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(*axes)))
  into = {name: place((num_layers, width, width), None, "fsdp", "tensor") for name in TENSORS[:3]}
  wide = {name: place((num_layers, width, hidden), None, "fsdp", "tensor") for name in ("mlpwi_0", "mlpwi_1")}
  out = {
    "out_proj": place((num_layers, width, width), None, "tensor", "fsdp"),
    "mlpwo": place((num_layers, hidden, width), None, "tensor", "fsdp"),
  }
  return {"embedding": place((config["vocabulary"], width), "tensor"), "layers": into | wide | out}


def abstract_state(config: Config, optimizer: Any, mesh: jax.sharding.Mesh) -> Any:
  """Parameters and the optimizer's moments, which lie where their parameters do, or in the host's memory."""
  params = abstract_params(config, mesh)
  by_path = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

  def placed(path, leaf):
    like = next((param for name, param in by_path.items() if jax.tree_util.keystr(path).endswith(name)), None)
    return like or jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, P()))

  moments = jax.tree_util.tree_map_with_path(placed, jax.eval_shape(optimizer.init, params))
  if config["offload_state"]:
    import coopjax

    moments = coopjax.state_on_host(moments)
  return params, moments


def make_step(config: Config, optimizer: Any, shardings: Any) -> Callable:
  """The jitted ``(state, tokens) -> (state, loss)``; the state is donated, and stays where it is."""

  @functools.partial(jax.jit, donate_argnums=0, out_shardings=(shardings, None))
  def train_step(state, tokens):
    params, moments = state
    value, grads = jax.value_and_grad(functools.partial(loss, config))(params, tokens)
    updates, moments = optimizer.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), value

  return train_step


def initialized(config: Config, optimizer: Any, shardings: Any, mesh: jax.sharding.Mesh) -> Any:
  """Parameters and moments where they shall lie."""

  def make(path, leaf):
    key = jax.random.key(zlib.crc32(jax.tree_util.keystr(path).encode()))
    return jax.random.normal(key, leaf.shape) / math.sqrt(leaf.shape[-2])

  def make_all():
    params = jax.tree_util.tree_map_with_path(make, abstract_params(config, mesh))
    return params, optimizer.init(params)

  return jax.jit(make_all, out_shardings=shardings)()


def tokens_of(config: Config, step: int, mesh: jax.sharding.Mesh) -> jax.Array:
  """Sequences that count upwards from a start of their own ``[batch, length + 1]``; the same in every run."""
  starts = np.random.default_rng(step).integers(config["vocabulary"], size=(config["batch"], 1))
  counted = (starts + np.arange(config["length"] + 1)) % config["vocabulary"]
  return jax.device_put(counted.astype(np.int32), NamedSharding(mesh, P("fsdp")))


def save(path: pathlib.Path, step: int, state: Any) -> None:
  """Writes the state of a run that has done so many steps."""
  arrays = {f"{i:03d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
  np.savez(path, step=step, **arrays)


def restored(path: pathlib.Path, shardings: Any) -> tuple[int, Any]:
  """The steps that were done, and the state where it shall lie."""
  with np.load(path) as found:
    leaves = [found[name] for name in sorted(found.files) if name != "step"]
    step = int(found["step"])
  placed = [jax.device_put(leaf, place) for leaf, place in zip(leaves, jax.tree.leaves(shardings), strict=True)]
  return step, jax.tree.unflatten(jax.tree.structure(shardings), placed)


def planned(config: Config, optimizer: Any, shapes: Any, shardings: Any) -> Config:
  """The configuration with the policy that holds its budget, as YAML would bring it; written to `out`."""
  import coopjax

  step = make_step(config, optimizer, shardings)
  plan = coopjax.plan(step, *shapes, budget=config["budget"], names_only=True)
  print(plan.headline())
  path = pathlib.Path(config["out"]) / "policy.yml"
  path.write_text(plan.to_maxtext() + "\nbudget:\n")
  print(f"{path}:\n{path.read_text()}")
  return config | yaml.safe_load(path.read_text())


def train(config: Config, step: Callable, optimizer: Any, shardings: Any, mesh: jax.sharding.Mesh, until: int) -> None:
  """From the last checkpoint, or from new parameters, to a number of steps, and a checkpoint."""
  path = pathlib.Path(config["out"]) / "checkpoint.npz"
  if path.exists():
    start, state = restored(path, shardings)
    print(f"resumed after {start} steps")
  else:
    start, state = 0, initialized(config, optimizer, shardings, mesh)
  if start >= until:
    return
  for number in range(start, until):
    state, value = step(state, tokens_of(config, number, mesh))
    print(f"step {number}: loss {float(value):.6f}")
  save(path, until, state)


def main() -> None:
  config = read_config(sys.argv[1:])
  out = pathlib.Path(config["out"])
  out.mkdir(parents=True, exist_ok=True)
  if not config["resume"]:
    (out / "checkpoint.npz").unlink(missing_ok=True)
  jax.config.update("jax_num_cpu_devices", math.prod(config["mesh"].values()))
  mesh = jax.make_mesh(tuple(config["mesh"].values()), tuple(config["mesh"]), (AxisType.Auto,) * len(config["mesh"]))
  jax.set_mesh(mesh)
  optimizer = optax.adamw(config["learning_rate"])
  if config["offload_state"]:
    import coopjax

    optimizer = coopjax.offload_state(optimizer)
  tokens = tokens_of(config, 0, mesh)
  state = abstract_state(config, optimizer, mesh)
  shapes = state, jax.ShapeDtypeStruct(tokens.shape, tokens.dtype, sharding=tokens.sharding)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
  if config["budget"]:
    config = planned(config, optimizer, shapes, shardings)

  step = make_step(config, optimizer, shardings).lower(*shapes).compile()
  temp_bytes = step.memory_analysis().temp_size_in_bytes
  print(f"remat_policy {config['remat_policy']}: {temp_bytes:,} bytes of temporaries on a device")
  for until in (config["steps"] // 2, config["steps"]):
    train(config, step, optimizer, shardings, mesh, until)


if __name__ == "__main__":
  main()
