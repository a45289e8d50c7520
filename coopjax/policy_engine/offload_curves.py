"""What to offload inside a segment, and what to save besides: values in order of FLOPs spared per byte.

Lazily greedy, since what a transfer costs depends on all others under way (`offload`); without a host, `save_curves` is
exact. Weakness: a value whose saving pays only together with another one's is not found.
"""

import heapq

import numpy as np

from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.forward_graph import ForwardGraph, ForwardOp
from coopjax.policy_engine.save_curves import MIN_SHARE, CurvePoint

_MAX_CANDIDATES = 64
_MAX_POINTS = 8


class Choices:
  """What a segment keeps, one value more at a time; starts with nothing.

  Attributes:
    graph: of the region.
    repeated: what the segment repeats.
    saved_bytes: kept so far.
    residual_bytes: kept where the segment is not wrapped.
  """

  def __init__(self, graph: ForwardGraph, start: int, stop: int):
    self.graph = graph
    self.repeated = Repeated(graph, start, stop)
    self.saved_bytes = 0
    self._start, self._stop = start, stop
    self._saved: list[Value] = []
    self._bare = self.repeated.flops
    self.residual_bytes = int(graph.residual_bytes()[start:stop].sum())

  @property
  def flops(self) -> float:
    """That the segment costs beyond its first run."""
    return self.repeated.flops

  def candidates(self) -> list[int]:
    """What could be kept."""
    return _save_candidates(self.graph, self._start, self._stop, self._bare)

  def num_bytes(self, value: int, /) -> int:
    """What keeping it takes."""
    return self.graph.value_bytes[value]

  def gain(self, value: int, /) -> float:
    """FLOPs that keeping it would spare now."""
    return self.repeated.spared(value)

  def keep(self, value: int, /) -> None:
    """Keeps it."""
    self.repeated.save(value)
    self._saved.append(self.graph.name_of(value))
    self.saved_bytes += self.num_bytes(value)

  def point(self) -> CurvePoint:
    """As things stand."""
    return CurvePoint(self.saved_bytes, self.flops, True, tuple(sorted(self._saved)))


def offload_curve(choices: Choices) -> list[CurvePoint]:
  """Choices for one segment, from everything offloaded that is worth it to not wrapped at all: bytes rise, FLOPs fall.

  Lazy greedy: a candidate's gain is computed again only when it leads. About 2c gains for c candidates, each of the
  chain of ops that it spares.
  """
  bare, everything = choices.flops, choices.residual_bytes
  points = [choices.point()]
  if not bare or not everything:
    return points
  queue = [(-choices.gain(value) / choices.num_bytes(value), value, 0) for value in choices.candidates()]
  heapq.heapify(queue)
  while queue:
    _, value, num_kept = heapq.heappop(queue)
    gain, num_bytes = choices.gain(value), choices.num_bytes(value)
    if gain < MIN_SHARE * bare:
      continue
    if num_kept != len(points) - 1:
      heapq.heappush(queue, (-gain / num_bytes, value, len(points) - 1))
      continue
    choices.keep(value)
    points.append(choices.point())
  points = [point for point in points if point.saved_bytes < everything]
  kept = np.unique(np.linspace(0, len(points) - 1, _MAX_POINTS, dtype=int))
  return [*(points[i] for i in kept), CurvePoint(everything, 0.0, False, ())]


class Repeated:
  """The forward ops that a segment repeats in the backward pass, kept up to date as values are saved.

  An op is repeated while an output of its is needed; a value is needed by the backward pass, or by a repeated op.
  """

  def __init__(self, graph: ForwardGraph, start: int, stop: int):
    ops = [op for position in range(start, stop) for op in graph.ops[position]]
    self._producer = {value: op for op in ops for value in op.outputs}
    self._reasons = {value: int(value in graph.residuals) for value in self._producer}
    self._outputs = {}
    self._ops = graph.ops
    self._read: set[int] = set()
    self.flops = 0.0
    for op in reversed(ops):
      self._outputs[op] = sum(self._reasons[value] > 0 for value in op.outputs)
      if self._outputs[op]:
        self.flops += op.flops
        self._read.update(op.inputs)
        for value in self._inputs(op):
          self._reasons[value] += 1

  def _inputs(self, op: ForwardOp) -> set[int]:
    return {value for value in op.inputs if value in self._producer}

  def reads(self, value: int) -> bool:
    """Whether an op that is repeated, as long as nothing is saved, reads a value."""
    return value in self._read

  def flops_at(self, position: int) -> float:
    """FLOPs repeated of one position of the segment."""
    return sum(op.flops for op in self._ops[position] if self._outputs[op])

  def spared(self, value: int) -> float:
    """FLOPs that saving a value would spare, its ancestors' included."""
    flops, _reasons, _outputs = self._without(value)
    return flops

  def save(self, value: int) -> None:
    """Saves a value."""
    flops, reasons, outputs = self._without(value)
    self.flops -= flops
    self._reasons.update(reasons)
    self._outputs.update(outputs)

  def _without(self, value: int) -> tuple[float, dict[int, int], dict[ForwardOp, int]]:
    """What changes when nothing needs a value any more: FLOPs, reasons, needed outputs."""
    if self._reasons[value] <= 0:
      return 0.0, {}, {}
    flops, reasons, outputs = 0.0, {value: 0}, {}
    unneeded = [value]
    while unneeded:
      op = self._producer[unneeded.pop()]
      outputs[op] = outputs.get(op, self._outputs[op]) - 1
      if outputs[op]:
        continue
      flops += op.flops
      for source in self._inputs(op):
        if left := reasons.get(source, self._reasons[source]):  # 0: saved
          reasons[source] = left - 1
          if left == 1:
            unneeded.append(source)
    return flops, reasons, outputs


def _save_candidates(graph: ForwardGraph, start: int, stop: int, bare: float) -> list[int]:
  """Named values with the most FLOPs of their own equation per byte, residuals first among equals."""
  scored = []
  for value, name in enumerate(graph.named):
    if name is None or isinstance(name[1], str) or not start <= name[0] < stop or not graph.value_bytes[value]:
      continue
    flops = graph.flops[name[0]]
    if flops >= MIN_SHARE * bare:
      scored.append((-flops / graph.value_bytes[value], value not in graph.residuals, value))
  return [value for *_, value in sorted(scored)[:_MAX_CANDIDATES]]
