"""What fits: the largest batch, and the fastest."""

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.budget import format_bytes
from tests.support.checks import temp_bytes

WEIGHTS = [jax.ShapeDtypeStruct((64, 64), "float32")] * 6
BUDGET = 600 * 1024


def loss(weights, x):
  for weight in weights:
    x = jnp.tanh(x @ weight)
  return jnp.mean(x**2)


def step(weights, x):
  """Gradients accumulated over the microbatches, if there are any."""

  def turn(total, part):
    return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, part)), None

  if x.ndim == 2:
    return jax.grad(loss)(weights, x)
  return jax.lax.scan(turn, jax.tree.map(jnp.zeros_like, weights), x)[0]


def arguments(batch, microbatches=1):
  shape = (microbatches, batch // microbatches) if microbatches > 1 else (batch,)
  return WEIGHTS, jax.ShapeDtypeStruct((*shape, 64), "float32")


def fit(fn=loss, **options):
  return coopjax.fit(fn, arguments, **{"budget": BUDGET, "effort": "fast", **options})


def test_batches_are_doubled_and_the_largest_is_found_to_an_eighth():
  found = fit(unit=128, engine="hlo")
  held = {point.batch: point.plan is not None for point in found.points}
  assert found.largest is not None and list(held)[:3] == [128, 256, 512]
  largest = found.largest.batch
  assert all(is_held == (batch <= largest) for batch, is_held in held.items())
  assert min(batch for batch, is_held in held.items() if not is_held) - largest <= max(128, largest // 8)
  assert all(batch % 128 == 0 for batch in held)
  plan = found.largest.plan
  assert plan.measured.temp_bytes <= BUDGET < plan.baseline.temp_bytes  # it recomputes
  fitted = jax.jit(jax.value_and_grad(plan.apply(loss), (0, 1))).lower(*arguments(largest)).compile()
  assert temp_bytes(fitted) == plan.measured.temp_bytes and "coop_remat" in fitted.as_text()
  lost = next(point for point in found.points if point.plan is None)
  assert "of temporaries" in lost.reason and lost.examples_per_s is None


def test_the_fastest_is_that_with_the_most_examples_a_second():
  found = fit(batches=[256, 512])
  rates = {point.batch: point.examples_per_s for point in found.points}
  assert found.fastest.examples_per_s == max(rates.values()) and found.largest.batch == 512
  assert rates[256] == pytest.approx(256 / found.points[0].plan.measured.modelled_s)
  table = found.table()
  assert "loss: what fits" in table and "largest: a batch of 512" in table
  fields = found.to_dict()
  assert fields["largest"] == [512, 1] and [point["fits"] for point in fields["points"]] == [True, True]


def test_microbatches_are_another_way_to_fit():
  found = fit(jax.jit(step), batches=[1024], microbatches=[1, 2, 3, 4], budget="1MiB", engine="hlo")
  fits = {point.microbatches: point.plan is not None for point in found.points}
  assert fits.keys() == {1, 2, 4} and fits[4]  # 3 do not divide 1,024
  assert found.largest.microbatches in fits and "microbatches" in found.table()


def test_nothing_fits_and_what_is_no_batch():
  found = fit(batches=[1024], budget="8 KiB")
  assert found.largest is None is found.fastest and "largest: none" in found.table()
  for wrong in ({"batches": [0]}, {"unit": 0}, {"microbatches": [0]}):
    with pytest.raises(ValueError, match="counted from 1"):
      fit(**wrong)
  with pytest.raises(ValueError, match="are those for"):
    coopjax.fit(loss, lambda batch: arguments(64), batches=[64, 128], budget=BUDGET)
  with pytest.raises(coopjax.InvalidBudgetError):
    fit(budget=-1, batches=[64])
  with pytest.raises(ValueError, match=r"batches=\[1000, 512\]: none of microbatches=\[3, 7\] divides them"):
    fit(step, batches=[1000, 512, 999], microbatches=[3, 7])
  with pytest.raises(ValueError, match="at least one number"):
    fit(microbatches=[])


@pytest.mark.sweep
def test_batches_are_such_as_some_number_of_microbatches_divides():
  found = fit(step, unit=64, microbatches=[3, 6], budget="170 KiB", engine="hlo")
  tried = [(point.batch, point.microbatches) for point in found.points]
  assert tried[:3] == [(192, 3), (192, 6), (384, 3)] and found.largest is not None


def test_a_total_is_told_in_totals_at_every_width():
  budget = coopjax.Budget.total("1 MiB")
  found = fit(batches=[256, 4096], budget=budget, engine="hlo")
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(loss, *arguments(4096), budget=budget, engine="hlo", effort="fast")
  resident_bytes = 6 * 64 * 64 * 4 + 4096 * 64 * 4  # at least
  assert caught.value.smallest_bytes > resident_bytes > 2**20 == caught.value.budget_bytes
  reason = f"needs {format_bytes(caught.value.smallest_bytes)} in total"
  assert [point.reason for point in found.points] == ["", reason]
  for width in (0, 50):
    lines = found.table(width).splitlines()
    assert lines[0] == "loss: what fits in 1.00 MiB in total" and f"a batch of 4,096: {reason}" in lines
    assert [line.split()[0] for line in lines[3:-3]] == ["256"]  # no row without its reason
  assert found.to_dict()["budget"]["is_total"] and "600.00 KiB of temporaries" in fit(batches=[]).table()


@pytest.mark.targets
def test_for_a_tpu_batches_are_drafted_and_the_best_compiled():
  def scanned(weights, x):
    layer = lambda x, weight: (x + jnp.sin(jnp.tanh(x @ weight) @ weight.T), None)
    return jnp.mean(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2)

  weights = jax.ShapeDtypeStruct((8, 512, 512), jnp.bfloat16)
  inputs = lambda batch: (weights, jax.ShapeDtypeStruct((batch, 512), jnp.bfloat16))
  batches, target = [2**15, 2**16, 2**17], "tpu:v5e:2x2"
  found = coopjax.fit(scanned, inputs, batches=batches, budget="1 GiB", engine="policy", target=target)
  small, middle, large = found.points
  assert large.plan is None and found.largest is middle and not middle.is_drafted
  assert found.fastest in (small, middle) and small.is_drafted == (found.fastest is middle)
  assert middle.plan.measured.temp_bytes <= 2**30 < middle.plan.baseline.temp_bytes and middle.plan.recompute_flops > 0
  planned = coopjax.plan(scanned, *inputs(2**16), budget="1 GiB", engine="policy", target=target)
  assert planned.measured.temp_bytes == middle.plan.measured.temp_bytes and planned.policy == middle.plan.policy
