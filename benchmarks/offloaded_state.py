"""Optimizer state on the device and in the host's memory: a device's bytes before and after, and losses over 20 steps.

The step is that of examples/launch_file.py under `remat_policy: full` with AdamW in float32. For a TPU it is compiled
ahead of time at 1.1 billion parameters, on four chips; on the CPU it is small and trains. XLA:CPU counts the host's
memory as the device's, so there the rows show that nothing is lost: bytes that move are those of a TPU.
Writes benchmarks/results/offloaded_state.json.

  python benchmarks/offloaded_state.py                          # needs coopjax[tpu-target]; some minutes
  python benchmarks/offloaded_state.py --targets cpu            # half a minute
"""

import argparse
import os
import pathlib
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import jax
import launch_file
import optax
import tables
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import coopjax

CONFIGS = {
  "cpu": {"layers": 4, "width": 64, "length": 32, "mesh": {"fsdp": 4, "tensor": 2}},
  "tpu:v5e:2x2": {
    "layers": 16,
    "width": 2048,
    "heads": 16,
    "vocabulary": 32_000,
    "length": 1024,
    "batch": 4,
    "mesh": {"fsdp": 4, "tensor": 1},
  },
}
COLUMNS = {
  "target": "{target}",
  "state": "{state}",
  "parameters": "{num_params:,}",
  "arguments": "{argument_mib:,.1f} MiB",
  "temporaries": "{temp_mib:,.1f} MiB",
  "in total": "{total_mib:,.1f} MiB",
  "on the host": "{host_mib:,.1f} MiB",
  "last loss": "{last_loss}",
}
RESULTS = tables.RESULTS / "offloaded_state.json"
MIB = 2**20


def measure(target: str, is_offloaded: bool, num_steps: int) -> tables.Row:
  """One step, compiled; on the CPU it trains, too."""
  config = launch_file.DEFAULTS | CONFIGS[target] | {"offload_state": is_offloaded}
  sizes, names = tuple(config["mesh"].values()), tuple(config["mesh"])
  mesh = coopjax.target(target).mesh(sizes, names, (AxisType.Auto,) * len(names))
  with jax.set_mesh(mesh):
    optimizer = optax.adamw(config["learning_rate"])
    optimizer = coopjax.offload_state(optimizer) if is_offloaded else optimizer
    state = launch_file.abstract_state(config, optimizer, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    shape = config["batch"], config["length"] + 1
    tokens = jax.ShapeDtypeStruct(shape, "int32", sharding=NamedSharding(mesh, P("fsdp")))
    step = launch_file.make_step(config, optimizer, shardings).lower(state, tokens).compile()
    losses = []
    if target == "cpu":
      arrays = launch_file.initialized(config, optimizer, shardings, mesh)
      for number in range(num_steps):
        arrays, value = step(arrays, launch_file.tokens_of(config, number, mesh))
        losses.append(float(value))
  memory = step.memory_analysis()
  total = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
  return {
    "target": target,
    "state": "on the host" if is_offloaded else "on the device",
    "num_params": sum(leaf.size for leaf in jax.tree.leaves(state[0])),
    "argument_mib": memory.argument_size_in_bytes / MIB,
    "temp_mib": memory.temp_size_in_bytes / MIB,
    "total_mib": (total + memory.temp_size_in_bytes) / MIB,
    "host_mib": (memory.host_argument_size_in_bytes + memory.host_temp_size_in_bytes) / MIB,
    "losses": losses,
    "last_loss": f"{losses[-1]:.7f}" if losses else "",
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--targets", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
  parser.add_argument("--steps", type=int, default=20, help="on the CPU (20)")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="the file to write")
  options = parser.parse_args()
  jax.config.update("jax_num_cpu_devices", 8)
  rows = [measure(target, is_offloaded, options.steps) for target in options.targets for is_offloaded in (False, True)]
  tables.console().print(tables.table(rows, COLUMNS))
  for before, after in zip(rows[::2], rows[1::2], strict=True):
    apart = max((abs(a - b) / abs(a) for a, b in zip(before["losses"], after["losses"], strict=True)), default=None)
    if apart is not None:
      print(f"{before['target']}: losses over {options.steps} steps agree to {apart:.1e}")
  tables.write(options.out, rows=rows)
  print(f"written to {options.out}")


if __name__ == "__main__":
  main()
