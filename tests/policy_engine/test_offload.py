"""Host offload: budgets that ask for it, and derivatives on the CPU, which copies within its own memory."""

import dataclasses
import functools
import json
import math
import re

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax import compat
from coopjax.budget import Budget
from coopjax.jaxpr import user_policy
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import trace
from coopjax.policy_engine import by_hand, rewrite
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.description import describe
from coopjax.policy_engine.offload import HostLink
from coopjax.program.cost import Roofline
from tests.support import checks
from tests.support.models import normal

# The budget.


def test_a_budget_says_that_it_offloads():
  for budget in (
    Budget("6GiB", offload=True),
    Budget.parse("6GiB", offload=True),
    Budget(6 * 2**30, offload=True),
    Budget.parse(Budget("6GiB"), offload=True),
  ):
    assert budget == Budget(limit_bytes=6 * 2**30, offload=True) and str(budget) == "6.00 GiB with host offload"
    assert Budget.parse(budget) is budget and hash(budget) != hash(Budget("6GiB"))
  assert Budget(0.5, offload=True) == Budget(share=0.5, offload=True)
  assert str(Budget.total("1GiB", offload=True)) == "1.00 GiB in total with host offload"
  assert Budget(**json.loads(json.dumps(dataclasses.asdict(Budget(0.5, offload=True))))) == Budget(0.5, offload=True)
  with pytest.raises(coopjax.InvalidBudgetError, match="12 bananas"):
    Budget("12 bananas", offload=True)


def test_a_budget_says_how_much_may_go_to_the_host():
  budget = Budget("6GiB", offload="40GiB")
  assert budget == Budget("6GiB", offload=40 * 2**30) == Budget.parse("6GiB", offload=np.int64(40 * 2**30))
  assert str(budget) == "6.00 GiB with host offload of at most 40.00 GiB" and budget.host_bytes == 40 * 2**30
  assert Budget.parse(budget, offload=True) == budget and budget != Budget("6GiB", offload=True)
  assert Budget.total("6GiB", offload="1 GB").host_bytes == 10**9
  assert Budget("6GiB", offload=True).host_bytes == Budget("6GiB").host_bytes == float("inf")
  assert Budget(**json.loads(json.dumps(dataclasses.asdict(budget)))) == budget
  for wrong in ("40%", 0, 1, -5, 0.5, "12 bananas", None):
    with pytest.raises(coopjax.InvalidBudgetError, match=re.escape(f"offload={wrong!r}: True, False, or the most")):
      Budget("6GiB", offload=wrong)


def mlp(weights, x):
  for weight in weights:
    x = x + jnp.tanh(x @ weight)
  return jnp.mean(x**2)


def scanned_mlp(weights, x):
  x, _ = jax.lax.scan(lambda x, weight: (x + jnp.tanh(x @ weight), None), x, weights)
  return jnp.mean(x**2)


def test_a_cpu_has_nowhere_to_offload_to():
  budget, args = Budget(0.5, offload=True), ([normal(i, 64, 64) for i in range(8)], normal(9, 512, 64))
  for engine, match in (("policy", "nowhere to offload"), ("hlo", "knows nothing of the host")):
    with pytest.raises(coopjax.HostOffloadError, match=match):
      coopjax.remat(mlp, budget=budget, engine=engine)
  with pytest.warns(coopjax.HostOffloadWarning, match="planned without host offload"):
    plan = coopjax.plan(mlp, *args, budget=budget)
  assert plan.fits and plan.budget == Budget(0.5) and plan.measured.host_bytes == 0
  with pytest.raises(coopjax.HostOffloadError, match="block"):
    coopjax.nnx.remat(mlp, budget=budget)


# Derivatives. A CPU carries copies to the host out as copies in its own memory.

STRAIGHT = PolicyDecisions(
  (
    Region(
      None,
      (
        Segment(0, 3, True, (), ((0, 0),)),  # a product made inside
        Segment(3, 6, True, ((3, 0),), ((2, 0),)),  # one product saved, the input offloaded
        Segment(6, 9, True, (), ((5, 0), (6, 0), (7, 0))),  # input, product, tanh
        Segment(9, 15, False),
      ),
    ),
  )
)


