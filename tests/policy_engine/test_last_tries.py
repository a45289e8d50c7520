"""What the policy engine's search compiles last, on invented candidates: what a person would have picked after all."""

import dataclasses

from tests.support.invented import Invented, run


def test_the_last_tries_are_for_nothing_saved():
  # The layers of a step that accumulates gradients, under checkpoints: what might fit is over it, one after the other.
  by_hand = {"is_by_hand": True, "has_loops": True}
  found = [
    Invented(4080000.0, 8345688, 109.0, has_loops=True),
    Invented(1426432.0, 4675736, 417.0, True, has_loops=True),
    Invented(2360000.0, 6850584, 222.0, has_loops=True),
    *(Invented(1560000.0 + 1000 * i, 5939160 + i, 280.0 - i, **by_hand) for i in range(6)),
    Invented(1660928.0, 5670936, 299.0, True, twin=5670936, **by_hand),
  ]
  plan, tried = run(found, 5670936, baseline=18569544)
  assert plan.is_feasible and plan.recompute_flops == 299.0 and 5670936 in tried and len(tried) == 6
  # Where it is over the budget, too, what was found stands.
  plan, _ = run(found, 5670935, baseline=18569544)
  assert plan.is_feasible and plan.recompute_flops == 417.0


def test_where_estimates_hide_more_than_the_budget_the_last_tries_are_for_the_sets_that_most_people_pick():
  # A decoder of eight layers on eight devices under XLA:TPU (10 KiB), its rung `minimal` the one that saves "mlpwo".
  bare = Invented(11157.0, 265, 54.88, True, has_loops=True)
  products = Invented(31257.0, 17463, 1.19, is_plain=True, has_loops=True)
  numbers = (14057, 2238, 33.38), (14482, 1872, 32.32), (15157, 3609, 28.01), (14882, 2250, 30.17), (15282, 3633, 28.03)
  numbers += (15457, 3593, 25.86), (15458, 3206, 25.87), (15158, 3230, 28.01), (15232, 3063, 28.02)
  numbers += (18457, 4241, 9.75), (17658, 3441, 14.05), (16257, 4393, 21.57), (16258, 4393, 21.58), (15957, 4006, 23.71)
  numbers += (15632, 4033, 25.88), (16032, 4415, 23.72), (18758, 4654, 9.78), (18613, 3845, 9.6), (17857, 3857, 18.37)
  others = [
    Invented(float(estimated), compiled, flops, is_by_hand=True, name=f"name {i}", has_loops=True)
    for i, (estimated, compiled, flops) in enumerate(numbers)
  ]
  minimal = Invented(17657.0, 3038, 18.35, is_by_hand=True, name="mlpwo", has_loops=True)
  search_in = lambda *found: run(found, 3038, baseline=31900, max_rounds=10, drafted=lambda num_bytes: num_bytes)
  assert search_in(bare, products, *others, minimal)[0].recompute_flops == 18.35
  unknown = dataclasses.replace(minimal, name="mine")  # nothing tells it from the others
  assert search_in(bare, products, *others, unknown)[0].recompute_flops > 18.35


def test_beyond_the_rounds_a_few_more_drafts_are_of_the_sets_that_most_people_pick():
  # An encoder and a decoder on eight devices under XLA:TPU (10 KiB): most of what queries, keys and values take lies in
  # vector memory.
  numbers = (12807, 1536, 292.23), (13907, 3081, 123.56), (13707, 4898, 127.86), (13908, 3062, 123.57)
  numbers += (14150, 2247, 142.12), (14151, 4800, 132.98), (14152, 3059, 132.99), (13807, 4759, 128.40)
  bare = [Invented(float(each), compiled, flops, True, has_loops=True) for each, compiled, flops in numbers]
  plain = [
    Invented(float(each), compiled, flops, True, is_plain=True, has_loops=True)
    for each, compiled, flops in ((14307, 3184, 127.85), (15661, 3085, 140.75))
  ]
  picked = [
    Invented(float(each), compiled, flops, is_by_hand=True, name=name, has_loops=True)
    for each, compiled, flops, name in ((14308, 3862, 127.86, "out_proj"), (19810, 2883, 114.90, "query_proj"))
  ]
  plan, tried = run([*bare, *plain, *picked], 2883, baseline=226760, max_rounds=10, drafted=lambda num_bytes: num_bytes)
  assert plan.is_feasible and plan.recompute_flops == 114.90 and len(tried) <= 15


