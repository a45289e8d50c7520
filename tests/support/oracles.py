"""Slow, obvious versions of what the planner core computes."""

import heapq
import itertools
import math

import numpy as np

from coopjax.program import liveness
from coopjax.program.step_program import OUTPUT, TEMPORARY, StepProgram


def live_bytes(program: StepProgram, schedule) -> list[int]:
  """Live bytes at each step, one question per value and step. O(steps^2 x values)."""
  steps = [int(op) for op in schedule]
  return [
    int(program.op_workspace_bytes[op])
    + sum(
      int(program.value_bytes[value])
      for value in range(program.num_values)
      if program.value_kind[value] == TEMPORARY and _is_live(program, steps, value, step)
    )
    for step, op in enumerate(steps)
  ]


def _is_live(program: StepProgram, steps: list[int], value: int, step: int) -> bool:
  made = [at for at in range(step + 1) if value in program.outputs(steps[at])]
  if not made:
    return False
  if made[-1] == step:
    return True
  last = _last_read(program, steps, value, made[-1])
  return last > step or (last == step and not _passes_on(program, steps, value, step))


def _last_read(program: StepProgram, steps: list[int], value: int, made: int) -> int:
  """The last step that reads the production of ``value`` at step ``made``; -1 if none does."""
  last = -1
  for step in range(made + 1, len(steps)):
    if value in program.inputs(steps[step]):
      last = step
    if value in program.outputs(steps[step]):
      break
  return last


def _passes_on(program: StepProgram, steps: list[int], value: int, step: int) -> bool:
  """Whether ``value``, read for the last time at ``step``, leaves its buffer to an output of that step."""
  op = steps[step]
  overwriters = {
    int(program.value_in_place_of[w]): int(w) for w in program.outputs(op) if program.value_in_place_of[w] >= 0
  }
  if value in overwriters:
    return True
  givers, takers = set(overwriters), set(overwriters.values())
  for at, given, taker in program.may_share.tolist():
    if at != op or given in givers or taker in takers or program.value_kind[given] != TEMPORARY:
      continue
    made = max(earlier for earlier in range(step) if given in program.outputs(steps[earlier]))
    if _last_read(program, steps, given, made) == step:
      givers.add(given)
      takers.add(taker)
      if given == value:
        return True
  return False


def cheapest_recompute(program: StepProgram, budget_bytes: int) -> float | None:
  """The least recompute cost of the program's own order under a budget, by Dijkstra over (step, values kept).

  For programs without storage tricks or pinned ops. Exponential in the number of values.

  Returns:
    Seconds above the program's own; None when the budget can't be met in this order.
  """
  order = program.schedule.tolist()
  if any(program.value_kind[value] == OUTPUT for value in range(program.num_values)):
    raise ValueError("outputs are not supported")

  def size(values) -> int:
    return sum(int(program.value_bytes[value]) for value in values)

  given = {value for value in range(program.num_values) if program.value_producer[value] < 0}
  frontier, done, count = [(0.0, 0, 0, frozenset())], set(), 0
  while frontier:
    cost, _, step, kept = heapq.heappop(frontier)
    if step == len(order):
      return cost
    if (step, kept) in done:
      continue
    done.add((step, kept))
    for value in kept:
      count += 1
      heapq.heappush(frontier, (cost, count, step, kept - {value}))
    for op in {order[step], *order[:step]}:
      inputs, outputs = set(program.inputs(op).tolist()), set(program.outputs(op).tolist())
      if inputs - given - kept or size(kept | outputs) + int(program.op_workspace_bytes[op]) > budget_bytes:
        continue
      is_next = op == order[step]
      count += 1
      heapq.heappush(
        frontier,
        (cost + (0.0 if is_next else float(program.op_cost_s[op])), count, step + is_next, frozenset(kept | outputs)),
      )
  return None


def cheapest_schedule(program: StepProgram, budget_bytes: int) -> float | None:
  """The least recompute cost of any schedule under a budget, whatever its order.

  Follows every rule of ``step_program.h``; where an input may leave its buffer to one of several outputs, or one of
  several inputs to an output, the most favourable choice counts. Exponential in ops and values.

  Returns:
    Seconds above the program's own; None when no schedule holds the budget.
  """

  def next_runs(ran):
    return [
      (op, op in ran, ran | {op}) for op in range(program.num_ops) if ran.issuperset(program.control(op).tolist())
    ]

  return _cheapest(program, budget_bytes, (frozenset(), lambda ran: len(ran) == program.num_ops), next_runs)


def cheapest_in_stages(program: StepProgram, budget_bytes: int) -> float | None:
  """The same for schedules that follow the program's own order, with repeats before a first run in that order too."""
  order = program.schedule.tolist()

  def next_runs(state):
    stage, slot = state  # ops up to `slot` have had their turn before the first run of `stage`
    repeats = [(order[at], True, (stage, at)) for at in range(slot + 1, stage)]
    return [(order[stage], False, (stage + 1, -1)), *repeats]

  return _cheapest(program, budget_bytes, ((0, -1), lambda state: state[0] == len(order)), next_runs)


