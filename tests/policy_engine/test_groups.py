"""Turns of loops in groups: any loop, the FLOPs that are said, and budgets below a checkpoint around each layer."""

import functools
import itertools

import jax
import jax.numpy as jnp
import optax
import pytest

import coopjax
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.policy_engine import groups
from coopjax.policy_engine.candidates import BY_HAND, Candidates
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.scan import find_scans
from tests.support import hand_rungs, sweeps
from tests.support.checks import assert_close, temp_bytes
from tests.support.models import normal

LENGTH, WIDTH = 12, 16
STACK = {"in": normal(0, LENGTH, WIDTH, 4 * WIDTH, scale=0.2), "out": normal(1, LENGTH, 4 * WIDTH, WIDTH, scale=0.2)}
START = normal(2, 64, WIDTH, scale=1.0)


def layer(x, weights):
  return x + jnp.tanh(jnp.tanh(x @ weights["in"]) @ weights["out"])


def scanned(turn, start=lambda x: x, stack=lambda weights: weights, **how):
  return lambda weights, x: jax.lax.scan(functools.partial(turn, weights, x), start(x), stack(weights), **how)


def chunked(weights, x):
  """A loop in the loop, whose results are stacked by both."""

  def chunk(scale, row):
    row = jnp.tanh(row * scale)
    return scale + row.mean(), row

  return jax.lax.scan(chunk, weights["in"].sum() * 0.01, layer(x, weights))


LOOPS = {
  "plain": scanned(lambda _w, _x, x, weights: (layer(x, weights), None)),
  "from the end, with results": scanned(
    lambda _w, _x, x, weights: (layer(x, weights), jnp.sin(x).mean(0)), reverse=True
  ),
  "with results": scanned(lambda _w, _x, x, weights: (layer(x, weights), (x[0], x.sum()))),
  "nothing to go over": scanned(
    lambda w, start, x, _: (layer(x, jax.tree.map(lambda each: each[0], w)) + start, None),
    stack=lambda _: None,
    length=LENGTH,
  ),
  "a counter, and numbers": scanned(
    lambda _w, _x, carry, both: ((layer(carry[0], both[0]) * (both[1] + carry[1]), carry[1] + 1), carry[1]),
    start=lambda x: (x, 0),
    stack=lambda weights: (weights, jnp.arange(LENGTH) % 3),
  ),
  "a loop inside": scanned(lambda _w, _x, x, weights: (chunked(weights, x)[1], chunked(weights, x)[0])),
}

FORMS = list(itertools.product(groups.sizes(LENGTH), (True, False)))


def test_sizes_divide_the_turns_and_each_has_fewer_carries():
  assert groups.sizes(12) == [2, 3] and groups.sizes(80) == [2, 4, 5, 8]
  assert groups.sizes(2) == groups.sizes(3) == groups.sizes(7) == []


@pytest.mark.parametrize("form", sweeps.all_but([(3, True), (2, False)], FORMS))
@pytest.mark.parametrize("name", sweeps.all_but(["from the end, with results", "a counter, and numbers"], LOOPS))
def test_any_loop_in_groups_has_the_same_gradients_and_the_flops_that_are_said(name, form):
  size, is_peeled = form
  loss = lambda weights, x: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(LOOPS[name](weights, x)))
  traced = differentiable(trace(loss, (STACK, START)))
  plain, avals = fn_and_gradient(traced)
  in_jaxpr = lambda fn: cost.jaxpr_flops(jax.make_jaxpr(fn)(*avals).jaxpr)
  leaves = jax.tree.leaves((STACK, START))
  (scan,) = find_scans(*tag_jaxpr(traced.inlined))
  body = scan.in_groups(size, is_peeled)
  for point in (body.curve[0], body.curve[-1]):
    decisions = PolicyDecisions(scan.regions(body, point))
    assert (decisions.regions[0].group_size, decisions.regions[0].is_peeled) == (size, is_peeled)
    in_groups, _ = fn_and_gradient(traced, rewrite(traced, decisions))
    assert_close(in_groups(*leaves), plain(*leaves), rtol=1e-4, atol=1e-5)
    repeated = in_jaxpr(in_groups) - in_jaxpr(plain)
    assert 0.75 * point.flops < repeated < 1.2 * point.flops  # what nothing reads JAX leaves out; sums of gradients


def test_plans_saved_before_have_their_last_turns_peeled():
  saved = {"equation_id": 3, "segments": [], "group_size": 4}
  (region,) = PolicyDecisions.from_json({"regions": [saved]}).regions
  assert region.is_peeled


def deep(wrapped=layer):
  """A model of many thin layers, whose carries are most of what a checkpoint around each of them keeps."""

  def loss(weights, x):
    x, _ = jax.lax.scan(lambda x, layer_weights: (wrapped(x, layer_weights), None), x, weights)
    return jnp.mean(x**2)

  return loss


DEEP = (
  {"in": normal(0, 32, WIDTH, 4 * WIDTH, scale=0.2), "out": normal(1, 32, 4 * WIDTH, WIDTH, scale=0.2)},
  normal(2, 2048, WIDTH, scale=1.0),
)
PER_LAYER = deep(jax.checkpoint(layer, prevent_cse=False))


