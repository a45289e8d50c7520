"""What XLA made of a function and its gradient, by the jaxpr equations that it came from.

One compile of the tagged function gives the scheduled program: which values have memory after fusion, how much with
layout and padding, when they are live and where they lie. Tags lead from each of its ops back to a position in the
function's jaxpr (`tags`). A residual is a temporary that a forward op makes and a backward op reads; what XLA fuses
away is none, so it costs nothing to recompute and frees nothing.

Coop's rule over XLA's own offsets (``xla_pass/planners/coop/window_planner.h``) evicts residuals from this very program
until a limit holds; what is left of them, by position, is one start for the policy engine. The other is the ladder of
saved values (`candidates`), on the same bytes. Compared at equal estimated bytes, the ladder mostly repeats fewer
FLOPs: the rule looks at the past of a value, a ladder knows the whole backward pass.

Known weaknesses: a residual that a fusion makes together with others is one position's; where XLA keeps a fused value
in place of the one that JAX would, names are chosen by JAX's graph; what is inside a scan's body is not looked at.
"""

import dataclasses
import functools
from collections.abc import Collection

import jax
import numpy as np

from coopjax import _core, compat
from coopjax.errors import InvalidProgramError
from coopjax.jaxpr.inline import inline_jits
from coopjax.jaxpr.tags import parse_tag, tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.program import liveness
from coopjax.program.step_program import OUTPUT, TEMPORARY, StepProgram
from coopjax.xla.buffer_assignment import BufferAssignment, value_offsets
from coopjax.xla.compile import OversizedProgram, module_of
from coopjax.xla.module import parse_module, predict_memory, read_step_program

