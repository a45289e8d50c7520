"""Training steps of six shapes, of any size: what a planner meets beside layer after layer.

  program = SHAPES["wide"](100_000)

chain     one op after the other
layered   blocks with skips near and far (`layered.py`)
unet      blocks at five resolutions, down and up again, each read again at the mirrored depth
wide      branches of some thirty ops side by side, all from the input, added up one by one
random    every op reads one to three earlier ones, as often from ten ops back as from a thousand
rnn       a recurrent cell unrolled, with a loss at every step
"""

from collections.abc import Callable

import numpy as np
from layered import READS_INPUTS, READS_MADE, READS_NOTHING, Forward, Layers, layered, with_backward

from coopjax.program.step_program import StepProgram

_MIB = 1 << 20
_BYTES_PER_S = 1e10
_BRANCH_OPS = 15  # forward
_NUM_KINDS = 3  # of branches


def chain(num_ops: int) -> StepProgram:
  num_forward = num_ops // 2
  rng = np.random.default_rng(0)
  kinds = rng.choice([1 / 64, 1, 1, 2, 4], 20)
  sizes = np.resize((_MIB * kinds).astype(np.int64), num_forward)
  costs = np.resize(3 * _MIB / _BYTES_PER_S * rng.uniform(0.5, 20, 20), num_forward)
  residuals = np.resize(rng.choice([READS_MADE, READS_INPUTS], 20), num_forward)
  readers = np.arange(num_forward)
  return with_backward(Forward(sizes, costs, np.zeros(num_forward, bool), residuals, readers - 1, readers))


def unet(num_ops: int) -> StepProgram:
  return layered(num_ops, Layers(near_skip=0, far_skip_every=1, num_levels=5))


def wide(num_ops: int) -> StepProgram:
  """A branch is a chain; the last of its ops adds what it came to to the sum of those before."""
  num_branches = max(1, num_ops // (2 * _BRANCH_OPS + 1))
  rng = np.random.default_rng(0)
  shape = (_NUM_KINDS, _BRANCH_OPS)
  sizes = (_MIB * rng.choice([1 / 64, 1, 1, 2, 4], shape)).astype(np.int64)
  costs = 3 * sizes / _BYTES_PER_S * rng.uniform(0.7, 1.5, shape)
  costs[:, 0] *= 20
  sizes[:, -1], costs[:, -1] = _MIB, 3 * _MIB / _BYTES_PER_S
  residuals = rng.choice([READS_MADE, READS_INPUTS], shape)
  residuals[:, -1] = READS_NOTHING
  has_weight = np.zeros(shape, bool)
  has_weight[:, 0] = True
  kind_of = np.arange(num_branches) % _NUM_KINDS
  readers = np.arange(num_branches * _BRANCH_OPS)
  sources = np.where(readers % _BRANCH_OPS == 0, -1, readers - 1)
  sums = readers[_BRANCH_OPS - 1 :: _BRANCH_OPS]
  edges = np.concatenate([np.stack([readers, sources]), np.stack([sums[1:], sums[:-1]])], axis=1)
  per_op = (table[kind_of].ravel() for table in (sizes, costs, has_weight, residuals))
  return with_backward(Forward(*per_op, *_sorted(edges)))


def random(num_ops: int) -> StepProgram:
  """Distances of reads are drawn from all orders of magnitude alike; what nobody reads goes to a near op."""
  num_forward = num_ops // 2
  rng = np.random.default_rng(0)
  sizes = (_MIB * rng.choice([1 / 64, 1, 1, 1, 2, 4], num_forward)).astype(np.int64)
  costs = 3 * sizes / _BYTES_PER_S * rng.choice([1, 1, 1, 20], num_forward)
  residuals = rng.choice([READS_NOTHING, READS_MADE, READS_INPUTS], num_forward)
  readers = np.repeat(np.arange(num_forward), rng.choice([1, 2, 3], num_forward, p=[0.5, 0.35, 0.15]))
  distances = np.exp(rng.uniform(0, np.log(readers + 1))).astype(np.int64)
  sources = readers - distances
  unread = np.setdiff1d(np.arange(num_forward - 1), sources)
  near = np.minimum(unread + rng.integers(1, 10, len(unread)), num_forward - 1)
  return with_backward(
    Forward(
      sizes,
      costs,
      np.zeros(num_forward, bool),
      residuals,
      *_sorted(np.concatenate([np.stack([readers, sources]), np.stack([near, unread])], axis=1)),
    )
  )


# Of a step: bytes and seconds over those of a state, residuals, and what is read: ops of the step, from 0, of the step
# before, below 0, or the step's own input.
_INPUT = -99
_CELL = (
  (4, 20, READS_INPUTS, (_INPUT,)),  # the input's product
  (4, 20, READS_INPUTS, (-5,)),  # the state's
  (4, 1, READS_NOTHING, (0, 1)),
  (4, 2, READS_MADE, (2,)),  # gates
  (1, 1, READS_INPUTS, (3, -7)),  # the cell
  (1, 2, READS_MADE, (4,)),
  (1, 1, READS_INPUTS, (3, 5)),  # the state
  (8, 10, READS_INPUTS, (6,)),  # the head's product
  (8, 2, READS_MADE, (7,)),
  (1 / 64, 1, READS_INPUTS, (8,)),  # the step's loss
  (1 / 64, 1, READS_NOTHING, (9, -1)),  # the sum of losses
)
_HAS_WEIGHT = (0, 1, 7)


def rnn(num_ops: int) -> StepProgram:
  """A step: products of its input and of the state before, gates, the cell, the state, a head, its loss, their sum."""
  cell = len(_CELL)
  num_steps = max(2, num_ops // (2 * cell + len(_HAS_WEIGHT)))
  shares, times, residuals, reads = zip(*_CELL, strict=True)
  sizes = (_MIB * np.array(shares)).astype(np.int64)
  costs = 3 * sizes / _BYTES_PER_S * np.array(times)
  has_weight = np.isin(np.arange(cell), _HAS_WEIGHT)
  edges = np.array([(reader, source) for reader, row in enumerate(reads) for source in row])
  steps = cell * np.arange(num_steps)[:, None]
  sources = np.where(edges[:, 1] == _INPUT, -1, np.maximum(edges[:, 1] + steps, -1))
  table = np.stack([(edges[:, 0] + steps).ravel(), sources.ravel()])
  tiled = (np.tile(row, num_steps) for row in (sizes, costs, has_weight, np.array(residuals)))
  return with_backward(Forward(*tiled, *_sorted(table)))


def _sorted(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Sources and readers of the edges (reader, source), each once, by reader."""
  readers, sources = np.unique(edges, axis=1)
  return sources, readers


SHAPES: dict[str, Callable[[int], StepProgram]] = {
  "chain": chain,
  "layered": layered,
  "unet": unet,
  "wide": wide,
  "random": random,
  "rnn": rnn,
}
