"""What the policy engine's search tries before it refuses a budget, on invented candidates and compilers."""

import dataclasses

from tests.support.invented import Invented, run


def test_where_to_repeat_takes_more_than_to_save_what_people_save_is_tried():
  # An unrolled decoder on eight H100 (tensor): what is repeated, devices exchange anew.
  deep = [Invented(208.0 - i, size, 53.0 + i, True) for i, size in enumerate((391, 459, 381, 373, 382, 371, 376))]
  saved = [Invented(363.0, 426, 6.7), Invented(293.5, 378, 11.1)]
  query = Invented(280.0, 368, 46.0, is_by_hand=True, name="query_proj")
  plan, tried = run([*saved, *deep, query], 368, baseline=681)
  assert plan.is_feasible and plan.recompute_flops == 46.0 and tried[-1] == 368


def test_where_estimates_are_misleading_what_people_save_is_tried_early():
  # An unrolled decoder on a mesh (fsdp), whose partitioning changes with what is saved.
  sizes = (430, 540), (440, 499), (460, 509), (463, 507), (480, 490), (525, 500)
  bare = [Invented(left, size, 80.0 - i, True, kin=str(i)) for i, (left, size) in enumerate(sizes)]
  products, others = Invented(629.0, 364, 6.2, is_plain=True), [Invented(700.0, 640, 5.0 + i) for i in range(3)]
  names = [Invented(603.0 - i, 347 - 3 * i, 10.0 + i, is_by_hand=True) for i in range(4)]
  plan, tried = run([*bare, products, *names, *others], 342, baseline=1798, max_rounds=12)
  assert plan.is_feasible and plan.recompute_flops == 12.0 and tried.index(364) <= 6
  # Where trials of nothing saved come to less as estimates do, it is not asked.
  in_order = [dataclasses.replace(each, compiled=500 + 2 * i) for i, each in enumerate(bare)]
  _, tried = run([*in_order, products, *names], 495, baseline=1798, max_rounds=6)
  assert 364 not in tried


def test_before_a_refusal_policies_that_save_are_tried_which_may_take_less():
  bare = [Invented(440.0 + i, 504 + i, 160.0 - i, is_bare=True, kin=f"nested {i}") for i in range(3)]
  layers = Invented(481.0, 495, 78.0, is_bare=True, is_plain=True, kin="layers")
  products = Invented(629.0, 377, 17.0, is_plain=True, kin="layers")
  plan, _ = run([*bare, layers, products], 377, max_rounds=12)
  assert plan.is_feasible and plan.recompute_flops == 17.0
  # Where all that was tried is far from the budget, it is not asked.
  plan, compiled = run([*bare, layers, products], 300, max_rounds=12)
  assert not plan.is_feasible and 377 not in compiled


def test_before_a_refusal_what_is_tried_saves_as_much_less_as_is_missing():
  bare = [Invented(440.0 + i, 504 + i, 160.0 - i, is_bare=True, kin=f"nested {i}") for i in range(3)]
  layers = Invented(481.0, 495, 78.0, is_bare=True, is_plain=True, kin="layers")
  products = Invented(629.0, 377, 17.0, is_plain=True, kin="layers")
  names = [Invented(629.0 - 7 * i, 377 - 7 * i, 16.0 + 3 * i, is_by_hand=True, kin="layers") for i in range(12)]
  plan, _ = run([*bare, layers, products, *names], 342, max_rounds=7)
  assert plan.is_feasible and plan.recompute_flops == names[5].flops