def straight(x, *weights):
  return mlp(weights, x)


def arguments(depth=4, width=8, batch=16):
  return normal(99, batch, width), *(5 * normal(i, width, width) for i in range(depth))


def decided(fn, decisions, args):
  traced = trace(fn, args)
  return lambda *args: traced.call(jax.tree.leaves((args, {})), rewrite.rewrite(traced, decisions))


def scan_decisions(fn, args, *, offloaded, saved=()):
  traced = trace(fn, args)
  _jaxpr, table = tag_jaxpr(traced.inlined)
  (info,) = [info for info in table if info.primitive == "scan"]
  (body,) = compat.sub_jaxprs(info.equation)
  carry = body.invars.index(compat.scan_carries(info.equation)[0])
  values = tuple((-1, carry) if value == "carry" else value for value in offloaded)
  return PolicyDecisions((Region(info.id, (Segment(0, len(body.eqns), True, saved, values),)),))


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.sweep)], ids=["classic", "remat3"])
def remat3(request):
  with jax.enable_checks(False):
    previous = jax.config.jax_remat3
    jax.config.update("jax_remat3", request.param)
    yield request.param
    jax.config.update("jax_remat3", previous)


assert_close = functools.partial(checks.assert_close, rtol=1e-4, atol=1e-6)