_OFFSETS_WITHIN = 0.1  # of the temporaries: offsets of our own packing that is off by more are not XLA's


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledProfile:
  """A compiled function with its gradient.

  Attributes:
    program: the scheduled module.
    offsets: of its values among the temporaries, int64 ``[num_values]``; -1 where they have none.
    op_position: the equation of `TracedFn.inlined` that each op came from, int32 ``[num_ops]``; -1 for none.
    op_is_backward: whether the op belongs to the transposed pass, bool ``[num_ops]``.
    num_positions: equations of `TracedFn.inlined`.
    temp_bytes: compiled temporaries.
    moved: stacks of loops of the forward pass that XLA lays out anew of its own accord, by their copies.
  """

  program: StepProgram
  offsets: np.ndarray
  op_position: np.ndarray
  op_is_backward: np.ndarray
  num_positions: int
  temp_bytes: int
  moved: dict[int, int] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def residuals(self) -> np.ndarray:
    """Ids of the values that the forward pass keeps for the backward pass, int32."""
    program = self.program
    is_read = np.zeros(program.num_values, bool)
    for op in np.flatnonzero(self.op_is_backward):
      is_read[program.inputs(int(op))] = True
    producer = program.value_producer
    is_made = (program.value_kind == TEMPORARY) & (producer >= 0)
    is_forward = is_made & ~self.op_is_backward[producer] & (self.op_position[producer] >= 0)
    return np.flatnonzero(is_read & is_forward).astype(np.int32)

  @functools.cached_property
  def residual_bytes(self) -> np.ndarray:
    """Bytes of residuals by the position that makes them, int64 ``[num_positions]``."""
    return self._by_position(self.residuals)

  def kept_bytes(self, limit_bytes: float) -> np.ndarray | None:
    """`residual_bytes` less what Coop's windows evict until live bytes hold a limit; None where they can't."""
    found = _core.plan_windows(self.program.core, self.program.schedule, self.offsets, int(limit_bytes))
    if not found["is_feasible"]:
      return None
    runs = np.bincount(found["schedule"], minlength=self.program.num_ops)
    return self._by_position(self.residuals[runs[self.program.value_producer[self.residuals]] == 1])

  @functools.cached_property
  def slack_bytes(self) -> int:
    """By how much `inside_bytes` of everything exceeds the temporaries: residuals that lie in free output buffers."""
    return max(0, self.inside_bytes(0, self.num_positions) - self.temp_bytes)

  @property
  def explained(self) -> float:
    """The share of the temporaries that equations account for, about 1 but where copies in other layouts prevail."""
    return self.inside_bytes(0, self.num_positions) / max(self.temp_bytes, 1)

  @functools.cached_property
  def _transient(self) -> np.ndarray:
    """Live bytes at each step without residuals, int64 ``[steps]``.

    What XLA puts into output buffers is not counted, nor what belongs to no equation: copies of parameters in other
    layouts, say, made long before they are read, which checkpoints put in another place.
    """
    producer = self.program.value_producer
    is_counted = (self.offsets >= 0) & (producer >= 0) & (self.op_position[producer] >= 0)
    is_residual = np.zeros(self.program.num_values, bool)
    is_residual[self.residuals] = True
    for copy, value in reversed(self.moved.items()):
      is_residual[value] |= is_residual[copy]  # the same bytes, until they are copied
    # What a stack of residuals starts as has its memory already.
    for value in np.argsort(self.program.value_producer, kind="stable")[::-1]:
      before = self.program.value_in_place_of[value]
      if is_residual[value] and before >= 0:
        is_residual[before] = True
    kind = np.where(is_residual | ~is_counted, OUTPUT, self.program.value_kind).astype(np.uint8)
    return liveness.live_bytes(dataclasses.replace(self.program, value_kind=kind), self.program.schedule)

  @functools.cached_property
  def _residual_ranges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each residual: position, bytes, first step and end."""
    program = self.program
    values, starts, ends = liveness.live_ranges(program, program.schedule)
    first = np.zeros(program.num_values, np.int64)
    first[values] = starts
    for copy, value in self.moved.items():
      if value not in self.residuals:
        first[copy] = first[value]
    chosen = np.isin(values, self.residuals)
    values = values[chosen]
    position = self.op_position[program.value_producer[values]]
    return position, program.value_bytes[values], first[values], ends[chosen]

  @functools.cached_property
  def _reached(self) -> np.ndarray:
    """The position that the backward pass has come to where it runs an op, else that of the op, int32 ``[num_ops]``.

    Devices exchange the gradients of many layers in one op, which XLA gives the name of one of these.
    """
    program, reached = self.program, self.op_position.copy()
    for op in map(int, program.schedule):
      if self.op_is_backward[op]:
        makers = program.value_producer[program.inputs(op)]
        before = reached[makers[(makers >= 0) & self.op_is_backward[makers]]]
        reached[op] = min([reached[op], *before[before >= 0]])
    return reached

  def inside_bytes(self, start: int, stop: int, left_out: Collection[int] = ()) -> int:
    """The most bytes live while an op of positions ``[start, stop)`` runs, residuals of other positions not counted.

    Args:
      start: first position.
      stop: behind the last.
      left_out: positions whose residuals are not counted either.
    """
    position, num_bytes, starts, ends = self._residual_ranges
    chosen = (start <= position) & (position < stop) & ~np.isin(position, list(left_out))
    change = np.zeros(self.program.num_ops + 1, np.int64)
    np.add.at(change, starts[chosen], num_bytes[chosen])
    np.subtract.at(change, ends[chosen], num_bytes[chosen])
    at = self._reached[self.program.schedule]
    return int((np.cumsum(change[:-1]) + self._transient)[(start <= at) & (at < stop)].max(initial=0))

  def _by_position(self, values: np.ndarray) -> np.ndarray:
    positions = self.op_position[self.program.value_producer[values]]
    return np.bincount(positions, self.program.value_bytes[values], self.num_positions).astype(np.int64)


def profile_of(traced: TracedFn, compiled: jax.stages.Compiled | OversizedProgram) -> CompiledProfile | None:
  """What a compile says of the function's values, by the equations that make them.

  Offsets are those of XLA's buffer assignment where the backend shows it (CPU), else of our own packing.

  Args:
    traced: the function.
    compiled: from it with its gradient, ``fn_and_gradient(traced, tagged_fn(traced))``.

  Returns:
    The profile; None for a module whose memory we don't understand.
  """
  stats = compiled.memory_analysis()
  assert stats is not None  # each backend whose modules we read has one
  return profile_of_module(
    traced, module_of(compiled), stats.temp_size_in_bytes, getattr(stats, "serialized_buffer_assignment_proto", b"")
  )


def profile_of_module(
  traced: TracedFn, module_bytes: bytes, temp_bytes: int | None = None, assignment: bytes = b""
) -> CompiledProfile | None:
  """As `profile_of`, from a scheduled module, with XLA's temporaries and buffer assignment as far as they are known."""
  try:
    module = parse_module(module_bytes)
    program, op_instruction_ids = read_step_program(module)
    heap = BufferAssignment.from_bytes(assignment) if assignment else predict_memory(module)
  except InvalidProgramError:
    return None
  temp_bytes = heap.temp_bytes if temp_bytes is None else temp_bytes
  if abs(heap.temp_bytes - temp_bytes) > _OFFSETS_WITHIN * temp_bytes:
    return None
  return read_profile(traced, program, value_offsets(program, op_instruction_ids, heap), temp_bytes)


