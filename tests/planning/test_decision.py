"""What people read of a plan's decisions: equal layers together, op and line, and the rungs next to the plan."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax.planning import decision
from coopjax.planning.decision import Decision


def made(layer, how="recomputed", times=1, num_bytes=1024, cost_s=1e-6, line=7):
  return Decision(
    f"fusion.{layer}[0]",
    "f32[256]",
    f"model.py:{line}",
    f"jit(f)/block_{layer}/mlp/tanh",
    num_bytes,
    how,
    times,
    cost_s,
    "tanh",
  )


def test_layers_that_are_alike_are_one_line():
  groups = decision.grouped([*(made(layer) for layer in range(12)), made(12, "saved"), made(3, line=9)])
  assert [(group.num_values, group.num_bytes, group.where) for group in groups] == [
    (12, 12 * 1024, "block_0..11 x 12 layers"),
    (1, 1024, "block_12"),
    (1, 1024, "block_3"),
  ]
  assert groups[0].cost_s == pytest.approx(12e-6)


def test_the_rungs_are_what_is_worth_most_and_costs_least_a_byte():
  repeated = [made(0, times=2, num_bytes=4096, cost_s=3e-6), made(1, num_bytes=1024, cost_s=2e-6, line=8)]
  kept = [
    made(2, "saved", 0, 2048, 1e-6, line=9),
    made(3, "saved", 0, 2048, 4e-6, line=10),
    made(4, "saved", 0, 8, 0.0),
  ]
  above, below = decision.table([*repeated, *kept], 20)[-2:]
  assert "keeping tanh of block_1 (model.py:8): up to 1.00 KiB more, 2.0 us less" in above  # 2 ns a byte against 1.5
  assert "repeating tanh of block_2 (model.py:9): up to 2.00 KiB less, 1.0 us more" in below
  assert decision.table([], 20) == decision.table(repeated, 0) == []


@pytest.mark.parametrize("engine, planner", [("hlo", "peak"), ("policy", "coop")])
def test_a_plan_names_op_layer_and_line(engine, planner):
  def loss(weights, x):
    for i, weight in enumerate(weights):
      with jax.named_scope(f"block_{i}"):
        x = checkpoint_name(jnp.tanh(x @ weight), "hidden")
    return jnp.mean(x**2)

  plan = coopjax.plan(loss, [jnp.eye(64)] * 8, jnp.ones((512, 64)), budget=0.5, engine=engine, planner=planner)
  (largest, *_) = decision.grouped(each for each in plan.decisions if each.decision == "recomputed")
  assert len(largest.layers) >= 3 and largest.first.op in ("tanh", "dot", "dot_general")
  text = plan.explain(width=80)
  assert max(map(len, text.splitlines())) <= 80 and "test_decision.py:" in text and " layers" in text
  assert engine == "hlo" or "hidden" in {each.value for each in plan.decisions}


def test_names_of_a_step_say_what_is_kept_what_is_not_and_why():
  """Of 8 layers: b spares as much as a, c is made last and never again, d is behind a change of shape."""

  def layer(x, weight):
    a = checkpoint_name(x @ weight, "a")
    b = checkpoint_name(jnp.sin(a) @ weight, "b")
    d = checkpoint_name((jnp.sin(b) @ weight).reshape(-1), "d").reshape(x.shape)
    return x + checkpoint_name(jnp.sin(d) @ weight, "c")

  layer = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names("b"))
  loss = lambda weights, x: jnp.mean(jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0] ** 2)
  arguments = jnp.stack([jnp.eye(64)] * 8), jnp.ones((512, 64))  # 128 KiB a value, 1 MiB of all layers
  keywords = {"engine": "policy", "names_only": True}
  with pytest.warns(coopjax.BudgetExceededWarning):
    least = coopjax.plan(jax.jit(jax.grad(loss)), *arguments, budget=0.01, on_infeasible="best_effort", **keywords)
  (region,) = least.regions
  assert region.names.recomputed == ("a", "b", "d", "c") and {"c"}.isdisjoint(each.value for each in least.decisions)
  plan = coopjax.plan(
    jax.jit(jax.grad(loss)), *arguments, budget=least.measured.temp_bytes + 2**20 + 200_000, **keywords
  )
  (kept,) = plan.regions[0].names.saved
  told = {each.value: each for each in plan.decisions if each.name}
  assert sorted(told) == ["a", "b", "d"] and {each.num_bytes for each in told.values()} == {2**20}
  assert [name for name in told if told[name].decision == "saved"] == [kept] and told[kept].op in (
    "dot_general",
    "reshape",
  )
  assert all("dot_general" in told[name].op for name in "ab")
  text = plan.explain(width=60)
  repeated = ", ".join(each.name for each in plan.decisions if each.name and each.name != kept)
  unused = (plan.budget_bytes - plan.measured.temp_bytes) / 1024
  words = " ".join(text.split())
  assert f"not saved by name: {repeated}: to keep" in words and f"takes 1.00 MiB, and {unused:.2f} KiB" in words
  assert "the rung below" in text and f"repeating {kept} of layer" in words