def test_what_would_spare_much_is_tried_at_last_whatever_trials_tell():
  # Experts in a scan on eight devices (CPU): trials err alike, and by one set of names XLA fuses otherwise.
  numbers = (614, 674, 106.3), (526, 586, 205.7), (598, 658, 126.1), (598, 658, 124.5), (626, 686, 126.7)
  alike = [Invented(float(estimated), compiled, flops, has_loops=True) for estimated, compiled, flops in numbers]
  minimal = Invented(708.0, 619, 45.3, is_by_hand=True, name="mlpwo", has_loops=True)
  plan, tried = run([*alike, minimal], 619, baseline=1545, max_rounds=12)
  assert plan.is_feasible and plan.recompute_flops == 45.3 and tried[-1] == 619
  # Not what nobody knows, nor what spares little.
  for other in (dataclasses.replace(minimal, name="mine"), dataclasses.replace(minimal, flops=150.0)):
    assert 619 not in run([*alike, other], 619, baseline=1545, max_rounds=12)[1]


def test_after_many_misses_the_last_tries_are_for_the_sets_that_most_people_pick():
  # Experts in a scan under XLA for a v5e (MiB), whose bytes no estimate tells.
  numbers = (1601, 998, 459.0), (2318, 1900, 78.9), (2305, 1854, 81.5), (2133, 1890, 184.7), (1953, 1744, 270.4)
  numbers += (2129, 1603, 219.1), (2193, 1954, 150.3), (2314, 1894, 80.1), (2226, 1832, 131.6), (2141, 1885, 183.9)
  numbers += (2177, 1649, 184.6), (2241, 2017, 115.8), (2243, 1930, 120.0), (2245, 1931, 121.0)
  others = [
    Invented(float(estimated), compiled, flops, i == 0, is_by_hand=True, name=f"name {i}", has_loops=True)
    for i, (estimated, compiled, flops) in enumerate(numbers)
  ]
  minimal = Invented(2241.0, 1791, 150.2, is_by_hand=True, name="mlpwo", has_loops=True)
  plan, _ = run([*others, minimal], 1791, baseline=7232, max_rounds=12, drafted=lambda num_bytes: num_bytes)
  assert plan.is_feasible and plan.recompute_flops == 150.2


def test_nothing_saved_is_tried_at_last_though_trials_tell_that_it_just_misses():
  # As of latents and tokens that attend to each other, in a scan on eight devices (CPU): trials err alike, and around
  # the whole turn XLA partitions otherwise.
  plain = {"has_loops": True, "is_plain": True}
  nested = Invented(4321.0, 4331, 500.1, True, has_loops=True)
  pieces = Invented(4413.0, 4425, 346.6, True, twin=4425, **plain)
  whole = Invented(4592.0, 4363, 380.2, True, twin=4363, **plain)
  others = [Invented(4352.0 + 2 * i, 4364 + 2 * i, 480.0 - 10 * i, has_loops=True) for i in range(9)]
  plan, _ = run([nested, pieces, whole, *others], 4363, baseline=14899, max_rounds=8)
  assert plan.is_feasible and plan.recompute_flops == 380.2
  # Not where it spares little, or is predicted to be far off.
  for other in (dataclasses.replace(whole, flops=485.0), dataclasses.replace(whole, estimated=5400.0)):
    assert 4363 not in run([nested, pieces, other, *others], 4363, baseline=14899, max_rounds=8)[1]