TRANSFORMS = {
  "grad": lambda fn: jax.grad(fn, argnums=(0, 1, 2)),
  "jvp": lambda fn: lambda *args: jax.jvp(fn, args, args),
  "hessian": lambda fn: jax.hessian(lambda x, *weights: fn(0.1 * x, *weights)),
  "vmap of grad": lambda fn: (
    lambda x, *weights: jax.vmap(jax.grad(fn), (0, *[None] * len(weights)))(jnp.stack([x, 2 * x]), *weights)
  ),
  "linearize": lambda fn: lambda *args: jax.linearize(fn, *args)[1](*args),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_of_straight_line_code(transform, remat3):
  args = arguments(batch=2) if transform == "hessian" else arguments()
  fn = decided(straight, STRAIGHT, args)
  if transform != "hessian":
    assert "offloaded" in {value.decision for value in describe(trace(straight, args), STRAIGHT)}
  assert_close(jax.jit(TRANSFORMS[transform](fn))(*args), jax.jit(TRANSFORMS[transform](straight))(*args))


def scanned(x, weights):
  return scanned_mlp(weights, x)


def scan_arguments(batch=16):
  x, *weights = arguments(batch=batch)
  return x, jnp.stack(weights)


SCAN_TRANSFORMS = {**TRANSFORMS, "grad": lambda fn: jax.grad(fn, argnums=(0, 1))}


@pytest.mark.parametrize("transform", SCAN_TRANSFORMS)
def test_derivatives_of_a_scan(transform, remat3):
  args = scan_arguments(batch=2 if transform == "hessian" else 16)
  fn = decided(scanned, scan_decisions(scanned, args, offloaded=("carry", (0, 0))), args)
  transform = SCAN_TRANSFORMS[transform]
  assert_close(jax.jit(transform(fn))(*args), jax.jit(transform(scanned))(*args))


@pytest.mark.parametrize("offloaded", [("carry",), ((0, 0),), ((0, 0), "carry")], ids=str)
def test_what_a_scan_offloads_is_read_back_and_not_repeated(offloaded):
  args = scan_arguments()
  fn = decided(scanned, scan_decisions(scanned, args, offloaded=offloaded), args)
  actual, expected = (jax.grad(each, argnums=(0, 1)) for each in (fn, scanned))
  assert_close(jax.jit(actual)(*args), jax.jit(expected)(*args))
  rewritten, plain = (jax.make_jaxpr(each)(*args) for each in (actual, expected))
  copies = sorted(str(equation.params["devices"][0]) for equation in device_puts(rewritten))
  assert copies == len(offloaded) * ["MemorySpace.Device"] + len(offloaded) * ["MemorySpace.Host"]
  num_repeated = str(rewritten).count("dot_general[") - str(plain).count("dot_general[")
  assert num_repeated == (0 if (0, 0) in offloaded else 1)


def device_puts(jaxpr):
  found = []
  for equation in jaxpr.eqns:
    found += [equation] if equation.primitive.name == "device_put" else []
    for inner in compat.sub_jaxprs(equation):
      found += device_puts(inner)
  return found


@pytest.mark.parametrize("fn", [straight, scanned])
def test_offloaded_code_works_outside_of_jit(fn):
  args = scan_arguments() if fn is scanned else arguments()
  decisions = scan_decisions(scanned, args, offloaded=("carry", (0, 0))) if fn is scanned else STRAIGHT
  assert_close(jax.grad(decided(fn, decisions, args))(*args), jax.grad(fn)(*args))


def test_segments_with_side_effects_do_not_offload():
  def fn(x, *weights):
    for weight in weights:
      jax.debug.print("here {}", x.shape[0])
      x = jnp.tanh(x @ weight)
    return x.sum()

  traced = trace(fn, arguments(depth=6))
  roofline = Roofline(flops_per_s=1.0, transcendentals_per_s=1.0, bytes_per_s=1e30, op_overhead_s=0.0)
  space = Candidates(traced, False, link=HostLink(1e9, 0.0, roofline))
  assert any(
    segment.is_wrapped
    for candidate in space.found
    for region in candidate.decisions.regions
    for segment in region.segments
  )
  assert not any(
    segment.offloaded
    for candidate in space.found
    for region in candidate.decisions.regions
    for segment in region.segments
  )


def test_what_people_offload_is_a_candidate():
  def step(x, weight):
    y = jnp.tanh(checkpoint_name(checkpoint_name(x, "carry") @ weight, "product"))
    return x + jnp.sin(checkpoint_name(y @ weight, "second")), None

  def fn(weights, x):
    return jnp.mean(jax.lax.scan(step, x, weights)[0] ** 2)

  x, weights = scan_arguments(batch=256)
  roofline = Roofline(flops_per_s=1.0, transcendentals_per_s=1.0, bytes_per_s=1e30, op_overhead_s=0.0)
  traced, link = trace(fn, (weights, x)), HostLink(1e9, 0.0, roofline)
  found = {names: each for each in Candidates(traced, False, link=link).found for names in each.name_sets}
  for names in (("product",), ("second",), ("product", "second"), ("carry",), ("carry", "product", "second")):
    policy = tuple(sorted(map(by_hand.on_host, names)))
    assert found[frozenset(policy)].policy == policy
    args = (weights, x)
    rewritten = rewrite.rewrite(traced, found[frozenset(policy)].decisions)
    asked = jax.grad(lambda *args, rewritten=rewritten: traced.call(jax.tree.leaves((args, {})), rewritten))
    copies = [equation.params["devices"][0] for equation in device_puts(jax.make_jaxpr(asked)(*args))]
    assert len(copies) == 2 * len(names)
    assert_close(jax.jit(asked)(*args), jax.jit(jax.grad(fn))(*args))
  assert not any(
    "on the host" in name for each in Candidates(traced, False).found for s in each.name_sets for name in s
  )


def test_no_candidate_has_more_on_the_host_than_it_may():
  args = scan_arguments(batch=256)
  roofline = Roofline(flops_per_s=1.0, transcendentals_per_s=1.0, bytes_per_s=1e30, op_overhead_s=0.0)
  traced, link = trace(scanned, args), HostLink(1e9, 0.0, roofline)
  carries = args[0].nbytes * len(args[1])
  for room_bytes, most in ((math.inf, 2), (2 * carries, 2), (2 * carries - 1, 1), (carries, 1), (carries - 1, 0)):
    bounded = Candidates(traced, False, link=dataclasses.replace(link, room_bytes=room_bytes))
    assert max(each.host_bytes for each in bounded.found) == most * carries  # of turns, and of their products


def test_what_is_compiled_with_more_on_the_host_than_it_may_is_no_plan():
  link = HostLink(1e9, 0.0, None, room_bytes=50)
  assert link.counted_bytes(temp_bytes=30, host_bytes=50, plain_bytes=100) == 30
  assert link.counted_bytes(temp_bytes=30, host_bytes=57, plain_bytes=100) == 107


def test_integers_and_booleans_go_to_the_host_too():
  def fn(x, weight):
    mask = x > 0
    order = jnp.argsort(x, axis=0)
    y = jnp.tanh(jnp.where(mask, x @ weight, 0.0))
    return jnp.take_along_axis(y, order, axis=0).sum()

  args = (normal(0, 16, 16), normal(1, 16, 16))
  jaxpr = trace(fn, args).inlined
  split = next(i for i, equation in enumerate(jaxpr.eqns) if equation.primitive.name == "tanh")
  made = {var: (i, j) for i, equation in enumerate(jaxpr.eqns[:split]) for j, var in enumerate(equation.outvars)}
  read = [
    made[var]
    for equation in jaxpr.eqns[split:]
    for var in equation.invars
    if not isinstance(var, jax.extend.core.Literal) and var in made
  ]
  end = len(jaxpr.eqns) - 1
  decisions = PolicyDecisions(
    (
      Region(
        None, (Segment(0, split), Segment(split, end, True, (), tuple(dict.fromkeys(read))), Segment(end, end + 1))
      ),
    )
  )
  kinds = {jaxpr.eqns[i].outvars[j].aval.dtype.name for i, j in read}
  assert "int32" in kinds and "float32" in kinds
  assert_close(jax.jit(jax.grad(decided(fn, decisions, args)))(*args), jax.jit(jax.grad(fn))(*args))


def test_decisions_survive_json_and_name_what_is_offloaded():
  args = scan_arguments()
  decisions = scan_decisions(scanned, args, offloaded=("carry", (0, 0)))
  assert PolicyDecisions.from_json(json.loads(json.dumps(dataclasses.asdict(decisions)))) == decisions
  found = [value for value in describe(trace(scanned, args), decisions) if value.decision == "offloaded"]
  assert [(value.type, value.num_bytes) for value in found] == 2 * [("float32[16,8]", 4 * 16 * 8 * 4)]  # of all steps
  assert all("test_offload.py" in value.source for value in found)


# The user's own policy.


def offloading_policy(*names):
  return jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=["kept"],
    names_which_can_be_offloaded=names,
    offload_src="device",
    offload_dst="pinned_host",
  )


