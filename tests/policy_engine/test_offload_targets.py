"""Host offload on hardware that need not be there: where the bytes lie in what XLA compiles for a GPU and a TPU."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax.budget import Budget
from coopjax.jaxpr import user_policy
from coopjax.jaxpr.trace import fn_and_gradient, trace
from coopjax.planning import host_offload
from coopjax.policy_engine import rewrite
from coopjax.xla import targets
from coopjax.xla.compile import compile_abstract, measure

pytestmark = pytest.mark.targets

DEPTH = 8
GPU, TPU = "gpu:h100", "tpu:v5e:2x2"
# A layer's input: larger than the vector memory of a TPU, in which XLA keeps smaller ones.
SHAPES = {GPU: (4096, 256), TPU: (131072, 256)}


def layer(x, weight):
  return x + jnp.tanh(checkpoint_name(x @ weight, "product"))


def unrolled(weights, x):
  for weight in weights:
    x = layer(x, weight)
  return jnp.mean(x**2)


def scanned(weights, x):
  x, _ = jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)
  return jnp.mean(x**2)


def arguments(fn, target):
  rows, width = SHAPES[target]
  shape = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)
  depth = 2 if (fn, target) == (unrolled, TPU) else DEPTH  # which compiles for long
  weights = shape(depth, width, width) if fn is scanned else [shape(width, width)] * depth
  return weights, shape(rows, width)


def compiled(fn, plan, target):
  traced = trace(fn, arguments(fn, target))
  return compile_abstract(*fn_and_gradient(traced, rewrite.rewrite(traced, plan.policy)), targets.resolve(target))


@pytest.mark.parametrize("target", [GPU, TPU])
def test_offload_reaches_budgets_that_recompute_does_not(target):
  args, share = arguments(scanned, target), 0.35
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(scanned, *args, budget=share, engine="policy", target=target)
  plan = coopjax.plan(scanned, *args, budget=Budget(share, offload=True), target=target)
  assert plan.budget_bytes < caught.value.smallest_bytes
  check_offloaded(scanned, plan, target)


def test_offload_is_chosen_where_it_costs_less_than_recompute(monkeypatch):
  # Checkpoints around checkpoints go as low, and an H100 repeats these layers faster than they move; were the link
  # free:
  args, budget = arguments(unrolled, GPU), Budget(0.4, offload=True)
  slow = coopjax.plan(unrolled, *args, budget=budget, target=GPU)
  assert slow.fits and not any(decision.decision == "offloaded" for decision in slow.decisions)
  link = host_offload.link
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  monkeypatch.setattr(host_offload, "link", lambda *of: dataclasses.replace(link(*of), bytes_per_s=1e15, start_s=0.0))
  plan = coopjax.plan(unrolled, *args, budget=budget, target=GPU)
  assert plan.recompute_flops < 0.7 * slow.recompute_flops
  check_offloaded(unrolled, plan, GPU)


def check_offloaded(fn, plan, target):
  """What a plan that offloads says, and what is compiled of it."""
  assert plan.fits and plan.engine == "policy" and plan.measured.temp_bytes <= plan.budget_bytes
  # What is offloaded lies on the host, but for values that no derivative reads after all: XLA drops their copies.
  offloaded = [decision for decision in plan.decisions if decision.decision == "offloaded"]
  planned_bytes, host_bytes = sum(decision.num_bytes for decision in offloaded), plan.measured.host_bytes
  assert host_bytes == planned_bytes if fn is scanned else 0 < host_bytes <= planned_bytes
  assert "offloaded" in plan.explain() and "in the host's memory" in plan.explain()
  again = coopjax.RematPlan.from_json(plan.to_json())
  assert (again.budget, again.policy, again.decisions) == (plan.budget, plan.policy, plan.decisions)

  text = (program := compiled(fn, plan, target)).as_text()
  assert measure(program).temp_bytes == plan.measured.temp_bytes
  copies = r"copy" if fn is unrolled else r"dynamic-(?:update-)?slice"
  starts = re.findall(rf"%({copies}-start[.\d]*) = .*S\(5\)", text)
  ends = re.findall(rf"{copies}-done[.\d]* = .*\(%({copies}-start[.\d]*)\)", text)
  num_copies = host_bytes // offloaded[0].num_bytes  # out and back
  assert len(starts) == 2 * num_copies and set(starts) <= set(ends)
  assert "checkpoint" in text and "rematted_computation" in text

  if target == GPU:
    shapes = arguments(fn, target)
    weights, x = jax.tree.map(lambda shape: 0.05 * jax.random.normal(jax.random.key(0), shape.shape), shapes)
    actual, expected = jax.jit(jax.grad(plan.apply(fn)))(weights, x), jax.jit(jax.grad(fn))(weights, x)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("target", [GPU, TPU])
def test_nothing_is_offloaded_where_saving_on_the_device_fits(target):
  # A product takes 2 * 256 FLOPs for 4 bytes: a hundredth of what the device computes while these are transferred.
  plan = coopjax.plan(scanned, *arguments(scanned, target), budget=Budget(0.85, offload=True), target=target)
  assert plan.fits and plan.measured.host_bytes == 0
  assert {decision.decision for decision in plan.decisions} <= {"saved", "recomputed"}


def test_straight_line_code_on_a_tpu_is_planned_without():
  args = arguments(unrolled, TPU)
  plan = coopjax.plan(unrolled, *args, budget=Budget(0.8, offload=True), target=TPU)
  assert plan.measured.host_bytes == 0 and "offloaded" not in plan.explain()


@pytest.mark.parametrize("target", [GPU, TPU])
def test_what_the_users_policy_offloads_lies_on_the_host(target):
  policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["product"],
    offload_src="device",
    offload_dst="pinned_host",
  )
  args = arguments(scanned, target)
  rows, width = SHAPES[target]
  with pytest.raises(coopjax.HostOffloadError, match="policy of scanned offloads"):
    jax.eval_shape(coopjax.remat(scanned, budget=0.8, policy=policy, target=target, engine="hlo"), *args)
  fn = jax.grad(coopjax.remat(scanned, budget=0.8, policy=policy, target=target))
  profile = measure(compile_abstract(fn, args, targets.resolve(target)))
  assert profile.host_bytes == DEPTH * rows * width * 4


@pytest.mark.parametrize("target", [GPU, TPU])
def test_bytes_of_what_people_offload_are_held(target):
  policy = user_policy.over_names((), ("product",))
  args, device = arguments(scanned, target), targets.resolve(target)

  def by_hand(weights, x):
    wrapped = jax.checkpoint(layer, policy=policy, prevent_cse=False)
    return jnp.mean(jax.lax.scan(lambda x, weight: (wrapped(x, weight), None), x, weights)[0] ** 2)

  hand = measure(compile_abstract(*fn_and_gradient(trace(by_hand, args)), device))
  assert hand.host_bytes
  plan = coopjax.plan(scanned, *args, budget=Budget(hand.temp_bytes, offload=True), target=target)
  assert plan.fits and plan.measured.temp_bytes <= hand.temp_bytes


def named_step(policy=None):
  """A step with its layers under a checkpoint in a loop, as launch files have them."""

  def named_layer(x, weight):
    return layer(checkpoint_name(x, "carry"), weight)

  checkpointed = jax.checkpoint(named_layer, policy=policy, prevent_cse=False)

  def loss(weights, x):
    x, _ = jax.lax.scan(lambda x, weight: (checkpointed(x, weight), None), x, weights)
    return jnp.mean(x**2)

  return jax.jit(lambda weights, x: weights - 1e-3 * jax.grad(loss)(weights, x))


@pytest.mark.parametrize("target", [GPU, TPU])
def test_no_more_goes_to_the_host_than_it_may(target):
  rows, width = SHAPES[target]
  carries = DEPTH * rows * width * 4
  for fn in (scanned, named_step()):
    args = arguments(scanned, target)
    plan = coopjax.plan(fn, *args, budget=Budget(0.35, offload=carries), target=target)
    assert plan.fits and plan.measured.host_bytes == carries
    with pytest.raises(coopjax.BudgetInfeasibleError, match="with host offload of at most") as caught:
      coopjax.plan(fn, *args, budget=Budget(0.35, offload=carries - 1), target=target)
    again = coopjax.plan(fn, *args, budget=Budget(caught.value.smallest_bytes, offload=carries - 1), target=target)
    assert again.fits and again.measured.host_bytes < carries
    with pytest.warns(coopjax.BudgetExceededWarning):
      asked = {"on_infeasible": "best_effort", "target": target}
      best = coopjax.plan(fn, *args, budget=Budget(0.35, offload=carries - 1), **asked)
    assert best.measured.host_bytes < carries and not best.fits


@pytest.mark.parametrize("names_only", [False, True])
@pytest.mark.parametrize("target", [GPU, TPU])
def test_a_steps_layers_offload_what_their_loop_carries(target, names_only):
  args, share = arguments(scanned, target), 0.35
  asked = {"names_only": names_only, "target": target}
  plan = coopjax.plan(named_step(), *args, budget=Budget(share, offload=True), **asked)
  rows, width = SHAPES[target]
  assert plan.fits and plan.measured.host_bytes == DEPTH * rows * width * 4
  (names,) = plan.names
  assert names.offloaded == ("carry",) and not names.beyond
  # Pasted into the step, the policy is the plan.
  pasted = named_step(plan.checkpoint_policy())
  profile = measure(compile_abstract(pasted, args, targets.resolve(target)))
  assert (profile.host_bytes, profile.temp_bytes) == (plan.measured.host_bytes, plan.measured.temp_bytes)
  with pytest.raises(coopjax.BudgetInfeasibleError):
    coopjax.plan(named_step(), *args, budget=share, engine="policy", target=target)
