"""Budgets on meshes of 8 virtual devices; `mesh_budgets.py` and others in tests/support hold the cases."""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT, sweeps

GROUPS = {
  "each kind": (
    "hlo_engine data",
    "inside_shard_map",
    "collectives_run_once",
    "infeasible_over_auto_axes",
    "keys",
    "plans_of_steps_elsewhere",
  ),
  "in_place": ("hlo_engine tensor", "hlo_engine fsdp", "hlo_engine data and tensor"),
  "plans": ("plans_of_shapes", "plans_of_steps", "plans_of_other_meshes"),
  "scans": ("scan_over_auto_axes", "shares_of_steps", "scan_over_explicit_axes"),
}


@pytest.mark.parametrize("group", sweeps.all_but(["each kind"], GROUPS))
def test_each_device_holds_the_budget(group):
  run("mesh_budgets", *GROUPS[group])


@pytest.mark.parametrize("case", ["named_values_of_layers_in_a_loop", "unrolled_layers"])
def test_at_the_bytes_of_what_people_write_no_more_is_repeated(case):
  run("mesh_rungs", case)


@pytest.mark.sweep
@pytest.mark.parametrize("cases", [("products", "loops"), ("regions", "groups")], ids="-".join)
def test_what_a_shard_map_does_inside_is_planned(cases):
  run("mesh_shards", *cases)


def run(module, *cases):
  environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [sys.executable, "-W", "error", "-m", f"tests.support.{module}", *cases],
    env=environment,
    text=True,
    capture_output=True,
    cwd=ROOT,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
