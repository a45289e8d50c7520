"""What people write whose compiled bytes are far from JAX's: at these bytes a plan repeats no more."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import fn_and_gradient, trace
from coopjax.policy_engine.by_hand import DOTS, policy_of
from coopjax.policy_engine.candidates import BY_HAND, Candidates
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.rewrite import rewrite
from coopjax.xla.compile import compile_abstract
from tests.support import hand_rungs
from tests.support.checks import assert_close, assert_same_bits, num_dots, temp_bytes
from tests.support.models import normal

WIDTH = 32


def invariants(wrap):
  """A loop whose turns all look into the same input: XLA makes keys and values of it once, and keeps them."""

  def block(x, weights, inputs):
    keys, values = jnp.split(jnp.sin(inputs) @ weights[0], 2, -1)
    x = x + jax.nn.softmax((x @ weights[1][:, :WIDTH]) @ keys.T) @ values
    return x + jnp.tanh(x @ weights[1]) @ weights[2]

  block = wrap(block)

  def loss(weights, inputs):
    start = jnp.broadcast_to(inputs[:1], (64, WIDTH))
    x, _ = jax.lax.scan(lambda x, _: (block(x, weights, inputs), None), start, None, length=6)
    return jnp.mean(x**2)

  weights = [normal(i, *shape, scale=0.2) for i, shape in enumerate(((WIDTH, 64), (WIDTH, 128), (128, WIDTH)))]
  return loss, (weights, normal(3, 1024, WIDTH, scale=1.0))


def convolved(x, kernel, reach=1):
  layout = ("NWC", "WIO", "NWC")
  return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", rhs_dilation=(reach,), dimension_numbers=layout)


def quantized(wrap):
  """Blocks before and behind a large value that no block is responsible for, and a loss as long as a block."""
  block = wrap(lambda x, kernels: x + convolved(jax.nn.relu(convolved(jax.nn.relu(x), kernels[0])), kernels[1]))

  def loss(weights, x):
    kernels, book = weights
    y = functools.reduce(block, kernels[:3], x)
    nearest = book[jnp.argmin(jnp.sum((y[..., None, :] - book) ** 2, -1), -1)]
    y = functools.reduce(block, kernels[3:], y + jax.lax.stop_gradient(nearest - y))
    return jnp.mean((y - x) ** 2) + jnp.mean((nearest - jax.lax.stop_gradient(y)) ** 2)

  kernels = [(normal(i, 3, WIDTH, WIDTH, scale=0.1), normal(9 + i, 1, WIDTH, WIDTH, scale=0.1)) for i in range(6)]
  return loss, ((kernels, normal(20, 32, WIDTH, scale=1.0)), normal(21, 4, 256, WIDTH, scale=1.0))


def summed(wrap):
  """Blocks that are alike but for how far they reach, and hand something on to the end."""

  def block(x, kernels, reach):
    y = jnp.tanh(convolved(x, kernels[0], reach)) * jax.nn.sigmoid(convolved(x, kernels[1], reach))
    return x + convolved(y, kernels[2]), convolved(y, kernels[3])

  def loss(weights, x):
    skips = 0.0
    for i, kernels in enumerate(weights):
      x, skip = wrap(functools.partial(block, reach=2**i))(x, kernels)
      skips = skips + skip
    return -jnp.mean(jax.nn.log_softmax(jax.nn.relu(skips))[..., 0])

  shapes = (2, WIDTH, WIDTH), (2, WIDTH, WIDTH), (1, WIDTH, WIDTH), (1, WIDTH, 2 * WIDTH)
  weights = [[normal(4 * i + j, *shape, scale=0.2) for j, shape in enumerate(shapes)] for i in range(6)]
  return loss, (weights, normal(99, 4, 512, WIDTH, scale=1.0))


def scanned(wrap):
  return functools.partial(hand_rungs.loss, wrapped=wrap(hand_rungs.layer))


def scanned_alone(wrap):
  return scanned(wrap), hand_rungs.arguments(1)


def in_a_jit(wrap):
  """A loop in a `jax.jit` that is more than a call: it says where its arguments lie."""
  whole = jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec())
  inner = jax.jit(scanned(wrap), in_shardings=whole)
  return lambda stacks, x: 2.0 * inner(stacks, jnp.sin(x)), hand_rungs.arguments(1)


def in_a_branch(wrap):
  """A loop in the second of two branches; the first one has equations, too."""
  unlike = lambda stacks, x: jnp.mean(jnp.tanh(x))
  return lambda stacks, x: jax.lax.cond(x[0, 0, 0] < 9, scanned(wrap), unlike, stacks, x), hand_rungs.arguments(1)


def in_a_shard_map(wrap):
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("data")
  local = lambda stacks, x: jax.lax.pmean(scanned(wrap)(stacks, x), "data")
  return jax.shard_map(local, mesh=mesh, in_specs=(whole, split), out_specs=whole), hand_rungs.arguments(1)


def unrolled(program):
  """The same without a loop: layers in a row inside of what calls them."""
  return lambda wrap: (program(wrap)[0], hand_rungs.unrolled_arguments())


def called_twice(wrap):
  """Loops in a function that is called twice, through a rule for derivatives; their bodies have calls, too."""

  @jax.jit
  def mixed(x, weights):
    return jnp.where(jnp.tril(jnp.ones((WIDTH, WIDTH), bool)), jax.nn.silu(x @ weights[0]), 0.0) @ weights[1]

  block = wrap(lambda x, weights: (x + jax.nn.gelu(mixed(x, weights)), None))
  stack = jax.jit(lambda x, weights: jax.nn.relu(jax.lax.scan(block, x, weights)[0]))

  def loss(weights, x):
    return jnp.mean(stack(jnp.sin(stack(x, weights)), weights) ** 2)

  return loss, ([normal(i, 6, WIDTH, WIDTH, scale=0.2) for i in range(2)], normal(2, 4, WIDTH, WIDTH, scale=1.0))


def dropped_out(wrap):
  """A loop that carries a random key, split in front of each turn's block."""

  @wrap
  def block(x, weights, key):
    kept = jax.random.bernoulli(key, 0.9, x.shape)
    return x + jnp.where(kept, jnp.tanh(x @ weights[0]) @ weights[1], 0.0)

  def turn(carry, weights):
    x, key = carry
    key, mine = jax.random.split(key)
    return (block(x, weights, mine), key), None

  def loss(weights, x):
    (x, _), _ = jax.lax.scan(turn, (x, jax.random.key(0)), weights)
    return jnp.mean(x**2)

  return loss, ([normal(i, 6, WIDTH, WIDTH, scale=0.2) for i in range(2)], normal(2, 4, WIDTH, WIDTH, scale=1.0))


