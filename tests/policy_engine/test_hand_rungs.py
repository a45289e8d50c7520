"""At the bytes of policies that people pick by hand, a plan repeats no more than they do: one scan, two, and none.

The oracle is JAX's own checkpoint around the layer, compiled and counted like the plan.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

import coopjax
from tests.support import models
from tests.support.checks import assert_close, num_dots
from tests.support.hand_rungs import RUNGS, arguments, by_hand, compiled, flops, loss, plain, unrolled_arguments


@pytest.mark.parametrize(
  ("rung", "num_scans"),
  [
    ("queries", 1),
    ("with_context", 1),
    *(
      pytest.param(*case, marks=pytest.mark.sweep)
      for case in (("nothing", 1), ("nothing", 2), ("with_context", 2), ("with_context", 0))
    ),
  ],
)
def test_a_plan_repeats_no_more_than_the_hand_at_its_bytes(rung, num_scans):
  args, hand = arguments(num_scans) if num_scans else unrolled_arguments(), by_hand(RUNGS[rung], not num_scans)
  hand_bytes = compiled(hand, args).memory_analysis().temp_size_in_bytes
  plan = coopjax.plan(loss, *args, budget=hand_bytes, engine="policy")
  planned = plan.apply(loss)
  program = compiled(planned, args)
  assert program.memory_analysis().temp_size_in_bytes <= hand_bytes
  plain_program, plain_flops = plain(num_scans)
  ours, theirs = (flops(fn, args) for fn in (planned, hand))
  assert plain_flops < ours <= plain_flops + 1.01 * (theirs - plain_flops)  # what is no product may differ
  assert num_dots(program) > num_dots(plain_program) or ours - plain_flops < 0.1 * plain_flops
  assert_close(program(*args), plain_program(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.sweep)])
def test_several_of_the_blocks_that_come_again_may_be_one_to_a_person(size):
  """Convolutions that each are added to what they read, under a checkpoint around so many of them."""
  weights, x = list(models.normal(1, 8, 3, 3, 16, 16) / 12), models.normal(2, 4, 16, 16, 16)

  def part(x, kernel):
    y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = (y - y.mean((1, 2), keepdims=True)) * jax.lax.rsqrt(y.var((1, 2), keepdims=True) + 1e-5)
    return x + jax.nn.relu(y)

  def loss(weights, x, wrap=lambda block: block):
    block = wrap(lambda x, kernels: functools.reduce(part, kernels, x))
    return jnp.mean(functools.reduce(block, [weights[i : i + size] for i in range(0, 8, size)], x) ** 2)

  hand = functools.partial(loss, wrap=functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable))
  args = weights, x
  plan = coopjax.plan(
    loss, *args, budget=compiled(hand, args).memory_analysis().temp_size_in_bytes, engine="policy", argnums=(0, 1)
  )
  planned = plan.apply(loss)
  plain_flops, ours, theirs = (flops(fn, args) for fn in (loss, planned, hand))
  assert plan.measured.temp_bytes <= plan.budget_bytes and "rematted_computation" in compiled(planned, args).as_text()
  assert ours - plain_flops <= 1.02 * (theirs - plain_flops)
  assert_close(compiled(planned, args)(*args), compiled(loss, args)(*args), rtol=1e-4, atol=1e-5)