def read_profile(traced: TracedFn, program: StepProgram, offsets: np.ndarray, temp_bytes: int) -> CompiledProfile:
  """The profile of a function from what was compiled of it.

  Args:
    traced: the function.
    program: the scheduled module of it with its gradient, compiled from ``tagged_fn(traced)``.
    offsets: of its values among the temporaries, -1 for none.
    temp_bytes: compiled temporaries.
  """
  position_of = _positions(traced)
  tags = [parse_tag(scope) for scope in program.op_scopes]
  op_position = np.array([-1 if tag is None else position_of[tag.equation_id] for tag in tags], np.int32)
  is_backward = np.array([tag is not None and tag.is_backward for tag in tags], bool)
  moved = _moved(program, op_position, is_backward)
  for copy, value in moved.items():
    op_position[program.value_producer[copy]] = op_position[program.value_producer[value]]
  _tell_untagged(program, op_position, is_backward)
  return CompiledProfile(program, offsets, op_position, is_backward, len(traced.inlined.eqns), temp_bytes, moved)


def _tell_untagged(program: StepProgram, op_position: np.ndarray, is_backward: np.ndarray) -> None:
  """Sets the position, and the pass, of ops that XLA made without a name, by those of the ops that made their inputs:
  the dots of an attention, say, in its own library's form. What is only read in the backward pass is of it, but for
  what is made while the forward pass goes on, and kept: a residual in another layout.
  """
  is_tagged = op_position >= 0
  untagged = [op for op in map(int, program.schedule) if not is_tagged[op]]
  goes_on = np.zeros(program.num_ops, bool)  # in the forward pass
  step = np.empty(program.num_ops, np.int64)
  step[program.schedule] = np.arange(program.num_ops)
  first_read = np.full(program.num_ops, program.num_ops, np.int64)  # of what an op makes, the step
  for op in range(program.num_ops):
    makers = program.value_producer[program.inputs(op)]
    makers = makers[makers >= 0]
    goes_on[makers] |= is_tagged[op] and not is_backward[op]
    first_read[makers] = np.minimum(first_read[makers], step[op])
  num_forward = np.cumsum((is_tagged & ~is_backward)[program.schedule])  # up to each step, which is counted
  is_kept = num_forward[step] < num_forward[np.minimum(first_read, program.num_ops - 1)]
  for op in untagged:
    makers = program.value_producer[program.inputs(op)]
    makers = makers[(makers >= 0) & (op_position[makers] >= 0)]
    if not makers.size:
      continue
    later = makers[is_backward[makers]]
    op_position[op] = op_position[later].min() if later.size else op_position[makers].max()
    is_backward[op] = later.size > 0 or not (goes_on[op] or is_kept[op])


def _moved(program: StepProgram, op_position: np.ndarray, is_backward: np.ndarray) -> dict[int, int]:
  """As of `CompiledProfile`: XLA:GPU transposes what a loop has stacked between the loop and that of its backward
  pass, by an op that is of no equation.
  """
  is_source = (program.value_kind == TEMPORARY) & (program.value_producer >= 0)
  is_loop = np.array([kind == "while" for kind in program.op_kinds] or [False] * program.num_ops, bool)
  is_source &= (is_loop & ~is_backward & (op_position >= 0))[program.value_producer]
  found: dict[int, int] = {}
  for op in map(int, program.schedule):
    inputs, outputs = program.inputs(op), program.outputs(op)
    if op_position[op] >= 0 or len(inputs) != 1 or len(outputs) != 1:
      continue
    value, copy = int(inputs[0]), int(outputs[0])
    if is_source[value] and program.value_bytes[value] == program.value_bytes[copy]:
      found[copy], is_source[copy] = value, True
  return found


def _positions(traced: TracedFn) -> list[int]:
  """Per id of `tag_jaxpr`, the equation of `TracedFn.inlined` that it is or stands in; -1 for none."""
  tagged, table = tag_jaxpr(traced.jaxpr)
  at: dict[int, int] = {}
  for position, equation in enumerate(inline_jits(tagged).eqns):
    tag = parse_tag(compat.name_scopes(equation))
    assert tag is not None  # `tag_jaxpr` leaves no equation out
    at[tag.equation_id] = position
  positions: list[int] = []
  for info in table:  # parents first
    positions.append(at.get(info.id, -1 if info.parent_id is None else positions[info.parent_id]))
  return positions
