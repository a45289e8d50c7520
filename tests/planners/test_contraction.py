"""Ops of an order problem made one: the least peak of all orders stays; what may join, just within a limit, does."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from coopjax.planners.model.contraction import contracted, without_small
from coopjax.planners.model.graph import order_graph
from coopjax.program import liveness
from coopjax.program.step_program import OUTPUT
from tests.support import oracles, programs
from tests.support.programs import peak_of
from tests.support.strategies import random_programs


def groups_of(program, most_bytes: int = 0) -> list[tuple[int, ...]]:
  graph = order_graph(program, program.schedule)
  return sorted(contracted(without_small(graph, most_bytes)).members)


def least_peak_of_groups(program) -> int:
  """Over all orders of the groups."""
  smaller = contracted(order_graph(program, program.schedule))
  predecessors = [set(row) for row in smaller.graph.predecessors]
  least = [peak_of(program)]

  def extend(order, placed):
    if len(order) == len(predecessors):
      schedule = [member for group in order for member in smaller.members[group]]
      ops = np.asarray(program.schedule)[schedule]
      least.append(int(liveness.live_bytes(program, ops.astype(np.int32)).max(initial=0)))
    for group, before in enumerate(predecessors):
      if group not in placed and before <= placed:
        extend([*order, group], placed | {group})

  extend([], frozenset())
  return min(least[1:])


@settings(max_examples=60)
@given(random_programs(max_ops=7, plain=True))
def test_the_least_peak_stays(program):
  assert least_peak_of_groups(program) == oracles.least_order_peak(program)


def test_an_update_joins_its_gradient():
  # The gradient, of 40 bytes, is all that the update frees, and it makes none that take budget.
  b = programs.Builder()
  weight, x = b.value(40), b.op([], 3)
  gradient = b.op([x], 40)
  b.op([x], 3)
  b.op([weight, gradient], 40, kind=OUTPUT, in_place_of=weight, can_recompute=False)
  assert (1, 3) in groups_of(b.build())


@pytest.mark.parametrize("workspace, is_one", [(4, True), (3, False)])
def test_what_stands_higher_does_not_move_up(workspace, is_one):
  # The second op makes 4 bytes and frees 4; right after the first it stands 4 above what that leaves, which the first's
  # workspace may outweigh.
  b = programs.Builder()
  one, four = b.op([], 1, 4)
  first = b.op([one], 4, workspace=workspace)
  second = b.op([first, four], 4)
  b.op([second, b.op([first], 1)], 1)
  b.op([second], 1)
  b.op([one], 1)
  assert any({1, 2} <= set(group) for group in groups_of(b.build())) == is_one


@pytest.mark.parametrize("made, is_one", [(8, True), (7, False)])
def test_what_frees_more_than_it_makes_does_not_move_down(made, is_one):
  # An op frees 8 bytes. The op that waits for it stands higher by far, but it would hold these 8 until then.
  b = programs.Builder()
  eight, other = b.op([], 8, 1)
  value = b.op([eight], made)
  b.op([other], 1)
  b.op([value, b.op([], 50)], 200)
  assert any({1, 4} <= set(group) for group in groups_of(b.build())) == is_one


def test_small_values_are_left_out_together():
  # 1 + 2 + 3 bytes are 6: with 5, the largest of them stays, with 6 none.
  b = programs.Builder()
  ends = [b.op([], size) for size in (1, 2, 3, 50)]
  b.op(ends, 60, workspace=70)
  graph = order_graph(b.build(), b.build().schedule)
  sizes = {most: [entry.size for entry in without_small(graph, most).values] for most in (0, 5, 6)}
  assert sizes == {0: [1, 2, 3, 50, 60], 5: [3, 50, 60], 6: [50, 60]}
  assert without_small(graph, 6).workspace == graph.workspace


def test_groups_are_in_an_order_and_hold_every_op_once():
  b = programs.Builder()
  heads = [b.op([], 5) for _ in range(3)]
  for head in heads:
    b.op([b.op([head], 2)], 1)
  smaller = contracted(order_graph(b.build(), b.build().schedule))
  assert sorted(itertools.chain(*smaller.members)) == list(range(9))
  assert all(anchor in group for anchor, group in zip(smaller.anchors, smaller.members))
  assert all(before < op for op, row in enumerate(smaller.graph.predecessors) for before in row)
  # Each branch is one op: its first makes what the others only lower.
  assert smaller.graph.num_ops == 3
