"""Layered programs of any size: a forward pass, its backward pass, skips near and far, gradients as outputs.

A layer is a short graph of cheap and expensive ops; its kind (graph, sizes, costs) is drawn once. Every forward op has
a backward op that reads what the op made or read (residuals), and expensive ops have a weight gradient too. Built by
whole arrays: a million ops take seconds.
"""

import dataclasses

import numpy as np

from coopjax.program.step_program import OUTPUT, PARAMETER, TEMPORARY, StepProgram

_WIDTH_BYTES = 1 << 20
_BYTES_PER_S = 1e10
_ROW_SHARE = 1 / 64  # of a reduction's output over the width
READS_NOTHING, READS_MADE, READS_INPUTS = range(3)  # residuals of a backward op


@dataclasses.dataclass(frozen=True)
class Layers:
  """What :func:`layered` builds.

  Attributes:
    ops_per_layer: forward ops in a layer.
    weights_per_layer: how many of them are expensive and have a weight.
    num_kinds: layers cycle through so many kinds.
    near_skip: every fourth layer is read again so many layers later; 0: none.
    far_skip_every: one layer of so many is read again at the mirrored depth, as in a U-net; 0: none.
    num_levels: sizes and costs halve so many times less one towards the middle, and double again, as in a U-net.
    is_varied: every op has a size and a cost of its own, so that no two layers are alike.
    seed: of all that is drawn.
  """

  ops_per_layer: int = 20
  weights_per_layer: int = 5
  num_kinds: int = 3
  near_skip: int = 6
  far_skip_every: int = 32
  num_levels: int = 1
  is_varied: bool = False
  seed: int = 0


