"""Speeds that were measured: a profile, the target with its figures in its name, and plans that are made by them."""

import dataclasses
import json

import jax.numpy as jnp
import pytest

import coopjax
from coopjax.hlo_engine.mark import Mark
from coopjax.planning.request import Request
from coopjax.xla import targets

PROFILE = coopjax.SpeedProfile("cpu", 1e11, 2e9, 1.5e10, 2e-6, 1e10, 1.25e10)


def test_a_device_is_timed():
  profile = coopjax.calibrate(repeats=1)
  assert profile.device == "cpu" and "jax" in profile.versions
  assert 1e8 < profile.transcendentals_per_s < profile.flops_per_s < 1e14
  assert 1e8 < profile.bytes_per_s < 1e13 and 1e7 < profile.host_bytes_per_s < 1e13
  assert 0 <= profile.op_overhead_s < 1e-2
  with pytest.raises(ValueError, match="repeats=0"):
    coopjax.calibrate(repeats=0)


def test_a_profile_survives_its_file(tmp_path):
  PROFILE.save(tmp_path / "speeds.json")
  assert coopjax.SpeedProfile.load(tmp_path / "speeds.json") == PROFILE
  target = targets.resolve(str(tmp_path / "speeds.json"))
  assert target.roofline == PROFILE.roofline and target.host_bytes_per_s == 1.25e10
  (tmp_path / "speeds.json").unlink()
  assert targets.resolve(target.name) == target  # in another process, where there is no file
  assert target.devices == targets.resolve("cpu").devices and target.is_running


def test_a_profile_is_of_a_kind_of_device(tmp_path):
  dataclasses.replace(PROFILE, device="tpu:v5e:1x4").save(tmp_path / "speeds.json")
  target = targets.resolve(f"tpu:v5e:4x4@{tmp_path}/speeds.json")
  assert target.num_devices == 16 and target.flops_per_s == 1e11 and target.name.startswith("tpu:v5e:4x4@")
  with pytest.raises(coopjax.UnknownTargetError, match="tpu:v5e:1x4, not tpu:v5p"):
    targets.resolve(f"tpu:v5p:2x2x1@{tmp_path}/speeds.json")


@pytest.mark.parametrize(
  "text", ["{}", "no JSON", json.dumps({"coopjax_speeds": 2}), json.dumps({"coopjax_speeds": 1})]
)
def test_what_is_no_profile_is_refused(tmp_path, text):
  (tmp_path / "speeds.json").write_text(text)
  with pytest.raises(coopjax.UnknownTargetError, match=r"speeds\.json"):
    targets.resolve(str(tmp_path / "speeds.json"))


@pytest.mark.parametrize("name", ["cpu@1,2,3", "cpu@1,2,3,4,5,x", "cpu@-1,2,3,4,5,6", "cpu@missing.json"])
def test_figures_that_are_none_are_refused(name):
  with pytest.raises(coopjax.UnknownTargetError):
    targets.resolve(name)


def request(target):
  return Request.checked(
    budget=0.5,
    planner="peak",
    engine="hlo",
    target=target,
    effort="fast",
    time_limit_s=None,
    on_infeasible="error",
  )


def test_the_profile_is_a_part_of_the_request_and_of_the_mark():
  plain, measured = request("cpu"), request(PROFILE.target)
  assert plain != measured and plain.mark("f") != measured.mark("f") and repr(plain) != repr(measured)
  assert Mark.from_text(measured.mark("f")).target == PROFILE.target


def test_plans_are_made_by_it():
  def loss(weights, x):
    for weight in weights:
      x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)

  args = [jnp.eye(32)] * 6, jnp.ones((128, 32))
  slow = dataclasses.replace(PROFILE, flops_per_s=1e6)
  plans = [
    coopjax.plan(loss, *args, budget=0.6, planner="peak", engine="hlo", target=each.target) for each in (PROFILE, slow)
  ]
  assert plans[0].target == PROFILE.target and all(plan.fits for plan in plans)
  assert plans[1].measured.modelled_s > 1000 * plans[0].measured.modelled_s
  assert coopjax.RematPlan.from_json(plans[0].to_json()).target == PROFILE.target
