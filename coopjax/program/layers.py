"""The layer of what no name scope tells it of: by the arguments that it is made from.

Flax Linen opens a scope for every module; Equinox, NNX and plain functions open none, but the paths of their
parameters have the layer's number ("net.blocks[3].up.weight"). An op belongs to the layer of the parameters that it
reads. One that reads none belongs to a layer of its operands: in the forward pass to the last of them, in the backward
pass, which goes the other way, to the first.

``eqx.filter_jit`` and ``nnx.jit`` hand JAX the leaves of a model as one list, and no path tells a layer
("args[0].states[0][11]"). Equal layers have equal leaves there, so the list repeats itself: a period is a layer, and is
called by what it takes of the list, "args[0].states[0][8:12]".
"""

import collections
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from coopjax.program.step_program import PARAMETER, StepProgram

_NUMBER = re.compile(r"(\d+)(['\"]?\]?)")
_ARGUMENT = re.compile(r"(?:(?:args|closure)\[\d+\])?")  # its place says nothing of a layer
_BACKWARD = "transpose("


def layers_of_arguments(paths: Sequence[str], types: Sequence[str]) -> list[str]:
  """The layer of each argument: its path down to a number, "net.blocks[3]" for one; "" where it has none.

  The number is the first that counts equals: two numbers in its place are followed by the same paths. In
  "nets[0].blocks[3].up" beside "nets[1]" that is the second. Where none does, it is the first, but for a path that ends
  there: "nets[1]" alone is no layer. The place of an argument is no such number ("args[1]").

  Args:
    paths: of all arguments.
    types: their dtypes and shapes.
  """
  after: dict[str, dict[int, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
  for path in paths:
    for number in _numbers(path):
      after[path[: number.start()]][int(number[1])].add(path[number.end() :])
  counts = {place for place, found in after.items() if len({frozenset(rest) for rest in found.values()}) < len(found)}
  layers: list[str] = [""] * len(paths)
  lists: dict[str, dict[int, int]] = collections.defaultdict(dict)
  for i, path in enumerate(paths):
    numbers = _numbers(path)
    number = next((each for each in numbers if path[: each.start()] in counts), numbers[0] if numbers else None)
    if number is None or (number.end() == len(path) and path[: number.start()] not in counts):
      continue
    layers[i] = path[: number.end()]
    if path == f"{path[: number.start()].removesuffix('[')}[{number[1]}]":  # a leaf of a list
      lists[path[: number.start()]][int(number[1])] = i
  for place, leaves in lists.items():
    known = {number: types[i] for number, i in leaves.items()}
    is_list = max(known) < 2 * len(known)  # not keys that are numbers
    for start, end in _periods([known.get(number) for number in range(max(known) + 1)] if is_list else []):
      for number in set(range(start, end)) & set(leaves):
        layers[leaves[number]] = f"{place}{start}:{end}]"
  return layers


def _numbers(path: str) -> list[re.Match[str]]:
  argument = _ARGUMENT.match(path)
  return list(_NUMBER.finditer(path, argument.end() if argument else 0))


def _periods(leaves: Sequence[str | None]) -> list[tuple[int, int]]:
  """Where a list of types repeats itself, each period of more than one leaf as ``(start, end)``; None: not known.

  Of all runs of periods the longest counts, of equally long ones that of the shortest period; before and behind it are
  looked at in the same way. O(n^2) comparisons for each run found.
  """
  number_of: dict[str | None, int] = {None: -1}
  coded = np.array([number_of.setdefault(leaf, len(number_of)) for leaf in leaves])
  found, pending = [], [(0, len(leaves))]
  while pending:
    start, end = pending.pop()
    first, covered, period = _longest_run(coded[start:end])
    if not covered:
      continue
    first += start
    if period > 1:
      found += [(at, at + period) for at in range(first, first + covered, period)]
    pending += [(start, first), (first + covered, end)]
  return found


def _longest_run(leaves: np.ndarray) -> tuple[int, int, int]:
  """Where the longest run of at least two periods begins, how many leaves its whole periods have, and the period."""
  best = 0, 0, 0
  for period in range(1, len(leaves) // 2 + 1):
    early, late = leaves[:-period], leaves[period:]
    ends = np.flatnonzero(~((early == late) | (early < 0) | (late < 0)))
    ends = np.concatenate([[-1], ends, [len(early)]])
    i = int(np.argmax(np.diff(ends)))  # of the stretches in which each leaf is as the one a period on
    covered = (int(ends[i + 1] - ends[i]) - 1 + period) // period * period
    if covered >= 2 * period and covered > best[1]:
      best = int(ends[i]) + 1, covered, period
  return best


class LayersInTurn:
  """Tells the layers of ops one after the other, as they run.

  Args:
    arguments: the layer of each argument, "" where it has none.
  """

  def __init__(self, arguments: Mapping[Hashable, str]):
    self._arguments, self._layers = set(arguments), dict(arguments)
    self._order: dict[str, int] = {}

  def tell(self, inputs: Iterable[Hashable], outputs: Iterable[Hashable], *, is_backward: bool = False) -> str:
    """The layer of the op that makes these values of those; "" where it can't be told."""
    layers = {value: layer for value in inputs if (layer := self._layers.get(value))}
    read = [layer for value, layer in layers.items() if value in self._arguments]
    ordered = sorted(
      dict.fromkeys(read or layers.values()), key=lambda layer: self._order.setdefault(layer, len(self._order))
    )
    found = "" if not ordered else ordered[0] if is_backward else ordered[-1]
    self._layers.update(dict.fromkeys(outputs, found))
    return found

  def enter(self, arguments: Iterable[tuple[Hashable, Hashable]]) -> None:
    """From here on ops run that know values by other names: an op's body its arguments, ``(inside, outside)`` each."""
    for inside, outside in arguments:
      self._layers[inside] = self._layers.get(outside, "")
      (self._arguments.add if outside in self._arguments else self._arguments.discard)(inside)


def parameters(program: StepProgram) -> list[int]:
  """The values that it is given, in its order."""
  kinds = enumerate(program.value_kind)
  return [value for value, kind in kinds if kind == PARAMETER and program.value_producer[value] < 0]


def layers_of_ops(program: StepProgram, arguments: Sequence[str]) -> list[str]:
  """The layer of each op, "" where it can't be told.

  Args:
    program: of an entry computation.
    arguments: the layers of its `parameters`.
  """
  layers, given = [""] * program.num_ops, parameters(program)
  if len(given) != len(arguments):  # tuples among them: which is which is not known
    return layers
  in_turn = LayersInTurn(dict(zip(given, arguments, strict=True)))
  for op in map(int, program.schedule):
    is_backward = _BACKWARD in program.op_scopes[op]
    layers[op] = in_turn.tell(program.inputs(op).tolist(), program.outputs(op).tolist(), is_backward=is_backward)
  return layers
