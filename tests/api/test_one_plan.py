"""One plan on every host: fresh processes under other hash seeds, directories, cores, loads and caches compile the same
module, to the byte.
"""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from tests.support import ROOT

# Two programs: one that the HLO engine plans in the hook, one whose regions the policy engine divides under a mesh of
# two axes, where names of axes are in sets. Effort is cut short in both: that is where a clock would show.
CODE = """
  import hashlib, re, warnings
  import jax
  from jax.sharding import PartitionSpec as P
  import coopjax
  from coopjax.planners import effort
  from tests.support import models
  from tests.support.checks import compile_step

  effort._STEPS_PER_INSTRUCTION = dict.fromkeys(effort._STEPS_PER_INSTRUCTION, 5_000)
  warnings.simplefilter("ignore")
  loss, *args = models.mlp(6, 32, 1024)
  marked = compile_step(coopjax.remat(loss, budget=0.5, engine="hlo"), *args).as_text()
  mesh = jax.make_mesh((2, 2), ("rows", "columns"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  spread = jax.shard_map(
    lambda weights, x: jax.lax.pmean(loss(weights, x), ("rows", "columns")),
    mesh=mesh, in_specs=(P(), P(("rows", "columns"))), out_specs=P(),
  )
  spread = coopjax.remat(spread, budget=0.9, engine="policy", on_infeasible="best_effort")
  divided = compile_step(spread, *args).as_text()
  plan = coopjax.plan(loss, *args, budget=0.6).to_dict()
  plan.pop("planning_s")
  # JAX's compilation cache looks through source lines: the tables of an equal program may stand in another order.
  tables = re.compile(r" stack_frame_id=\\d+|^(FileNames|FunctionNames|FileLocations|StackFrames)\\n(.+\\n)*", re.M)
  for told in (marked, divided):
    print(hashlib.sha256(tables.sub("", told).encode()).hexdigest())
  print(hashlib.sha256(repr(plan).encode()).hexdigest())
"""


def started(home: pathlib.Path, name: str, *, seed: int, cores: str, cache: str) -> subprocess.Popen:
  """A process of its own, in a directory of its own."""
  directory = home / name
  directory.mkdir()
  environment = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "PYTHONHASHSEED": str(seed),
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    "COOPJAX_CACHE_DIR": str(home / cache) if cache else "",
    "JAX_COMPILATION_CACHE_DIR": str(home / f"jax-{cache}") if cache else "",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  script = home / "one_plan.py"  # the same for all: modules name their source files
  script.write_text(textwrap.dedent(CODE))
  return subprocess.Popen(
    ["taskset", "--cpu-list", cores, sys.executable, str(script)],
    cwd=directory,
    env=environment,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  )


def output_of(process: subprocess.Popen) -> str:
  out, err = process.communicate(timeout=600)
  assert process.returncode == 0, err
  return out


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no taskset here")
def test_every_process_compiles_the_same_module(tmp_path):
  cores = sorted(os.sched_getaffinity(0))
  one, all_cores = str(cores[0]), ",".join(map(str, cores))
  alone = output_of(started(tmp_path, "cold", seed=0, cores=all_cores, cache="kept"))
  assert len(alone.split()) == 3
  # Both on one core, in each other's way.
  processes = [
    started(tmp_path, "starved", seed=1, cores=one, cache=""),
    started(tmp_path, "warm", seed=2, cores=one, cache="kept"),
  ]
  assert {output_of(process) for process in processes} == {alone}