def test_the_answers_of_policies_are_told_apart(remat3):
  def fn(x):
    y = checkpoint_name(jnp.sin(x), "hosted")
    z = checkpoint_name(jnp.cos(y), "kept")
    return jnp.tanh(z)

  jaxpr = trace(fn, (jnp.ones(4),)).jaxpr
  kept = user_policy.kept_values(jaxpr, offloading_policy("hosted"))
  assert kept == {var for equation in jaxpr.eqns[:4] for var in equation.outvars}
  assert user_policy.offloads(jaxpr, offloading_policy("hosted"))
  assert not user_policy.offloads(jaxpr, offloading_policy("other"))
  in_scan = trace(lambda x: jax.lax.scan(lambda c, _: (fn(c), None), x, None, length=3)[0], (jnp.ones(4),)).jaxpr
  assert user_policy.offloads(in_scan, offloading_policy("hosted"))
  for answer, is_kept in ((True, True), (False, False), (offloading_policy()(jax.lax.sin_p), False)):
    assert user_policy.is_kept(answer) is is_kept and not user_policy.is_offloaded(answer)


def test_what_the_users_policy_offloads_is_offloaded_and_not_repeated(remat3):
  def step(x, weight):
    y = jnp.tanh(checkpoint_name(x @ weight, "hosted"))
    return x + jnp.tanh(jnp.sin(jnp.exp(jnp.cos(y)))), None

  def fn(x, weights):
    x, _ = jax.lax.scan(step, x, weights)
    return jnp.mean(x**2)

  args = scan_arguments(batch=256)
  remat = coopjax.remat(fn, budget=0.8, engine="policy", policy=offloading_policy("hosted"))
  actual, expected = (jax.grad(each, argnums=(0, 1)) for each in (remat, fn))
  assert_close(jax.jit(actual)(*args), jax.jit(expected)(*args))
  rewritten = jax.make_jaxpr(actual)(*args)
  assert {str(equation.params["devices"][0]) for equation in device_puts(rewritten)} == {
    "MemorySpace.Device",
    "MemorySpace.Host",
  }
  assert str(rewritten).count("dot_general[") == str(jax.make_jaxpr(expected)(*args)).count("dot_general[")
