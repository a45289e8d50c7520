"""What one device holds of a value: by its position, by its shape, and as the others of its position."""

import jax
import numpy as np

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
