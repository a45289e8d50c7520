"""Host offload: the cost model by hand, and derivatives on the CPU, which copies within its own memory."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax import compat
from coopjax.budget import Budget
from coopjax.jaxpr import user_policy
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import trace
from coopjax.policy_engine import rewrite
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.offload import HostLink, HostTrips, Trip, carried_inputs, inputs_between, waiting_s
from coopjax.policy_engine.residuals import forward_graph
from coopjax.policy_engine.save_curves import save_curve
from coopjax.program.cost import Roofline
from tests.support import checks
from tests.support.models import normal

pytestmark = pytest.mark.usefixtures("quick_compiles")

# One FLOP, one byte, one transcendental a second: seconds are FLOPs.
UNIT = Roofline(flops_per_s=1.0, transcendentals_per_s=1.0, bytes_per_s=1e30, op_overhead_s=0.0)


def link(bytes_per_s, **fields):
  return HostLink(bytes_per_s, 0.0, UNIT, **fields)


# The model.


@pytest.mark.parametrize(
  ("trips", "end_s", "expected_s"),
  [
    ([], 0.0, 0.0),
    ([Trip(10, 0.0, 1.0)], 1.0, 0.0),  # out from 0 to 1, back from 0 to 1
    ([Trip(10, 0.0, 1.0)], 0.9, 0.1),  # the segment ends before the copy out
    ([Trip(10, 0.5, 1.0)], 1.0, 0.5),  # made half way
    ([Trip(10, 0.0, 0.0)], 1.0, 1.0),  # an input: needed at once
    ([Trip(10, 0.0, 1.0), Trip(10, 0.0, 1.0)], 2.0, 1.0),  # one queue: the second is back at 2
    ([Trip(10, 0.0, 9.0), Trip(10, 0.0, 1.0)], 2.0, 0.0),  # the one needed first comes first
    ([Trip(10, 0.0, 1.0), Trip(20, 0.0, 2.0), Trip(5, 0.0, 3.4)], 9.0, 1.0),  # waiting moves later needs, too
  ],
)
def test_waiting_is_what_the_queue_can_not_hide(trips, end_s, expected_s):
  assert waiting_s(trips, link(10.0), end_s) == pytest.approx(expected_s)


def test_a_transfer_takes_its_start_and_its_bytes():
  assert HostLink(100.0, 0.5, UNIT).seconds(200) == 2.5
  assert HostLink(100.0, 0.5, dataclasses.replace(UNIT, flops_per_s=8.0)).flops(2.5) == 20.0


def square_chain(depth, width=8, batch=16):
  """``(jaxpr, graph)`` of ``depth`` products with a tanh each."""

  def loss(x, *weights):
    for weight in weights:
      x = jnp.tanh(x @ weight)
    return x.sum()

  jaxpr = jax.make_jaxpr(loss)(jnp.ones((batch, width)), *[jnp.ones((width, width))] * depth)
  return jaxpr, forward_graph(jaxpr, [True] * (depth + 1))


def curve_of(bytes_per_s, depth=4, inputs=()):
  jaxpr, graph = square_chain(depth)
  region = HostTrips.of(link(bytes_per_s), jaxpr)
  return graph, save_curve(graph, 0, graph.num_positions, choices=region.choices(graph, 0, graph.num_positions, inputs))


@pytest.mark.parametrize(("bytes_per_s", "is_offloaded"), [(0.45, True), (0.44, False)])
def test_offload_is_chosen_where_the_wait_is_cheaper_than_the_recompute(bytes_per_s, is_offloaded):
  # A product of [16, 8] @ [8, 8] takes 2 * 16 * 8 * 8 = 2048 FLOPs, a tanh and the sum over the result 128 s each: the
  # segment ends at 2304 s. The product's 512 bytes take t s. They go from 2048 s on, and nothing hides their way back:
  # the wait is (2048 + t - 2304) + t, which is what the product takes for t = 1152, at 0.444 bytes a second.
  _, curve = curve_of(bytes_per_s, depth=1)
  assert curve[0].offloaded == (((0, 0),) if is_offloaded else ())
  assert curve[0].saved_bytes == 0
  assert curve[0].waiting_flops == pytest.approx(2 * 512 / bytes_per_s - 256 if is_offloaded else 0.0)


def test_transfers_of_a_segment_share_one_queue():
  # As above, four layers deep, at one byte a second. Out: the last product is made at 3 * 2176 + 2048 = 8576 s and is
  # there 512 s later, the segment ends at 4 * 2176 + 128 = 8832 s: 256 s too late. Back: the products arrive at 512,
  # 1024, 1536 and 2048 s, the tanhs before them are repeated by 0, 128, 256 and 384 s: the last is 1664 s too late.
  _, curve = curve_of(1.0)
  assert curve[0].offloaded == ((0, 0), (2, 0), (4, 0), (6, 0))
  assert curve[0].waiting_flops == pytest.approx(256 + 1664)
  # What is repeated is four tanhs, 8 FLOPs an element, and one FLOP an element of their derivative.
  assert curve[0].flops == pytest.approx(256 + 1664 + 4 * 128 * (8 + 1))
  _, slow = curve_of(0.01)
  assert slow[0].offloaded == () and slow[0].flops == pytest.approx(4 * 2048 + 4 * 128 * (8 + 1))


def test_fast_links_hide_everything_but_the_first_value():
  graph, curve = curve_of(1e9)
  wait_s = graph.value_bytes[0] / 1e9  # the first product's, on its way back
  assert curve[0].waiting_flops <= 2 * wait_s + 1e-9
  assert [point.saved_bytes for point in curve] == sorted(point.saved_bytes for point in curve)
  assert all(before.flops >= after.flops for before, after in itertools.pairwise(curve))


def test_inputs_go_to_the_host_and_come_back_to_the_device_last():
  # An input of 512 bytes at one byte a second: 512 s of waiting that nothing hides, for 512 bytes of the device.
  _, curve = curve_of(1.0, inputs=(((-1, 0), 512),))
  assert curve[0].saved_bytes == -512 and (-1, 0) in curve[0].offloaded
  on_device = next(point for point in curve if (-1, 0) not in point.offloaded)
  assert on_device.saved_bytes > curve[0].saved_bytes and on_device.flops < curve[0].flops


def test_inputs_are_what_one_later_segment_reads():
  def fn(x, y):
    a = jnp.tanh(x)  # position 0: read by the second segment alone
    b = jnp.sin(x)  # position 1: read by the second and the third
    c = a * b  # position 2
    return c + b + y.sum()

  big = jax.ShapeDtypeStruct((64, 64), jnp.float32)
  jaxpr = jax.make_jaxpr(fn)(big, big)
  inputs = inputs_between(jaxpr, (0, 2, 3, len(jaxpr.eqns)))
  assert inputs == [(), (((0, 0), 64 * 64 * 4),), (((2, 0), 64 * 64 * 4),)]

  def body(carry, x):
    h, count = carry
    return (jnp.tanh(h @ x), count + 1), None

  scan = jax.make_jaxpr(lambda h, xs: jax.lax.scan(body, (h, 0), xs))(big, jnp.ones((3, 64, 64)))
  (equation,) = [equation for equation in scan.eqns if equation.primitive.name == "scan"]
  (body_jaxpr,) = compat.sub_jaxprs(equation)
  carries = compat.scan_carries(equation)
  assert [var.aval.shape for var in carries] == [(64, 64), ()]
  inputs = carried_inputs(body_jaxpr, (0, len(body_jaxpr.eqns)), carries)
  assert inputs == (((-1, body_jaxpr.invars.index(carries[0])), 64 * 64 * 4),)  # the counter is too small


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


@pytest.fixture(params=[False, True], ids=["classic", "remat3"])
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
    assert "offloaded" in {value.decision for value in rewrite.describe(trace(straight, args), STRAIGHT)}
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
  space = Candidates(traced, False, link=link(1e9))
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
  found = [value for value in rewrite.describe(trace(scanned, args), decisions) if value.decision == "offloaded"]
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
