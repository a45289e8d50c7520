"""StepPrograms to test planners on: tiny named ones with literal peaks, random ones, and a synthetic transformer."""

import dataclasses

import numpy as np
from hypothesis import strategies as st

from coopjax import _core
from coopjax.program import liveness
from coopjax.program.step_program import CONSTANT, OUTPUT, PARAMETER, TEMPORARY, StepProgram

_FLOPS_PER_S = 1e11
_BYTES_PER_S = 1e10


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
      op_inputs=_csr(self.inputs),
      op_outputs=_csr(self.outputs),
      op_control=_csr(self.control),
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


def _csr(rows) -> tuple[np.ndarray, np.ndarray]:
  offsets = np.cumsum([0] + [len(row) for row in rows], dtype=np.int32)
  return offsets, np.array([item for row in rows for item in row], np.int32)


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


@st.composite
def random_programs(draw, max_ops: int = 24, plain: bool = False) -> StepProgram:
  """Anything the rules allow: several or no outputs, zero sizes, workspace, pinned ops, aliases, control edges.

  ``plain`` leaves out storage tricks and pinned ops, for oracles that do not know them.
  """
  b = Builder()
  readable = [b.value(draw(st.integers(0, 9)), draw(st.sampled_from([PARAMETER, CONSTANT]))) for _ in range(2)]
  for op in range(draw(st.integers(0, max_ops))):
    inputs = draw(st.lists(st.sampled_from(readable), max_size=3, unique=True)) if readable else []
    sizes = draw(st.lists(st.integers(0, 12), min_size=plain, max_size=1 if plain else 3))
    kind = TEMPORARY if plain else draw(st.sampled_from([TEMPORARY] * 6 + [OUTPUT]))
    cost_s = float(draw(st.integers(0, 9)))
    if plain:
      made = b.op(inputs, *sizes, cost_s=cost_s)
    else:
      overwritten, share = -1, ()
      if inputs and sizes and draw(st.integers(0, 4)) == 0 and b.kind[inputs[0]] != CONSTANT:
        spoils_parameter = b.kind[inputs[0]] == PARAMETER
        if spoils_parameter == (kind == OUTPUT) and b.kind[inputs[0]] != OUTPUT:
          overwritten, sizes[0] = inputs[0], b.bytes[inputs[0]]
      elif sizes:
        share = [value for value in inputs if draw(st.booleans()) and b.bytes[value] >= sizes[0]]
      control = draw(st.lists(st.integers(0, op - 1), max_size=1)) if op else []
      made = b.op(
        inputs,
        *sizes,
        kind=kind,
        cost_s=cost_s,
        workspace=draw(st.sampled_from([0, 0, 0, 5])),
        can_recompute=draw(st.sampled_from([True] * 5 + [False])),
        control=control,
        in_place_of=overwritten,
        share=share,
      )
      if overwritten >= 0:
        readable.remove(overwritten)
    readable += [made] if isinstance(made, int) else list(made)
  return b.build()


@dataclasses.dataclass
class _Tensors:
  """Ops of a network on ``rows`` tokens in float32, with roofline costs."""

  builder: Builder

  def matmul(self, inputs, size, inner, **kwargs):
    """An output of ``size`` floats, each a sum over ``inner`` products."""
    flops = 2.0 * size * inner
    return self._op(inputs, size, flops, **kwargs)

  def pointwise(self, inputs, size, **kwargs):
    """An output of ``size`` floats."""
    return self._op(inputs, size, 2.0 * size, **kwargs)

  def _op(self, inputs, size, flops, **kwargs):
    moved = 4 * size + sum(self.builder.bytes[value] for value in inputs)
    cost_s = max(flops / _FLOPS_PER_S, moved / _BYTES_PER_S)
    return self.builder.op(inputs, 4 * size, cost_s=cost_s, flops=flops, **kwargs)


def transformer(
  num_layers: int = 12,
  width: int = 256,
  seq: int = 256,
  batch: int = 8,
  heads: int = 4,
  vocab: int = 512,
) -> StepProgram:
  """A decoder's loss and gradient, fused the way XLA:CPU fuses one: about 70 ops a layer."""
  b = Builder()
  t = _Tensors(b)
  rows = batch * seq
  wide, scores = rows * width, batch * heads * seq * seq
  weights = [
    {
      name: b.value(4 * size)
      for name, size in dict(
        qkv=3 * width * width, o=width * width, up=4 * width * width, down=4 * width * width
      ).items()
    }
    for _ in range(num_layers)
  ]
  table = b.value(4 * vocab * width)
  ids = b.value(4 * rows)
  x = t.pointwise([ids, table], wide)
  saved = []
  for w in weights:
    x, residuals = _layer_forward(t, w, x, rows, width, seq, heads, wide, scores)
    saved.append(residuals)
  logits = t.matmul([x, table], rows * vocab, width)
  largest = t.pointwise([logits], rows)
  exp = t.pointwise([logits, largest], rows * vocab)
  total = t.pointwise([exp], rows)
  t.pointwise([total, largest, logits, ids], 1, kind=OUTPUT, can_recompute=False)
  d_logits = t.pointwise([exp, total, ids], rows * vocab, share=[exp])
  t.matmul([d_logits, x], vocab * width, rows, kind=OUTPUT)
  dx = t.matmul([d_logits, table], wide, vocab)
  for w, residuals in zip(reversed(weights), reversed(saved)):
    dx = _layer_backward(t, w, residuals, dx, rows, width, seq, heads, wide, scores)
  t.pointwise([dx, ids], vocab * width, kind=OUTPUT, can_recompute=False)
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


