"""One plan on two hosts: two processes of one job train one model under a budget, and hold the same plan.

On a cluster every host starts the same script and `jax.distributed.initialize()` finds the others. Here the second
process is started by the first one, both on this machine's CPU, with two devices each.

  python examples/two_hosts.py [--budget 0.6] [--steps 3]

Each process prints its module's digest and its losses: they are the same. See docs/many_hosts.md.
"""

import argparse
import hashlib
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import coopjax

NUM_PROCESSES, DEVICES_EACH = 2, 2
DEPTH, WIDTH, BATCH = 8, 64, 1024


def loss(weights, x):
  for weight in weights:
    x = x + jnp.tanh(x @ weight)
  return jnp.mean((x - 1.0) ** 2)


def join(rank: int, port: int) -> None:
  """What a cluster does for itself; collectives over sockets."""
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", DEVICES_EACH)
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(f"localhost:{port}", NUM_PROCESSES, rank)


def train(rank: int, budget: float, steps: int) -> None:
  mesh = jax.make_mesh((NUM_PROCESSES * DEVICES_EACH,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

  def everywhere(value, spec=PartitionSpec()):
    value = np.asarray(value, np.float32)
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])

  rng = np.random.default_rng(0)
  weights = [everywhere(0.1 * rng.normal(size=(WIDTH, WIDTH))) for _ in range(DEPTH)]
  x = everywhere(rng.normal(size=(BATCH, WIDTH)), PartitionSpec("data"))
  fitted = coopjax.remat(loss, budget=budget)

  @jax.jit
  def step(weights, x):
    value, grads = jax.value_and_grad(fitted)(weights, x)
    return value, [weight - 0.1 * grad for weight, grad in zip(weights, grads)]

  step = step.lower(weights, x).compile()  # one process plans here, the other one follows
  lines = (line.strip().partition(", metadata=")[0] for line in step.as_text().splitlines())
  module = "\n".join(line for line in lines if line.startswith(("%", "ROOT ")))  # not the paths of source files
  digest, num_recomputed = hashlib.sha256(module.encode()).hexdigest()[:16], module.count("coop_remat")
  temp_bytes = step.memory_analysis().temp_size_in_bytes
  losses = []
  for _ in range(steps):
    value, weights = step(weights, x)  # before the first run, both make sure that they hold the same
    losses.append(float(value))
  told = f"process {rank}: module {digest}, {temp_bytes:,} bytes, {num_recomputed} clones, losses {losses}\n"
  print(told, end="", flush=True)  # in one piece: the other process prints at the same time


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--budget", type=float, default=0.6, help="share of the temporaries without remat")
  parser.add_argument("--steps", type=int, default=3)
  parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
  parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  other = None
  if args.port is None:
    with socket.socket() as server:
      server.bind(("localhost", 0))
      args.port = server.getsockname()[1]
    other = subprocess.Popen([sys.executable, *sys.argv, "--rank", "1", "--port", str(args.port)])
  try:
    join(args.rank, args.port)
    train(args.rank, args.budget, args.steps)
  except BaseException:
    if other is not None:
      other.kill()
    raise
  jax.distributed.shutdown()  # waits for the other process
  if other is not None and other.wait(timeout=60):
    raise SystemExit(other.returncode)


if __name__ == "__main__":
  main()
