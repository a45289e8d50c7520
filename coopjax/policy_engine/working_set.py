"""What is held while one turn is differentiated, beside what it saved: estimated, so that candidates can be told apart.

The backward pass of a segment goes through its positions in reverse. What it reads there and was not saved is made
again when it is first wanted, and with it all that lies between it and saved values; residuals among that are held
until the position that made them is differentiated. So a value saved in the middle keeps what is made again before it
from being held while the part behind it is differentiated. Beside residuals there are cotangents, one for each value
that crosses the position, and what the position itself makes.

XLA orders a turn by itself, fuses and splits: compiles say how far the estimate is off, and it ranks. The idea is that
of live ranges between checkpoints, Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section 3.
"""

from collections.abc import Collection

import numpy as np

from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.inside import parts


class WorkingSets:
  """Of one region, for any saved values.

  Attributes:
    graph: of the region.
  """

  def __init__(self, graph: ForwardGraph):
    self.graph = graph
    self._peaks: dict[tuple[int, int, frozenset[Value]], int] = {}
    self._cotangents = graph.cotangent_bytes()
    root = graph.value_root
    self._last_read = list(graph.value_position)  # per root
    self._made = np.zeros(graph.num_positions, np.int64)
    self._roots: list[list[tuple[list[int], list[int]]]] = []  # per position, the last op first: of outputs, of inputs
    for position, ops in enumerate(graph.ops):
      self._roots.append([])
      for op in reversed(ops):
        outputs, inputs = ([*{root[value] for value in values} - {-1}] for values in (op.outputs, op.inputs))
        self._roots[-1].append((outputs, inputs))
        for each in inputs:
          self._last_read[each] = max(self._last_read[each], position)
        self._made[position] = max(self._made[position], op.made_bytes)
    self._root_of = {
      part: root[value] for value, name in enumerate(graph.named) if name is not None for part in parts(name)
    }

  def peak_bytes(self, start: int, stop: int, saved: Collection[Value]) -> int:
    """Most bytes held at once while the segment ``[start, stop)`` is made again and differentiated."""
    key = start, stop, frozenset(saved)
    if key not in self._peaks:
      self._peaks[key] = self._peak_bytes(*key)
    return self._peaks[key]

  def plain_bytes(self, start: int, stop: int) -> int:
    """The same of a segment that is not made again: its residuals are there already."""
    return int(self._cotangents[start:stop].max(initial=0))

  def _peak_bytes(self, start: int, stop: int, saved: Collection[Value]) -> int:
    graph, saved_roots = self.graph, {self._root_of[value] for value in saved}
    wanted_at: dict[int, int] = {}  # per root made in the segment: the first position, from behind, that wants it
    for root in graph.kept_roots:
      if start <= graph.value_position[root] < stop:
        wanted_at[root] = min(self._last_read[root], stop - 1)
    for position in range(stop - 1, start - 1, -1):
      for outputs, inputs in self._roots[position]:
        at = -1
        for root in outputs:
          if root not in saved_roots and wanted_at.get(root, -1) > at:
            at = wanted_at[root]
        if at < 0:
          continue
        for source in inputs:
          if graph.value_position[source] >= start and wanted_at.get(source, -1) < at:
            wanted_at[source] = at
    held = np.zeros(stop - start + 1, np.int64)
    for root in graph.kept_roots:
      if start <= (made := graph.value_position[root]) < stop:
        until = self._last_read[root] if root in saved_roots else wanted_at[root]
        held[made - start] += graph.value_bytes[root]
        held[min(until, stop - 1) - start + 1] -= graph.value_bytes[root]
    return int((np.cumsum(held)[:-1] + self._cotangents[start:stop] + self._made[start:stop]).max())
