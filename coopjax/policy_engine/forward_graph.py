"""The differentiated forward pass of a region as a graph of ops and values (`residuals` reads it off)."""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
from jax.extend import core

from coopjax.policy_engine.decisions import Value


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardOp:
  """One equation of the differentiated forward pass.

  Attributes:
    inputs: ids of values made inside the region.
    outputs: ids of values.
    flops: cost of running it again.
    made_bytes: there at once of its outputs: inside a loop, of one step.
  """

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  flops: float
  made_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardGraph:
  """The forward pass of a region, differentiated.

  Attributes:
    ops: per position, the ops that its equation became, in order.
    primitives: per position, the name of its equation's.
    value_bytes: per value id; a view has the id of its own and the bytes of what it views.
    value_root: per value id, the value whose buffer it is, -1 for a view of an input or a constant.
    value_position: per value id, the position that made it.
    named: per value id, the value that a policy saves under this id; None for all others.
    makers: per value that a policy saves, the equation that makes it, as differentiated.
    carried: from what a loop carries into its steps to what a step hands on; the ops leave this way round out.
    first_read: per value id, the first position that reads it; its own where none does.
    residuals: ids of the values made here that the backward pass reads.
    kept_roots: the residuals' buffers, without those that a fused, cheap op makes from others of them.
    crossing: rows (position that makes it, last position that reads it, bytes) of every value read by another position,
      int64 ``[num_crossing, 3]``; the region's outputs are not counted, they exist anyway.
    cotangents: those rows of it whose values have a cotangent.
    flops: per position.
  """

  ops: tuple[tuple[ForwardOp, ...], ...]
  primitives: tuple[str, ...]
  value_bytes: tuple[int, ...]
  value_root: tuple[int, ...]
  value_position: tuple[int, ...]
  named: tuple[Value | None, ...]
  makers: Mapping[Value, core.JaxprEqn]
  carried: Mapping[int, int]
  first_read: tuple[int, ...]
  residuals: frozenset[int]
  kept_roots: frozenset[int]
  crossing: np.ndarray
  cotangents: np.ndarray
  flops: tuple[float, ...]

  @property
  def num_positions(self) -> int:
    return len(self.ops)

  def name_of(self, value: int) -> Value:
    """What a policy saves under the id of a value that has a name."""
    name = self.named[value]
    assert name is not None, f"a policy can't save value {value}, which has no name"
    return name

  def is_wanted(self, value: int, stop: int) -> bool:
    """Whether a segment that makes the value, and ends before `stop`, has to make it again for the backward pass: what
    is read behind it alone is there as an input of what reads it.
    """
    return value in self.residuals and self.first_read[value] < stop

  def residual_bytes(self) -> np.ndarray:
    """Bytes of residual buffers by the position that makes them."""
    return self._at_makers(self.kept_roots)

  def stacked_bytes(self) -> np.ndarray:
    """The same of all residual buffers, those that cheap ops make, too: what a loop around stacks, one turn's share."""
    return self._at_makers({self.value_root[value] for value in self.residuals} - {-1})

  def crossed_bytes(self) -> np.ndarray:
    """Bytes that are made before each boundary between positions and read behind it, int64 ``[num_positions + 1]``."""
    return self._at_boundaries(self.crossing)

  def cotangent_bytes(self) -> np.ndarray:
    """The same of cotangents."""
    return self._at_boundaries(self.cotangents)

  def _at_makers(self, roots: Collection[int]) -> np.ndarray:
    per_position = np.zeros(self.num_positions, np.int64)
    for root in roots:
      per_position[self.value_position[root]] += self.value_bytes[root]
    return per_position

  def _at_boundaries(self, rows: np.ndarray) -> np.ndarray:
    made, read, num_bytes = rows.T
    crossed = np.zeros(self.num_positions + 1, np.int64)
    np.add.at(crossed, made + 1, num_bytes)
    np.subtract.at(crossed, read + 1, num_bytes)  # a cut at `read` is still crossed, one behind it is not
    return np.cumsum(crossed)

  def signature(self, start: int, stop: int) -> tuple:
    """Equal for segments that are the same up to a shift: their save curves are, too."""
    ops = [op for position in range(start, stop) for op in self.ops[position]]
    values = [value for op in ops for value in op.outputs]
    local = {value: i for i, value in enumerate(values)}
    return (
      tuple((op.flops, tuple(local.get(value, -1) for value in op.inputs), len(op.outputs)) for op in ops),
      tuple(
        (
          self.value_bytes[value],
          local.get(self.value_root[value], -1),
          local.get(self.carried.get(value, -1), -1),
          self.is_wanted(value, stop),
          value in self.kept_roots,
          None if (name := self.named[value]) is None else (name[0] - start, name[1]),
        )
        for value in values
      ),
    )
