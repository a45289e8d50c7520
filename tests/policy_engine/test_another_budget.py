"""A search for less than one before it goes on from what that tried."""

from tests.support.invented import Invented, run

# What is compiled is 1.6 times what is estimated, and what repeats less takes more.
CANDIDATES = [
  Invented(float(size), int(1.6 * size), 1200.0 - size, is_bare=size == 100, has_loops=True)
  for size in range(100, 1000, 20)
]


def test_what_was_tried_is_tried_first_and_tells_of_others():
  before, tried_before = run(CANDIDATES, 1000, baseline=1600, max_rounds=12)
  anew, tried_anew = run(CANDIDATES, 700, baseline=1600, max_rounds=12)
  gone_on, tried = run(CANDIDATES, 700, baseline=1600, max_rounds=12, after=1000)
  assert before.is_feasible and tried[: len(tried_before)] == tried_before
  assert gone_on.is_feasible and gone_on.recompute_flops == anew.recompute_flops
  more = tried[len(tried_before) :]
  assert 0 < len(more) < len(tried_anew)


def test_a_budget_that_only_what_was_not_tried_holds():
  before, tried_before = run(CANDIDATES, 1000, baseline=1600, max_rounds=12)
  plan, tried = run(CANDIDATES, 170, baseline=1600, max_rounds=12, after=1000)
  assert before.is_feasible and min(tried_before) > 170
  assert plan.is_feasible and plan.temp_bytes == 160 and len(tried) <= len(tried_before) + 6
