"""A training step as ops, values and an order: what every planner takes.

The meaning of the fields (live ranges, in-place pairs, recomputes) is specified once, in
``xla_pass/program/step_program.h``; this is the same structure as numpy arrays, with the names and source
lines that explanations need.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from coopjax import _core

TEMPORARY, PARAMETER, CONSTANT, OUTPUT = range(4)


def csr(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
  """Lists of ids as one pair ``(offsets, items)``, int32: row ``r`` is ``items[offsets[r]:offsets[r + 1]]``."""
  offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
  return offsets, np.array([item for row in rows for item in row], np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class StepProgram:
  """Ops, values and the order a program came with.

  Lists of ids per op are CSR pairs ``(offsets, items)``: row ``r`` is ``items[offsets[r]:offsets[r + 1]]``.

  Attributes:
    op_inputs: value ids each op reads, CSR.
    op_outputs: value ids each op makes, CSR.
    op_control: op ids that must have run before each op, CSR.
    op_cost_s: modelled seconds per op, float64 ``[num_ops]``.
    op_flops: floating-point operations per op, a transcendental counting for eight, float64 ``[num_ops]``.
    op_workspace_bytes: bytes needed only while the op runs, int64 ``[num_ops]``.
    op_can_recompute: whether the op may run twice, bool ``[num_ops]``.
    value_bytes: size of each value's buffer, int64 ``[num_values]``.
    value_producer: op that makes each value, -1 for parameters and constants, int32 ``[num_values]``.
    value_kind: ``TEMPORARY``, ``PARAMETER``, ``CONSTANT`` or ``OUTPUT``, uint8 ``[num_values]``.
    value_in_place_of: value whose storage this one overwrites, or -1, int32 ``[num_values]``.
    may_share: rows (op, input value, output value), int32 ``[n, 3]``.
    schedule: the given order, each op once, int32 ``[num_ops]``.
    op_names: a name per op (an HLO instruction's, say), or empty.
    op_kinds: what each op does: a jaxpr primitive, or an HLO opcode (a fusion's most expensive one); or empty.
    op_scopes: a name-scope path per op, or empty.
    op_sources: ``file:line`` per op, or empty.
    value_types: dtype and shape per value, for people to read, or empty.
  """

  op_inputs: tuple[np.ndarray, np.ndarray]
  op_outputs: tuple[np.ndarray, np.ndarray]
  op_control: tuple[np.ndarray, np.ndarray]
  op_cost_s: np.ndarray
  op_flops: np.ndarray
  op_workspace_bytes: np.ndarray
  op_can_recompute: np.ndarray
  value_bytes: np.ndarray
  value_producer: np.ndarray
  value_kind: np.ndarray
  value_in_place_of: np.ndarray
  may_share: np.ndarray
  schedule: np.ndarray
  op_names: tuple[str, ...] = ()
  op_kinds: tuple[str, ...] = ()
  op_scopes: tuple[str, ...] = ()
  op_sources: tuple[str, ...] = ()
  value_types: tuple[str, ...] = ()

  @property
  def num_ops(self) -> int:
    return len(self.op_cost_s)

  @property
  def num_values(self) -> int:
    return len(self.value_bytes)

  def inputs(self, op: int | np.integer) -> np.ndarray:
    """Value ids that ``op`` reads."""
    offsets, items = self.op_inputs
    return items[offsets[op] : offsets[op + 1]]

  def outputs(self, op: int | np.integer) -> np.ndarray:
    """Value ids that ``op`` makes."""
    offsets, items = self.op_outputs
    return items[offsets[op] : offsets[op + 1]]

  def control(self, op: int | np.integer) -> np.ndarray:
    """Op ids that must have run before ``op``."""
    offsets, items = self.op_control
    return items[offsets[op] : offsets[op + 1]]

  @functools.cached_property
  def core(self) -> "_core.StepProgram":
    """The C++ twin (``coopjax._core.StepProgram``), made once.

    Raises:
      coopjax.InvalidProgramError: the program is malformed; the message names the first fault.
    """
    from coopjax import _core
    from coopjax.errors import InvalidProgramError

    core = _core.StepProgram(
      *self.op_inputs,
      *self.op_outputs,
      *self.op_control,
      self.op_cost_s,
      self.op_flops,
      self.op_workspace_bytes,
      self.op_can_recompute,
      self.value_bytes,
      self.value_producer,
      self.value_kind,
      self.value_in_place_of,
      self.may_share,
      self.schedule,
    )
    if fault := core.check():
      raise InvalidProgramError(fault)
    return core
