"""Ops at the granularity at which a compiler runs them: elementwise work disappears into what reads it.

A jaxpr spells a batch normalization out in two dozen equations, which XLA (or torch.compile) runs as three or four
kernels and whose intermediate values never exist. A planner that sees them has more to choose from than there is.
"""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

_ELEMENTWISE = frozenset(
  "abs add add_any and atan2 bitcast_convert_type cbrt ceil clamp convert_element_type cos div eq erf erf_inv erfc exp "
  "exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg nextafter not "
  "one_minus_square or pow reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic "
  "shift_right_logical sign sin sqrt square sub tan tanh xor".split()
)
_GENERATED = frozenset("broadcast_in_dim iota".split())  # an element costs nothing to make where it is read
_REDUCTIONS = frozenset("argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum".split())


@dataclasses.dataclass(eq=False)
class Op:
  """An op being built; values are indices.

  Attributes:
    kind: the primitive.
    inputs: values read, each once.
    outputs: values made.
    control: ops that run before.
    flops: floating-point operations, as `cost.equation_flops` counts.
    arithmetic_s: modelled seconds without those for its bytes (`cost.arithmetic_seconds`).
    workspace_bytes: needed while it runs.
    may_repeat: recomputing it gives the same.
    scope: name scopes.
    source: file:line.
  """

  kind: str
  inputs: list[int]
  outputs: list[int]
  control: list["Op"]
  flops: float = 0.0
  arithmetic_s: float = 0.0
  workspace_bytes: int = 0
  may_repeat: bool = True
  scope: str = ""
  source: str = ""


def is_elementwise(kind: str) -> bool:
  """True for primitives that make each element of their output from one element of each input."""
  return kind in _ELEMENTWISE


def fuse(ops: Sequence[Op], value_bytes: Sequence[int] | np.ndarray, kept: Collection[int]) -> list[Op]:
  """Merges elementwise ops into the one op that reads them, an elementwise op or a reduction.

  An op joins its reader if what it reads lives no longer for it, or is no larger than the value that is spared: a
  ReLU's mask of bytes stays a value of its own when the backward pass reads it, the floats behind it are larger.
  Ops are visited from the last to the first, so chains, and diamonds inside one group, collapse into their last op.

  Args:
    ops: in a valid order; those that absorb others are changed.
    value_bytes: size of each value.
    kept: values that have to exist (outputs) or that exist anyway (parameters, constants).

  Returns:
    The ops that remain, in the given order. O(ops + uses).
  """
  joined = {op: op for op in ops}  # to the op that absorbed it
  position = {op: index for index, op in enumerate(ops)}
  readers: dict[int, list[Op]] = {}
  for op in reversed(ops):
    if reader := _only_reader(op, kept, readers, joined):
      until = position[reader]
      prolonged = [
        value
        for value in op.inputs
        if value not in kept and all(position[joined[other]] < until for other in readers.get(value, ()))
      ]
      if sum(value_bytes[value] for value in prolonged) <= value_bytes[op.outputs[0]]:
        _absorb(reader, op)
        joined[op] = reader
    for value in op.inputs:
      readers.setdefault(value, []).append(joined[op])
  return [op for op in ops if joined[op] is op]


def _only_reader(op: Op, kept: Collection[int], readers: dict[int, list[Op]], joined: dict[Op, Op]) -> Op | None:
  """The op that could absorb `op`."""
  if not (is_elementwise(op.kind) or op.kind in _GENERATED) or op.outputs[0] in kept or op.control:
    return None
  found = {joined[reader] for reader in readers.get(op.outputs[0], ())}
  if len(found) != 1:
    return None
  reader = found.pop()
  return reader if is_elementwise(reader.kind) or reader.kind in _REDUCTIONS else None


def _absorb(reader: Op, op: Op) -> None:
  inputs = dict.fromkeys((*op.inputs, *reader.inputs))
  del inputs[op.outputs[0]]
  reader.inputs = list(inputs)
  reader.flops += op.flops
  reader.arithmetic_s += op.arithmetic_s
