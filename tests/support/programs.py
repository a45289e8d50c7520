"""StepPrograms to test planners on: a builder, tiny named ones with literal peaks, and what is made of given ones."""

import dataclasses

import numpy as np

from coopjax import _core
from coopjax.program import liveness
from coopjax.program.step_program import OUTPUT, PARAMETER, TEMPORARY, StepProgram, csr


@dataclasses.dataclass
class Builder:
  """Collects ops in schedule order. Values and ops are plain ids."""

  inputs: list = dataclasses.field(default_factory=list)
  outputs: list = dataclasses.field(default_factory=list)
  control: list = dataclasses.field(default_factory=list)
  cost_s: list = dataclasses.field(default_factory=list)
  flops: list = dataclasses.field(default_factory=list)
  workspace: list = dataclasses.field(default_factory=list)
  can_recompute: list = dataclasses.field(default_factory=list)
  bytes: list = dataclasses.field(default_factory=list)
  producer: list = dataclasses.field(default_factory=list)
  kind: list = dataclasses.field(default_factory=list)
  in_place_of: list = dataclasses.field(default_factory=list)
  may_share: list = dataclasses.field(default_factory=list)

  def value(self, size: int, kind: int = PARAMETER, producer: int = -1, in_place_of: int = -1) -> int:
    """A value; by default one that exists before the program starts."""
    self.bytes.append(size)
    self.kind.append(kind)
    self.producer.append(producer)
    self.in_place_of.append(in_place_of)
    return len(self.bytes) - 1

  def op(
    self,
    inputs,
    *sizes,
    kind=TEMPORARY,
    cost_s=1.0,
    flops=1.0,
    workspace=0,
    can_recompute=True,
    control=(),
    in_place_of=-1,
    share=(),
  ):
    """An op with one output per size; returns the output's id, or a tuple of ids if there are several or none.

    ``in_place_of`` is for the first output; ``share`` lists inputs whose buffer the first output may take over.
    """
    op = len(self.cost_s)
    made = tuple(
      self.value(size, kind, op, in_place_of if position == 0 else -1) for position, size in enumerate(sizes)
    )
    self.inputs.append(list(dict.fromkeys(inputs)))
    self.outputs.append(list(made))
    self.control.append(list(control))
    self.cost_s.append(cost_s)
    self.flops.append(flops)
    self.workspace.append(workspace)
    self.can_recompute.append(can_recompute)
    self.may_share += [(op, value, made[0]) for value in share]
    return made[0] if len(made) == 1 else made

  def build(self, schedule=None) -> StepProgram:
    """The program, in the order the ops were added unless another is given."""
    return StepProgram(
      op_inputs=csr(self.inputs),
      op_outputs=csr(self.outputs),
      op_control=csr(self.control),
      op_cost_s=np.array(self.cost_s, np.float64),
      op_flops=np.array(self.flops, np.float64),
      op_workspace_bytes=np.array(self.workspace, np.int64),
      op_can_recompute=np.array(self.can_recompute, bool),
      value_bytes=np.array(self.bytes, np.int64),
      value_producer=np.array(self.producer, np.int32),
      value_kind=np.array(self.kind, np.uint8),
      value_in_place_of=np.array(self.in_place_of, np.int32),
      may_share=np.array(self.may_share, np.int32).reshape(-1, 3),
      schedule=np.arange(len(self.cost_s), dtype=np.int32) if schedule is None else np.array(schedule, np.int32),
    )


def chain() -> StepProgram:
  """x -> a (2 bytes) -> b (3) -> c (4). Live bytes 2, 2 + 3, 3 + 4."""
  b = Builder()
  a = b.op([b.value(100)], 2)
  b.op([b.op([a], 3)], 4)
  return b.build()


def diamond() -> StepProgram:
  """a (4) is made into b (6) and c (5), which d (1) reads. Live bytes 4, 4 + 6, 4 + 6 + 5, 6 + 5 + 1.

  With c first: 4, 4 + 5, 4 + 5 + 6, the same. With a made again for c: 4, 4 + 6, 6 + 4, 6 + 4 + 5.
  """
  b = Builder()
  a = b.op([b.value(100)], 4)
  b.op([b.op([a], 6), b.op([a], 5)], 1)
  return b.build()


