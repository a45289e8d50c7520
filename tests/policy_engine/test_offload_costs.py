"""What host offload costs, by hand: the wait that a queue of copies can not hide, and the choices that follow."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest

from coopjax import compat
from coopjax.policy_engine.offload import HostLink, HostTrips, Trip, carried_inputs, inputs_between, waiting_s
from coopjax.policy_engine.offload_curves import offload_curves
from coopjax.policy_engine.residuals import forward_graph
from coopjax.policy_engine.save_curves import SavingRegion
from coopjax.policy_engine.shards import Shards
from coopjax.program.cost import Roofline

# One FLOP, one byte, one transcendental a second: seconds are FLOPs.
UNIT = Roofline(flops_per_s=1.0, transcendentals_per_s=1.0, bytes_per_s=1e30, op_overhead_s=0.0)


def link(bytes_per_s, **fields):
  return HostLink(bytes_per_s, 0.0, UNIT, **fields)


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
  return graph, next(offload_curves(region, graph, 0, graph.num_positions, inputs))


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
  # What is repeated is four tanhs, 8 FLOPs an element; their derivatives are made once.
  assert curve[0].flops == pytest.approx(256 + 1664 + 4 * 128 * 8)
  _, slow = curve_of(0.01)
  assert slow[0].offloaded == () and slow[0].flops == pytest.approx(4 * 2048 + 4 * 128 * 8)


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


@pytest.mark.parametrize("bytes_per_s", [1e9, 3.0, 1.0, 0.6])
@pytest.mark.parametrize("sends_inputs", [False, True])
def test_no_choice_of_what_is_saved_and_where_beats_the_curve(bytes_per_s, sends_inputs):
  jaxpr, graph = square_chain(3)
  region, whole = HostTrips.of(link(bytes_per_s), jaxpr), SavingRegion(graph, 0, graph.num_positions)
  inputs, values = (((-1, 0), 512),), [value for value in graph.named if value is not None]
  *curve, as_it_is = list(offload_curves(region, graph, 0, graph.num_positions, inputs))[sends_inputs]
  assert curve and not (sends_inputs and any((-1, 0) not in point.offloaded for point in curve))
  for where in itertools.product(("repeated", "saved", "on the host"), repeat=len(values)):
    of = {at: frozenset(v for v, place in zip(values, where, strict=True) if place == at) for at in where}
    for sent in (frozenset({(-1, 0)}),) if sends_inputs else (frozenset(), frozenset({(-1, 0)})):
      on_host = of.get("on the host", frozenset()) | sent
      choice = region.point(whole, of.get("saved", frozenset()), on_host, inputs)
      if choice.saved_bytes < as_it_is.saved_bytes:
        least = min(point.flops for point in curve if point.saved_bytes <= choice.saved_bytes)
        assert least <= choice.flops + 2e-3 * whole.choice(()).flops


@pytest.mark.parametrize(("of_work", "wait"), [(1, 256 + 384), (2, 384 + 448)])
def test_what_a_policy_offloads_waits_for_its_way(of_work, wait):
  # Two layers at one byte a second: the second product is made at 2176 + 2048 s and is out 512 s later, the end is at
  # 4480 s: 256 s too late. Back it is after 512 s, and needed after the first tanh, 128 s: 384 s too late. On one of
  # two devices that share the work all but the transfers takes half of that.
  jaxpr, graph = square_chain(2)
  region, whole = HostTrips.of(link(1.0), jaxpr, Shards({}, {}, of_work)), SavingRegion(graph, 0, graph.num_positions)
  point = region.point(whole, frozenset({(0, 0)}), frozenset({(2, 0)}), ())
  on_device = whole.choice([(0, 0), (2, 0)])
  assert (point.saved, point.offloaded, point.saved_bytes) == (((0, 0),), ((2, 0),), 512)
  assert point.waiting_flops == point.flops - on_device.flops == wait
  carried = region.point(whole, frozenset(), frozenset({(-1, 0)}), [((-1, 0), 512), ((-1, 1), 256)])
  assert (carried.offloaded, carried.saved_bytes, carried.waiting_flops) == (((-1, 0),), -512, 512)


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
  on_four = Shards({(-1, (64, 64)): 4}, {})
  assert carried_inputs(body_jaxpr, (0, len(body_jaxpr.eqns)), carries, on_four) == ((inputs[0][0], 64 * 64),)