@pytest.mark.parametrize(
  ("program", "names", "mark"),
  [
    (called_twice, (), None),
    (dropped_out, (), None),
    (scanned_alone, ("query", "up"), "m"),
    pytest.param(called_twice, (), "m", marks=pytest.mark.sweep),
    pytest.param(scanned_alone, ("query", "up"), None, marks=pytest.mark.sweep),
    *(pytest.param(called_twice, (DOTS,), mark, marks=pytest.mark.sweep) for mark in (None, "m")),
  ],
)
@pytest.mark.parametrize("prevent_cse", [True, False])
def test_a_policy_in_loops_is_carried_out_as_written(program, names, mark, prevent_cse):
  """To the same bytes: what is opened up, XLA fuses otherwise."""
  plain, args = program(lambda block: block)
  by_hand, _ = program(functools.partial(jax.checkpoint, policy=policy_of(names), prevent_cse=prevent_cse))
  traced = trace(plain, args)
  found = Candidates(traced, only_scans=False, planner=BY_HAND).found
  twin = next(each.twin for each in found if frozenset(names) in each.name_sets)
  assert twin is not None and twin.twin is not None and twin.twin.twin is None and twin.policy == names
  twin = twin if prevent_cse else twin.twin
  assert PolicyDecisions.from_json(json.loads(json.dumps(dataclasses.asdict(twin.decisions)))) == twin.decisions
  ours = compile_abstract(*fn_and_gradient(traced, rewrite(traced, twin.decisions, mark)))
  theirs = compile_abstract(*fn_and_gradient(trace(by_hand, args)))
  assert temp_bytes(ours) == temp_bytes(theirs) and num_dots(ours) == num_dots(theirs)
  assert "rematted_computation" in ours.as_text()
  assert_same_bits(ours(*jax.tree.leaves(args)), theirs(*jax.tree.leaves(args)))