def _cheapest(program: StepProgram, budget_bytes: int, ends, next_runs) -> float | None:
  """Dijkstra over (what has run, values held); ``ends`` is the start and the test for the goal."""
  temporary = frozenset(np.flatnonzero(program.value_kind == TEMPORARY).tolist())
  given = frozenset(np.flatnonzero(program.value_producer < 0).tolist())
  ops = [_Runs(program, op) for op in range(program.num_ops)]
  start, is_goal = ends
  frontier, done, count = [(0.0, 0, start, given)], set(), 0
  while frontier:
    cost, _, state, held = heapq.heappop(frontier)
    if is_goal(state):
      return cost
    if (state, held) in done:
      continue
    done.add((state, held))
    for index, is_repeat, following in next_runs(state):
      op = ops[index]
      if not op.touches <= held or (is_repeat and not op.may_repeat):
        continue
      for kept in op.choices(held, temporary, budget_bytes):
        count += 1
        heapq.heappush(frontier, (cost + op.cost_s * is_repeat, count, following, kept))
  return None


class _Runs:
  """What one op does to the set of values that are held."""

  def __init__(self, program: StepProgram, op: int):
    self.inputs, self.outputs = frozenset(program.inputs(op).tolist()), frozenset(program.outputs(op).tolist())
    self.cost_s, self.workspace = float(program.op_cost_s[op]), int(program.op_workspace_bytes[op])
    self.size = program.value_bytes.tolist()
    overwriters = {int(program.value_in_place_of[w]): w for w in self.outputs if program.value_in_place_of[w] >= 0}
    self.overwritten = frozenset(overwriters)
    self.touches = self.inputs | self.overwritten
    self.may_repeat = (
      bool(program.op_can_recompute[op])
      and all(program.value_kind[w] != OUTPUT for w in self.outputs)
      and all(program.value_kind[v] == TEMPORARY for v in self.overwritten)
    )
    self.shares = [
      (given, taker)
      for at, given, taker in program.may_share.tolist()
      if at == op
      and given not in overwriters
      and taker not in overwriters.values()
      and program.value_kind[given] == TEMPORARY
    ]

  def choices(self, held, temporary, budget_bytes):
    """What may be held after the op: any temporaries dropped before it, at it or after it, within the budget."""
    optional = sorted((held | self.outputs) & temporary - self.overwritten)
    for chosen in itertools.chain.from_iterable(
      itertools.combinations(optional, length) for length in range(len(optional) + 1)
    ):
      kept = frozenset(chosen)
      live = (kept | self.inputs | self.outputs) & temporary - self.overwritten
      size = self.workspace + sum(self.size[value] for value in live)
      if size - self._passed_on([pair for pair in self.shares if pair[0] not in kept]) <= budget_bytes:
        yield (held | self.outputs) - temporary - self.overwritten | kept

  def _passed_on(self, pairs) -> int:
    if not pairs:
      return 0
    (given, taker), rest = pairs[0], pairs[1:]
    without = [pair for pair in rest if pair[0] != given and pair[1] != taker]
    return max(self._passed_on(rest), self.size[given] + self._passed_on(without))


def least_order_peak(program: StepProgram) -> int:
  """The smallest peak of all orders without repeats, by dynamic programming over the sets of ops that have run.

  Exponential in the number of ops.
  """
  order = program.schedule.tolist()
  waits_for = [_precursors(program, op) for op in range(program.num_ops)]
  reached = {frozenset(): (0, ())}  # set of ops -> least peak, an order that has it
  for _ in order:
    extended = {}
    for ran, (peak, steps) in reached.items():
      for op in order:
        if op in ran or not waits_for[op] <= ran:
          continue
        completed = [*steps, op, *(other for other in order if other != op and other not in ran)]
        higher = max(peak, int(liveness.live_bytes(program, np.array(completed, np.int32))[len(steps)]))
        if higher < extended.get(ran | {op}, (math.inf, ()))[0]:
          extended[ran | {op}] = higher, (*steps, op)
    reached = extended
  return reached[frozenset(order)][0]


def _precursors(program: StepProgram, op: int) -> set[int]:
  """Ops that precede ``op`` in every order without repeats."""
  overwritten = [int(program.value_in_place_of[w]) for w in program.outputs(op) if program.value_in_place_of[w] >= 0]
  touched = [*program.inputs(op).tolist(), *overwritten]
  readers = [other for other in range(program.num_ops) if set(program.inputs(other).tolist()) & set(overwritten)]
  makers = [int(program.value_producer[value]) for value in touched]
  return {*makers, *program.control(op).tolist(), *readers} - {-1, op}
