"""What people read of a plan's decisions: equal layers together, op and line, and the rungs next to the plan."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
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


class Net(nnx.Module):
  def __init__(self):
    self.blocks = nnx.List([nnx.Linear(64, 64, rngs=nnx.Rngs(i)) for i in range(6)])

  def __call__(self, x):
    for block in self.blocks:
      x = jnp.tanh(block(x))
    return x


@pytest.mark.parametrize("engine, planner", [("hlo", "peak"), ("policy", "coop")])
def test_layers_that_open_no_scope_are_told_by_their_parameters(engine, planner):
  net, params = nnx.split(Net())
  loss = lambda params, x: jnp.mean(nnx.merge(net, params)(x) ** 2)
  # A library's own scope without a number tells no layer.
  loss = jax.named_scope("library")(loss)
  plan = coopjax.plan(loss, params, jnp.ones((512, 64)), budget=0.5, engine=engine, planner=planner)
  assert_layers_are_told(plan, "args[0]['blocks'][{}]")
  assert coopjax.RematPlan.from_json(plan.to_json()).decisions == plan.decisions


def test_layers_in_a_step_are_told_by_the_parameters_of_what_is_under_a_checkpoint():
  net, params = nnx.split(Net())
  loss = jax.checkpoint(lambda params, x: jnp.mean(nnx.merge(net, params)(x) ** 2))
  step = jax.jit(lambda params, x: jax.tree.map(jnp.subtract, params, jax.grad(loss)(params, x)))
  plan = coopjax.plan(step, params, jnp.ones((512, 64)), budget=0.7, engine="policy")
  assert_layers_are_told(plan, "params['blocks'][{}]")


def assert_layers_are_told(plan, layer):
  repeated = [each for each in plan.decisions if each.decision == "recomputed" and each.type.endswith("[512,64]")]
  layers = {each.layer for each in repeated}
  assert len(layers) >= 3 and layers <= {layer.format(i) for i in range(6)}
  assert layer.partition("{")[0] in plan.explain()


def test_layers_that_differ_in_one_number_are_told_with_what_stands_behind_it():
  layers = [Decision("a[0]", "f32[8]", "", "", 8, "saved", 0, 0.0, "dot", place) for place in ("net[0].a", "net[1].a")]
  lists = [Decision("a[0]", "f32[8]", "", "", 8, "saved", 0, 0.0, "dot", place) for place in ("x[0:2]", "x[2:4]")]
  assert [decision.grouped(each)[0].where for each in (layers, lists)] == [
    "net[0..1].a x 2 layers",
    "x[0:2]..x[2:4] x 2 layers",
  ]


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