@pytest.mark.parametrize("share", [0.75, pytest.param(0.55, marks=pytest.mark.sweep)])
def test_budgets_below_a_checkpoint_around_each_layer_are_held(share):
  budget = int(share * temp_bytes(hand_rungs.compiled(PER_LAYER, DEEP)))
  plan = coopjax.plan(deep(), *DEEP, budget=budget, engine="policy")
  (region,) = plan.policy.regions
  assert plan.fits and region.group_size > 1 and "groups of" in str(plan.rounds[-1])
  assert coopjax.RematPlan.from_json(plan.to_json()) == plan
  ours, plain = plan.apply(deep()), hand_rungs.compiled(deep(), DEEP)
  planned = hand_rungs.compiled(ours, DEEP)
  repeated, by_layer = (hand_rungs.flops(fn, DEEP) - hand_rungs.flops(deep(), DEEP) for fn in (ours, PER_LAYER))
  assert temp_bytes(planned) <= budget and by_layer < repeated < 2.5 * by_layer
  assert planned.as_text().count("rematted_computation") > plain.as_text().count("rematted_computation")
  assert_close(planned(*DEEP), plain(*DEEP), rtol=1e-4, atol=1e-6)


def test_at_the_bytes_of_a_checkpoint_around_each_layer_there_are_no_groups():
  budget = temp_bytes(hand_rungs.compiled(PER_LAYER, DEEP))
  plan = coopjax.plan(deep(), *DEEP, budget=budget, engine="policy")
  assert plan.fits and all(region.group_size == 1 for region in plan.policy.regions)
  hand_rungs.check_no_more(deep(), PER_LAYER, plan.apply(deep()), DEEP)


def recurrent(wrap_chunk=None, wrap_turn=lambda turn: turn):
  """Runge-Kutta steps, which share their weights, as people write it: in chunks, where these are under checkpoints."""

  def loss(weights, y):
    field = lambda time, y: jnp.tanh(y @ weights["in"] + time) @ weights["out"]

    def turn(y, time):
      first = field(time, y)
      second = field(time + 0.01, y + 0.01 * first)
      third = field(time + 0.01, y + 0.01 * second)
      return y + 0.02 / 6 * (first + 2 * second + 2 * third + field(time + 0.02, y + 0.02 * third)), None

    times, turn = jnp.linspace(0, 1, 64), wrap_turn(turn)
    chunk = lambda y, times: jax.lax.scan(turn, y, times)
    y, _ = chunk(y, times) if wrap_chunk is None else jax.lax.scan(wrap_chunk(chunk), y, times.reshape(8, 8))
    return jnp.mean(y**2)

  return loss


@pytest.mark.parametrize("are_turns_wrapped", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_a_plan_repeats_no_more_than_chunks_of_turns_under_checkpoints(are_turns_wrapped):
  checkpoint = functools.partial(jax.checkpoint, prevent_cse=False)
  by_hand = recurrent(checkpoint, *([checkpoint] if are_turns_wrapped else []))
  args = {"in": normal(3, 32, 128), "out": normal(4, 128, 32)}, normal(5, 32, 32, scale=1.0)
  plan = coopjax.plan(recurrent(), *args, budget=temp_bytes(hand_rungs.compiled(by_hand, args)), engine="policy")
  assert coopjax.RematPlan.from_json(plan.to_json()) == plan
  hand_rungs.check_no_more(recurrent(), by_hand, plan.apply(recurrent()), args)


@pytest.mark.parametrize("prevent_cse", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_chunks_are_carried_out_as_people_write_them(prevent_cse):
  """Scans of scans, to no more bytes: barriers inside of them cost an H100 some."""
  checkpoint = functools.partial(jax.checkpoint, prevent_cse=prevent_cse)
  args = {"in": normal(3, 32, 128), "out": normal(4, 128, 32)}, normal(5, 32, 32, scale=1.0)
  traced = trace(recurrent(), args)
  space = Candidates(traced, only_scans=True, planner=BY_HAND)
  assert space.deepen()
  nothing_saved = [each for each in space.found if frozenset() in each.name_sets and each.is_bare]
  nested = next(each for each in nothing_saved if [region.group_size for region in each.scan_bodies] == [8])
  found = nested.twin if prevent_cse else nested
  assert found is not None
  ours = jax.jit(fn_and_gradient(traced, rewrite(traced, found.decisions))[0]).lower(*traced.in_avals)
  assert ("optimization_barrier" in ours.as_text()) == prevent_cse
  compiled, theirs = ours.compile(), hand_rungs.compiled(recurrent(checkpoint, checkpoint), args)
  assert temp_bytes(compiled) <= temp_bytes(theirs) and "rematted_computation" in compiled.as_text()
  assert_close(compiled(*jax.tree.leaves(args)), jax.tree.leaves(jax.value_and_grad(recurrent(), (0, 1))(*args)))


@pytest.mark.sweep
def test_a_step_around_the_loop_is_held_below_it_too():
  optimizer = optax.sgd(1e-3)

  def step_of(loss):
    def step(weights, state, x):
      value, gradients = jax.value_and_grad(loss)(weights, x)
      updates, state = optimizer.update(gradients, state)
      return optax.apply_updates(weights, updates), state, value

    return step

  arguments = DEEP[0], optimizer.init(DEEP[0]), DEEP[1]
  by_hand = jax.jit(step_of(PER_LAYER)).lower(*arguments).compile()
  step = step_of(jax.checkpoint(deep()))
  plan = coopjax.plan(step, *arguments, budget=int(0.75 * temp_bytes(by_hand)), engine="policy")
  assert plan.fits and plan.regions[0].policy.regions[0].group_size > 1
  planned = jax.jit(plan.apply(step)).lower(*arguments).compile()
  assert temp_bytes(planned) <= 0.75 * temp_bytes(by_hand)
  assert_close(planned(*arguments), by_hand(*arguments), rtol=1e-4, atol=1e-6)