def skip() -> StepProgram:
  """a (8, cost 3) is read by b (1) and at the end; c (5) and d (5) lie between.

  Live bytes 8, 8 + 1, 8 + 1 + 5, 8 + 5 + 5, 8 + 5 + 1. With a made again before the end: 8, 9, 1 + 5, 5 + 5, 5 + 8,
  5 + 8 + 1: 14 for a cost of 3.
  """
  b = Builder()
  a = b.op([b.value(100)], 8, cost_s=3.0)
  d = b.op([b.op([b.op([a], 1)], 5)], 5)
  b.op([a, d], 1)
  return b.build()


def in_place_pair() -> StepProgram:
  """a (8) is overwritten by w (8), which the output reads. Live bytes 8, 8, 8."""
  b = Builder()
  a = b.op([b.value(100)], 8)
  w = b.op([a], 8, in_place_of=a)
  b.op([w], 50, kind=OUTPUT, can_recompute=False)
  return b.build()


def donated_step() -> StepProgram:
  """A training step: forward f1, f2 (10 each), gradient g (10), then the weight is overwritten in place."""
  b = Builder()
  weight, x = b.value(10), b.value(5)
  f1 = b.op([x, weight], 10)
  f2 = b.op([f1], 10)
  g = b.op([f2, f1, weight], 10)
  b.op([weight, g], 10, kind=OUTPUT, in_place_of=weight, can_recompute=False)
  return b.build()


NAMED = {
  "chain": (chain, 7),
  "diamond": (diamond, 15),
  "skip": (skip, 18),
  "in_place_pair": (in_place_pair, 8),
  "donated_step": (donated_step, 30),
}


def peak_of(program: StepProgram, schedule=None) -> int:
  """The largest live bytes of a schedule, the program's own by default."""
  return int(liveness.live_bytes(program, program.schedule if schedule is None else schedule).max(initial=0))


def with_repeats(program: StepProgram, random, num_repeats: int) -> np.ndarray:
  """The program's own schedule with up to so many random repeats that are allowed."""
  schedule = program.schedule.tolist()
  for _ in range(num_repeats):
    candidate = list(schedule)
    if candidate:
      candidate.insert(random.randrange(len(candidate) + 1), random.randrange(program.num_ops))
    if not _core.check_schedule(program.core, np.array(candidate, np.int32)):
      schedule = candidate
  return np.array(schedule, np.int32)


def forward_backward(num_layers: int, size: int = 10) -> StepProgram:
  """f1 .. fn forward; back, b_i reads f_(i-1), f_i and b_(i+1). All values ``size`` bytes, all costs 1."""
  b = Builder()
  forward = [b.value(size)]
  for _ in range(num_layers):
    forward.append(b.op([forward[-1]], size))
  back = []
  for layer in range(num_layers, 0, -1):
    back = [b.op([forward[layer - 1], forward[layer], *back], size)]
  b.op(back, size, kind=OUTPUT, can_recompute=False)
  return b.build()


def unrolled(program: StepProgram, num_steps: int) -> StepProgram:
  """The program ``num_steps`` times in a row, as in an unrolled accumulation of gradients."""
  num_ops, num_values = program.num_ops, program.num_values

  def lists(csr, step: int):
    return np.concatenate([[0], *(csr[0][1:] + copy * csr[0][-1] for copy in range(num_steps))]), np.concatenate(
      [csr[1] + copy * step for copy in range(num_steps)]
    )

  def arrays(array, step: int = 0):
    return np.concatenate([np.where(array >= 0, array + copy * step, array) for copy in range(num_steps)])

  changed = {
    name: arrays(getattr(program, name))
    for name in ("op_cost_s", "op_flops", "op_workspace_bytes", "value_bytes", "value_kind")
  }
  return dataclasses.replace(
    program,
    **changed,
    op_inputs=lists(program.op_inputs, num_values),
    op_outputs=lists(program.op_outputs, num_values),
    op_control=lists(program.op_control, num_ops),
    op_can_recompute=np.tile(program.op_can_recompute, num_steps),
    value_producer=arrays(program.value_producer, num_ops),
    value_in_place_of=arrays(program.value_in_place_of, num_values),
    may_share=np.concatenate(
      [program.may_share + copy * np.array([num_ops, num_values, num_values]) for copy in range(num_steps)]
    ),
    schedule=arrays(program.schedule, num_ops),
  )
