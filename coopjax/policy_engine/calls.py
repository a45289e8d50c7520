"""Where a region calls a function of the user's again: layers as they are written, whatever sizes each has.

Of a U-Net, or of a pyramid, each layer has shapes of its own, and what comes again op by op (`repeats`) may be any part
of one. People write a function, or a method, and call it for each; JAX notes who called whom for every equation. A call
starts where the function is entered: from elsewhere than the one before, or anew where it began.
"""

import collections
import dataclasses
import itertools
import types

import numpy as np
from jax.extend import core

from coopjax import compat
from coopjax.policy_engine.forward_graph import ForwardGraph

_ALIKE = 3 / 4  # of what two calls run, in both, for them to be of one kind
_MOST = 1 / 2  # of the residual bytes of a region, made in calls, for these to be its layers
_MAX_WAYS = 2

Frame = tuple[types.CodeType, int]


@dataclasses.dataclass(eq=False)
class _Call:
  """A call of a user's function.

  Attributes:
    code: of the function.
    callers: who was calling whom, outermost first.
    first: offset in its code where the first equation was made.
    last: of the equations so far.
    start: position of the first equation.
    stop: behind the last.
    ran: how often each offset was at work.
  """

  code: types.CodeType
  callers: tuple[Frame, ...]
  first: int
  last: int
  start: int
  stop: int
  ran: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)

  @property
  def place(self) -> Frame | types.CodeType:
    """Where it stands in the code; of what nobody calls, the function itself, whose loop goes round."""
    return self.callers[-1] if self.callers else self.code

  def is_left(self, callers: tuple[Frame, ...], at: int) -> bool:
    """Whether an equation that the same function makes next is of another call."""
    return callers != self.callers or self.first == at < self.last or at < self.first

  def is_apart(self, other: "_Call") -> bool:
    return self.stop <= other.start or other.stop <= self.start

  def is_alike(self, other: "_Call") -> bool:
    return (self.ran & other.ran).total() >= _ALIKE * max(self.ran.total(), other.ran.total())


def repeated_calls(jaxpr: core.Jaxpr, graph: ForwardGraph) -> list[list[tuple[int, int]]]:
  """The calls of functions that make most of what is kept, in calls that are alike.

  Args:
    jaxpr: a region.
    graph: of the region.

  Returns:
    Positions ``[start, stop)`` of the calls, in order, once for each way: starting from the function that makes the
    most, and then from what it calls, other functions join whose calls lie apart from those (an encoder's layers and a
    decoder's), and single calls at the same place in the code (of layers of several kinds, one kind may come once).
  """
  residuals = np.concatenate([[0], np.cumsum(graph.residual_bytes())])
  held = lambda calls: sum(residuals[call.stop] - residuals[call.start] for call in calls)
  functions, single = list[list[_Call]](), list[_Call]()
  for calls in _calls(jaxpr).values():
    alike = [call for call in calls if any(call.is_alike(other) for other in calls if call is not other)]
    if held(alike):
      functions.append(alike)
    single += [call for call in calls if call not in alike]
  functions.sort(key=lambda calls: (-held(calls), len(calls)))
  ways = dict[tuple[tuple[int, int], ...], None]()
  for first in functions:
    together = list(first)
    places = {call.place for call in first}
    beside = [[call] for call in single if call.place in places]
    for others in (*functions, *beside):
      if all(one.is_apart(other) for one in others for other in together):
        together += others
    if held(together) >= _MOST * residuals[-1] and len(ways) < _MAX_WAYS:
      ways[tuple(sorted((call.start, call.stop) for call in together))] = None
  return list(map(list, ways))


def calls_from(jaxpr: core.Jaxpr) -> list[tuple[int, int]]:
  """Positions ``[start, stop)`` of what a region calls directly: of a body with one layer of each kind, the layers."""
  callers = [[code for code, _ in frames] for equation in jaxpr.eqns if (frames := compat.user_calls(equation))]
  depth = sum(1 for _ in itertools.takewhile(lambda codes: len({*codes}) == 1, zip(*callers, strict=False)))
  found = [call for calls in _calls(jaxpr).values() for call in calls if len(call.callers) == depth]
  return sorted((call.start, call.stop) for call in found if all(call is each or call.is_apart(each) for each in found))


def _calls(jaxpr: core.Jaxpr) -> dict[types.CodeType, list[_Call]]:
  """Of each function, in order; recursion is a part of the outermost call."""
  calls = dict[types.CodeType, list[_Call]]()
  current = set[types.CodeType]()
  of_all = [compat.user_calls(equation) for equation in jaxpr.eqns]
  outermost = collections.Counter(frames[0][0] for frames in of_all if frames).most_common(1)
  for position, frames in enumerate(of_all):
    now = set[types.CodeType]()
    for depth, (code, at) in enumerate(frames):
      if code in now:
        continue
      now.add(code)
      callers, of_code = tuple(frames[:depth]), calls.setdefault(code, [])
      if code not in current or of_code[-1].is_left(callers, at):
        of_code.append(_Call(code, callers, at, at, position, position))
      call = of_code[-1]
      call.last, call.stop = at, position + 1
      call.ran[at] += 1
    # Of a jitted function inside, nobody knows who called it.
    current = now if frames and frames[0][0] is outermost[0][0] else current | now
  return calls