_LAYER_FORWARD_OPS, _LAYER_BACKWARD_OPS, _HEAD_OPS = 29, 25, 8


def block_checkpoint(program: StepProgram, num_layers: int) -> np.ndarray:
  """What ``jax.checkpoint`` around every layer of :func:`transformer` runs: its forward again before its backward.

  Forward ops that the backward pass does not need are left out, as XLA's dead code elimination does.
  """
  first_backward = 1 + num_layers * _LAYER_FORWARD_OPS + _HEAD_OPS
  schedule = list(range(first_backward))
  for layer in reversed(range(num_layers)):
    start = first_backward + (num_layers - 1 - layer) * _LAYER_BACKWARD_OPS
    backward = list(range(start, start + _LAYER_BACKWARD_OPS))
    forward = range(1 + layer * _LAYER_FORWARD_OPS, 1 + (layer + 1) * _LAYER_FORWARD_OPS)
    needed, pending = set(), [value for op in backward for value in program.inputs(op)]
    while pending:
      producer = int(program.value_producer[pending.pop()])
      if producer in forward and producer not in needed:
        needed.add(producer)
        pending.extend(program.inputs(producer))
    schedule += [*sorted(needed), *backward]
  return np.array([*schedule, program.num_ops - 1], np.int32)


def _norm(t, x, rows, wide):
  mean = t.pointwise([x], rows)
  centred = t.pointwise([x, mean], wide)
  variance = t.pointwise([centred], rows)
  scale = t.pointwise([variance], rows)
  return t.pointwise([x, mean, scale], wide), (centred, scale)


def _norm_backward(t, dy, saved, dx, rows, wide):
  centred, scale = saved
  dot = t.pointwise([dy, centred, scale], rows)
  inner = t.pointwise([dy, centred, scale, dot], wide)
  mean = t.pointwise([inner], rows)
  return t.pointwise([inner, mean, dx], wide, share=[inner, dx])


def _layer_forward(t, w, x, rows, width, seq, heads, wide, scores):
  h, norm1 = _norm(t, x, rows, wide)
  qkv = t.matmul([h, w["qkv"]], 3 * wide, width)
  q, k, v = (t.pointwise([qkv], wide) for _ in range(3))
  logits = t.matmul([q, k], scores, width // heads)
  masked = t.pointwise([logits], scores, share=[logits])
  exp = t.pointwise([masked], scores)
  total = t.pointwise([exp], scores // seq)
  inverse = t.pointwise([total], scores // seq)
  p = t.pointwise([exp, inverse], scores)
  context = t.matmul([p, v], wide, seq)
  merged = t.pointwise([context], wide)
  attended = t.matmul([merged, w["o"]], wide, width)
  x2 = t.pointwise([attended, x], wide)
  h2, norm2 = _norm(t, x2, rows, wide)
  up = t.matmul([h2, w["up"]], 4 * wide, width)
  tanh = t.pointwise([up], 4 * wide)
  act = t.pointwise([up, tanh], 4 * wide)
  down = t.matmul([act, w["down"]], wide, 4 * width)
  y = t.pointwise([down, x2], wide)
  return y, dict(
    h=h,
    norm1=norm1,
    q=q,
    k=k,
    v=v,
    exp=exp,
    inverse=inverse,
    p=p,
    merged=merged,
    h2=h2,
    norm2=norm2,
    up=up,
    tanh=tanh,
    act=act,
  )


def _layer_backward(t, w, s, dy, rows, width, seq, heads, wide, scores):
  d_act = t.matmul([dy, w["down"]], 4 * wide, width)
  t.matmul([s["act"], dy], 4 * width * width, rows, kind=OUTPUT)
  d_up = t.pointwise([d_act, s["up"], s["tanh"]], 4 * wide, share=[d_act])
  t.matmul([s["h2"], d_up], 4 * width * width, rows, kind=OUTPUT)
  d_h2 = t.matmul([d_up, w["up"]], wide, 4 * width)
  dx2 = _norm_backward(t, d_h2, s["norm2"], dy, rows, wide)
  t.matmul([s["merged"], dx2], width * width, rows, kind=OUTPUT)
  d_merged = t.matmul([dx2, w["o"]], wide, width)
  d_context = t.pointwise([d_merged], wide, share=[d_merged])
  dp = t.matmul([d_context, s["v"]], scores, width // heads)
  dv = t.matmul([s["p"], d_context], wide, seq)
  dot = t.pointwise([dp, s["exp"], s["inverse"]], scores // seq)
  d_scores = t.pointwise([dp, dot, s["p"]], scores, share=[dp])
  dq = t.matmul([d_scores, s["k"]], wide, seq)
  dk = t.matmul([d_scores, s["q"]], wide, seq)
  d_qkv = t.pointwise([dq, dk, dv], 3 * wide)
  t.matmul([s["h"], d_qkv], 3 * width * width, rows, kind=OUTPUT)
  d_h = t.matmul([d_qkv, w["qkv"]], wide, 3 * width)
  return _norm_backward(t, d_h, s["norm1"], dx2, rows, wide)
