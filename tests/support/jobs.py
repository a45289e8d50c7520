"""Jobs of several real processes on this machine, two devices each, that talk over JAX's coordination service."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import textwrap

from tests.support import ROOT

# Before a job's own code: `rank`, `mesh`, `put` for arrays that all hold together, `story` to print at the end.
_PRELUDE = """
  import json, os, sys, warnings
  import jax, jax.numpy as jnp, numpy as np
  from jax.sharding import NamedSharding, PartitionSpec as P

  rank, num_processes, port = map(int, sys.argv[1:4])
  jax.config.update("jax_num_cpu_devices", 2 if num_processes > 1 else 8)
  if num_processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", num_processes, rank)
  import coopjax
  from coopjax.hlo_engine import hook
  from coopjax.planning import function_plan

  warnings.simplefilter("ignore")
  mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  story = {}

  def put(value, spec=P()):
    value = np.asarray(value, np.float32)
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])
"""


def free_port() -> int:
  with contextlib.closing(socket.socket()) as server:
    server.bind(("localhost", 0))
    return server.getsockname()[1]


class Job:
  """Processes that run one script, each with environment variables of its own; they end with the block."""

  def __init__(self, home: pathlib.Path, code: str, environments: list[dict[str, str]], starved: int | None = None):
    script = home / "job.py"
    script.write_text(textwrap.dedent(_PRELUDE) + textwrap.dedent(code) + "print(json.dumps(story))\n")
    port = free_port()
    self.processes = [
      subprocess.Popen(
        [
          "nice",
          "-n",
          "15" if rank == starved else "0",
          sys.executable,
          str(script),
          str(rank),
          str(len(environments)),
          str(port),
        ],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COOPJAX_CACHE_DIR": "", **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
      )
      for rank, environment in enumerate(environments)
    ]

  def stories(self, timeout_s: float) -> list[dict]:
    """What the processes tell, when all have ended well, in bounded time."""
    try:
      outputs = [process.communicate(timeout=timeout_s) for process in self.processes]
    finally:
      for process in self.processes:
        process.kill()
        process.wait()
    for process, (_, err) in zip(self.processes, outputs, strict=True):
      assert process.returncode == 0, "\n".join(err[-4000:] for _, err in outputs)
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]