def layered(num_ops: int, layers: Layers = Layers()) -> StepProgram:
  """A program of about ``num_ops`` ops, in the order forward, loss, backward."""
  num_layers = max(1, round((num_ops - 1) / (2 * layers.ops_per_layer + layers.weights_per_layer)))
  rng = np.random.default_rng(layers.seed)
  kinds = [_Kind.draw(rng, layers) for _ in range(layers.num_kinds)]
  kind_of = np.arange(num_layers) % layers.num_kinds
  num_forward = num_layers * layers.ops_per_layer
  sizes = np.stack([kind.bytes for kind in kinds])[kind_of].ravel()
  costs = np.stack([kind.cost_s for kind in kinds])[kind_of].ravel()
  if layers.num_levels > 1:
    depth = np.minimum(np.arange(num_layers), np.arange(num_layers)[::-1])
    scales = np.repeat(0.5 ** (2 * layers.num_levels * depth // (num_layers + 1)), layers.ops_per_layer)
    sizes, costs = np.maximum(64, sizes * scales).astype(np.int64), costs * scales
  if layers.is_varied:
    sizes = np.maximum(64, sizes * rng.uniform(0.6, 1.4, num_forward)).astype(np.int64)
    costs = costs * rng.uniform(0.6, 1.4, num_forward)
  has_weight = np.stack([kind.has_weight for kind in kinds])[kind_of].ravel()
  reads_made = np.stack([kind.reads_made for kind in kinds])[kind_of].ravel()
  residuals = np.where(reads_made, READS_MADE, READS_INPUTS)
  return with_backward(Forward(sizes, costs, has_weight, residuals, *_edges(kinds, kind_of, layers)))


@dataclasses.dataclass(frozen=True)
class _Kind:
  """One layer: per op its bytes, seconds, whether it has a weight, whether its gradient reads what it made (or else
  what it read), and edges (source, reader) between its ops; -1 is the layer's input.
  """

  bytes: np.ndarray
  cost_s: np.ndarray
  has_weight: np.ndarray
  reads_made: np.ndarray
  edges: np.ndarray

  @classmethod
  def draw(cls, rng: np.random.Generator, layers: Layers) -> "_Kind":
    num_ops = layers.ops_per_layer
    has_weight = np.zeros(num_ops, bool)
    has_weight[rng.choice(np.arange(num_ops - 1), layers.weights_per_layer, replace=False)] = True
    shares = rng.choice([_ROW_SHARE, 1, 1, 1, 2, 4], num_ops)
    shares[has_weight] = rng.choice([1, 3, 4], layers.weights_per_layer)
    shares[-1] = 1
    sizes = (_WIDTH_BYTES * shares).astype(np.int64)
    cost_s = (
      3 * sizes / _BYTES_PER_S * np.where(has_weight, rng.uniform(10, 40, num_ops), rng.uniform(0.7, 1.5, num_ops))
    )
    edges = [(op - 1, op) for op in range(num_ops)] + [(-1, num_ops - 1)]
    for op in range(2, num_ops - 1):
      if rng.random() < 0.4:
        edges.append((int(rng.integers(max(-1, op - 8), op - 1)), op))
    return cls(sizes, np.maximum(cost_s, 1e-6), has_weight, rng.random(num_ops) < 0.5, np.unique(edges, axis=0))


@dataclasses.dataclass(frozen=True)
class Forward:
  """The forward pass: per op as in :class:`_Kind`, and per read the ops (source, reader).

  Attributes:
    residuals: per op what its backward op reads: `READS_NOTHING`, `READS_MADE` or `READS_INPUTS`.
    sources: -1 is the program's input.
    readers: ascending; every op with a weight reads something.
  """

  bytes: np.ndarray
  cost_s: np.ndarray
  has_weight: np.ndarray
  residuals: np.ndarray
  sources: np.ndarray
  readers: np.ndarray


def _edges(kinds: list[_Kind], kind_of: np.ndarray, layers: Layers) -> tuple[np.ndarray, np.ndarray]:
  """Forward ops (source, reader) of every read; source -1 is the program's input. Sorted by reader, each once."""
  num_layers, num_ops = len(kind_of), layers.ops_per_layer
  rows = []
  for index, kind in enumerate(kinds):
    first_op = np.flatnonzero(kind_of == index)[:, None] * num_ops
    rows.append(np.stack([kind.edges[:, side] + first_op for side in (0, 1)], axis=-1).reshape(-1, 2))
  for apart in [layers.near_skip] if layers.near_skip else []:
    layer = np.arange(0, num_layers - apart, 4)
    rows.append(np.stack([layer * num_ops + num_ops - 1, (layer + apart) * num_ops], axis=-1))
  if layers.far_skip_every:
    layer = np.arange(0, (num_layers - 1) // 2, layers.far_skip_every)
    rows.append(np.stack([layer * num_ops + num_ops - 1, (num_layers - 1 - layer) * num_ops], axis=-1))
  edges = np.unique(np.concatenate(rows)[:, ::-1], axis=0)
  return edges[:, 1], edges[:, 0]


def with_backward(forward: Forward) -> StepProgram:
  """A forward pass, a loss of what its last op made, and the backward pass.

  Value ids: what forward op f makes is f; then one cotangent per edge, weights, their gradients, the input, the loss.
  """
  sizes, costs, has_weight = forward.bytes, forward.cost_s, forward.has_weight
  num_forward, num_edges, weighted = len(sizes), len(forward.sources) + 1, np.flatnonzero(has_weight)
  loss = num_forward
  sources, readers = (
    np.append(forward.sources, loss - 1),
    np.append(forward.readers, loss),
  )  # the loss reads the last op
  cotangents = num_forward + np.arange(num_edges)
  weights = num_forward + num_edges + np.arange(len(weighted))
  gradients = weights + len(weighted)
  given = num_forward + num_edges + 2 * len(weighted)
  loss_value = given + 1
  backward, weight_op = _backward_ops(has_weight)
  backward = np.append(backward, loss)
  num_ops = num_forward + 1 + num_forward + len(weighted)

  source_value = np.where(sources < 0, given, sources)
  takes_part = sources >= 0
  reads_inputs = np.append(forward.residuals == READS_INPUTS, False)[readers]
  weight_edges = takes_part & np.append(has_weight, False)[sources]
  first_edge = np.full(num_forward, -1)
  first_edge[readers[:-1][::-1]] = np.arange(num_edges - 1)[::-1]  # by which an expensive op reads its matrix
  made = np.flatnonzero(forward.residuals == READS_MADE)
  inputs = _csr(
    num_ops,
    [
      (readers, source_value),
      (weighted, weights),
      (backward[sources[takes_part]], cotangents[takes_part]),
      (backward[readers[reads_inputs]], source_value[reads_inputs]),
      (backward[made], made),
      (backward[weighted], weights),
      (weight_op[sources[weight_edges]], cotangents[weight_edges]),
      (weight_op[weighted], source_value[first_edge[weighted]]),
    ],
  )
  outputs = _csr(
    num_ops,
    [
      (np.arange(num_forward), np.arange(num_forward)),
      (backward[readers], cotangents),
      (weight_op[weighted], gradients),
      (np.array([loss]), np.array([loss_value])),
    ],
  )
  weight_bytes = np.full(len(weighted), _WIDTH_BYTES, np.int64)
  kind = np.full(loss_value + 1, TEMPORARY, np.uint8)
  kind[weights], kind[given], kind[gradients], kind[loss_value] = PARAMETER, PARAMETER, OUTPUT, OUTPUT
  kind[cotangents[~takes_part]] = OUTPUT
  value_bytes = np.concatenate(
    [sizes, np.append(sizes, _WIDTH_BYTES)[sources], weight_bytes, weight_bytes, [_WIDTH_BYTES, 4]]
  ).astype(np.int64)
  cost_s = np.zeros(num_ops)
  cost_s[:num_forward], cost_s[loss], cost_s[backward[:-1]], cost_s[weight_op[weighted]] = (
    costs,
    1e-6,
    costs,
    costs[weighted],
  )
  producer = np.full(len(kind), -1, np.int32)
  producer[outputs[1]] = np.repeat(np.arange(num_ops), np.diff(outputs[0]))
  rows = _first_cotangents(sources, readers, backward, cotangents)
  given_value, taker = rows[:, 1], rows[:, 2]
  fits = (given_value >= 0) & (value_bytes[given_value] == value_bytes[taker]) & (kind[taker] == TEMPORARY)
  return StepProgram(
    op_inputs=inputs,
    op_outputs=outputs,
    op_control=(np.zeros(num_ops + 1, np.int32), np.zeros(0, np.int32)),
    op_cost_s=cost_s,
    op_flops=cost_s * 1e11,
    op_workspace_bytes=np.zeros(num_ops, np.int64),
    op_can_recompute=np.arange(num_ops) != loss,
    value_bytes=value_bytes,
    value_producer=producer,
    value_kind=kind,
    value_in_place_of=np.full(len(kind), -1, np.int32),
    may_share=rows[fits].astype(np.int32),
    schedule=np.arange(num_ops, dtype=np.int32),
  )


def _backward_ops(has_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Per forward op its backward op, and its weight gradient's (where it has one): in reverse, the latter first."""
  num_forward = len(has_weight)
  ops_taken = np.cumsum(1 + has_weight[::-1])[::-1]
  backward = num_forward + ops_taken
  return backward, backward - 1


def _csr(num_rows: int, pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
  """Rows of ascending ids, each once, from (row, id) pairs."""
  rows, ids = (np.concatenate(side).astype(np.int64) for side in zip(*pairs))
  keys = np.unique(rows << 32 | ids)
  offsets = np.searchsorted(keys >> 32, np.arange(num_rows + 1))
  return offsets.astype(np.int32), (keys & 0xFFFFFFFF).astype(np.int32)


def _first_cotangents(sources, readers, backward, cotangents) -> np.ndarray:
  """Rows (backward op, the first cotangent it reads or -1, the first one it makes): one may leave its buffer to the
  other.
  """
  takes_part = sources >= 0
  first_read = np.full(len(backward), -1)
  first_read[sources[takes_part][::-1]] = cotangents[takes_part][::-1]
  ops, first = np.unique(readers[:-1], return_index=True)
  return np.stack([backward[ops], first_read[ops], cotangents[first]], axis=-1)
