"""At the bytes of policies that people pick by hand, a plan repeats no more than they do: one scan, two, and none.

The oracle is JAX's own checkpoint around the layer, compiled and counted like the plan.
"""

import pytest

import coopjax
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