@pytest.mark.parametrize(
  ("program", "policy"),
  [
    pytest.param(invariants, None, marks=pytest.mark.sweep),
    pytest.param(quantized, jax.checkpoint_policies.dots_saveable, marks=pytest.mark.sweep),
    (summed, jax.checkpoint_policies.dots_saveable),
    pytest.param(in_a_jit, jax.checkpoint_policies.dots_saveable, marks=pytest.mark.sweep),
    pytest.param(in_a_branch, jax.checkpoint_policies.dots_saveable, marks=pytest.mark.sweep),
    *(
      pytest.param(unrolled(program), policy, marks=pytest.mark.sweep)
      for program in (in_a_jit, in_a_branch, in_a_shard_map)
      for policy in (None, jax.checkpoint_policies.dots_saveable)
    ),
  ],
)
def test_a_plan_repeats_no_more_than_what_people_write(program, policy):
  plain, args = program(lambda block: block)
  by_hand, _ = program(functools.partial(jax.checkpoint, policy=policy))
  hand_bytes = hand_rungs.compiled(by_hand, args).memory_analysis().temp_size_in_bytes
  plan = coopjax.plan(plain, *args, budget=hand_bytes, engine="policy")
  ours = coopjax.RematPlan.from_json(plan.to_json()).apply(plain)
  hand_rungs.check_no_more(plain, by_hand, ours, args)


@pytest.mark.parametrize(
  ("gradient", "policy"),
  [(jax.grad, None), (jax.value_and_grad, jax.checkpoint_policies.dots_saveable)],
  ids=["nothing", "products"],
)
def test_a_loop_of_the_users_own_step_repeats_no_more(gradient, policy):
  """By 52 bytes the step takes less than with its loss, and 8% less with barriers in the loop than without."""

  def loss_with(wrap):
    body = wrap(lambda x, weights: (x + jnp.tanh(x @ weights[0]) ** 2 @ weights[1], None))
    return lambda weights, x: jnp.mean(jax.lax.scan(body, x, weights)[0] ** 2)

  args = (normal(51, 6, 64, 256), normal(52, 6, 256, 64)), normal(53, 1024, 64, scale=1.0)
  traced = lambda loss: jax.jit(gradient(loss)).trace(*args)
  flops = lambda program: cost.jaxpr_flops(compat.dce(program.jaxpr.jaxpr))
  checkpoint = functools.partial(jax.checkpoint, policy=policy)
  plain, by_hand = traced(loss_with(lambda fn: fn)), traced(loss_with(checkpoint))
  as_it_is, hand_bytes = plain.lower().compile(), temp_bytes(by_hand.lower().compile())
  ours = traced(coopjax.remat(loss_with(lambda fn: fn), budget=hand_bytes, engine="policy"))
  planned = ours.lower().compile()
  assert temp_bytes(planned) <= hand_bytes < temp_bytes(as_it_is)
  assert flops(plain) < flops(ours) <= flops(by_hand)
  assert "rematted_computation" in planned.as_text()
  assert_close(planned(*args), as_it_is(*args), rtol=1e-4, atol=1e-6)
