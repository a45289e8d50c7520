"""What one device holds of a value: by its position, by its shape, and as the others of its position."""

import jax
import numpy as np

from coopjax.jaxpr.trace import trace
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.description import describe
from coopjax.policy_engine.shards import WHOLE, Shards


def of(*shape, dtype=np.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


def test_bytes_are_those_of_a_part():
  shards = Shards({(0, (8, 4)): 4, (1, (8, 4)): 2, (1, (8, 16)): 8}, {(8, 4): 2, (8, 16): 8})
  assert shards.num_bytes(of(8, 4), 0) == 32 and shards.num_bytes(of(8, 4), 1) == 64
  assert shards.num_bytes(of(8, 4), 5) == 64  # somewhere else: the fewest parts that a value of this shape has
  assert shards.num_bytes(of(8, 2), 1) == 32  # a rule's own: as those of its position, the fewest
  assert shards.num_bytes(of(8, 2), 5) == 64  # nothing is known
  assert WHOLE.num_bytes(of(8, 4), 0) == 128


def test_what_can_not_be_halved_is_rounded_up():
  assert Shards({(0, (3,)): 2}, {}).num_bytes(of(3), 0) == 6
  assert Shards({(0, (3,)): 8}, {}).num_bytes(of(3, dtype=np.int8), 0) == 1


def test_people_are_told_of_one_device():
  traced = trace(lambda weight, x: (jax.numpy.sin(x @ weight) ** 2).sum(), (of(16, 32), of(8, 16)))
  num_equations = len(traced.inlined.eqns)
  decisions = PolicyDecisions((Region(None, (Segment(0, num_equations, True, saved=((0, 0),)),)),))
  shards: dict[int | None, Shards] = {None: Shards({(0, (8, 32)): 4}, {(8, 32): 2}, of_work=4)}
  whole, part = ({value.op: value for value in describe(traced, decisions, at)} for at in (None, shards))
  assert part["dot_general"].decision == "saved" and part["sin"].decision == "recomputed"
  assert part["dot_general"].num_bytes == whole["dot_general"].num_bytes // 4 == 8 * 32 * 4 // 4
  assert part["sin"].num_bytes == whole["sin"].num_bytes // 2  # the fewest parts that a value of this shape has
  assert all(part[op].flops == whole[op].flops / 4 for op in whole)
