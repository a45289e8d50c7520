"""A synthetic transformer as a StepProgram: its loss and gradient, and what `jax.checkpoint` makes of them."""

import dataclasses

import numpy as np

from coopjax.program.step_program import OUTPUT, StepProgram
from tests.support.programs import Builder

_FLOPS_PER_S = 1e11
_BYTES_PER_S = 1e10


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
