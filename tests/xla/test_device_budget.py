"""Budgets that a device sets: what fits it, and what it does not have."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.budget import Budget
from coopjax.hlo_engine import hook
from coopjax.planning import request
from coopjax.xla import targets
from coopjax.xla.device_budget import allowed, fitting_bytes
from tests.support import models
from tests.support.checks import assert_same_bits, compile_step, temp_bytes


def test_what_fits_leaves_a_reserve_and_is_a_total():
  cpu, gpu, tpu = map(targets.resolve, ("cpu", "gpu:h100", "tpu:v5e:2x2"))
  assert fitting_bytes(cpu) == int(0.8 * cpu.memory_bytes) and fitting_bytes(tpu) == int(0.97 * tpu.memory_bytes)
  assert 0.65 * gpu.memory_bytes < fitting_bytes(gpu) < 0.75 * gpu.memory_bytes  # of what JAX takes of one
  for budget in ("fits", " FITS ", Budget("fits"), Budget.total("fits")):
    assert allowed(budget, tpu) == Budget.total(fitting_bytes(tpu))
  assert allowed(Budget("fits", offload=True), tpu).offload and str(Budget("fits")) == "what fits the device"


def test_more_than_an_accelerator_has_is_refused():
  for budget in ("16GiB", Budget.total("16GiB"), 10**30):
    with pytest.raises(coopjax.InvalidBudgetError, match=r"15\.75 GiB.*\"fits\".*15\.28 GiB"):
      allowed(budget, targets.resolve("tpu:v5e:2x2"))
    assert allowed(budget, targets.resolve("cpu")).limit_bytes  # of a machine's memory, nobody knows what is to be had
  assert allowed("15GiB", targets.resolve("tpu:v5e:2x2")) == Budget.parse("15GiB")


def test_plans_and_programs_hold_what_fits(monkeypatch):
  loss, weights, x = models.mlp()
  compiled = compile_step(loss, weights, x)
  stats = compiled.memory_analysis()
  resident_bytes = stats.argument_size_in_bytes + stats.output_size_in_bytes
  small = dataclasses.replace(
    targets.resolve("cpu"), memory_bytes=int((resident_bytes + temp_bytes(compiled) // 2) / 0.8) + 2
  )
  monkeypatch.setattr(targets, "running", lambda: small)
  plan = coopjax.plan(loss, weights, x, budget="fits", planner="peak")
  total = plan.measured.temp_bytes + plan.measured.resident_bytes
  assert plan.fits and total <= fitting_bytes(small) < temp_bytes(compiled) + resident_bytes
  monkeypatch.setattr(hook, "_device", lambda platform: small)
  with coopjax.enable("fits", planner="peak"):
    fitted = compile_step(loss, weights, x)
  assert temp_bytes(fitted) <= temp_bytes(compiled) // 2 + 2 and "coop_remat" in fitted.as_text()
  assert_same_bits(fitted(weights, x), compiled(weights, x))


def test_a_request_has_the_bytes():
  asked = request.Request.checked(
    budget="fits", planner="auto", engine="policy", target=None, effort="fast", time_limit_s=None, on_infeasible="error"
  )
  assert asked.budget == Budget.total(fitting_bytes(targets.running()))


@pytest.mark.targets
def test_a_step_on_the_meshs_devices_is_planned_for_them():
  """Without a target's name: its devices tell. A step's drafts are those of its regions as they are, too."""
  mesh = coopjax.target("tpu:v5e:2x2").mesh((2, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
  with pytest.raises(coopjax.CoopjaxError, match="4 devices.*mesh of 8"):
    coopjax.target("tpu:v5e:2x2").mesh((8,), ("data",))
  place = lambda shape, *spec: jax.ShapeDtypeStruct(
    shape, jnp.bfloat16, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
  )

  @jax.checkpoint
  def layer(x, weight):
    return x + jnp.sin(jnp.tanh(x @ weight) @ weight.T)

  def loss(weights, x):
    return jnp.mean(jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)[0].astype(jnp.float32) ** 2)

  @jax.jit
  def step(weights, x):
    value, grads = jax.value_and_grad(loss)(weights, x)
    return weights - 0.1 * grads, value

  plan = coopjax.plan(step, place((8, 512, 512), None, None, "model"), place((2**17, 512), "data"), budget="fits")
  assert plan.target == "tpu:v5e:2x2" and plan.mesh == "data=2,model=2" and plan.fits
  assert plan.measured.temp_bytes + plan.measured.resident_bytes <= fitting_bytes(coopjax.target("tpu:v5e:2x2"))
