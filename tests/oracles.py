"""Slow, obvious versions of what the planner core computes."""

import heapq

from coopjax.program.step_program import OUTPUT, TEMPORARY, StepProgram


def live_bytes(program: StepProgram, schedule) -> list[int]:
  """Live bytes at each step, one question per value and step. O(steps^2 x values)."""
  steps = [int(op) for op in schedule]
  return [
    int(program.op_workspace_bytes[op]) + sum(
      int(program.value_bytes[value]) for value in range(program.num_values)
      if program.value_kind[value] == TEMPORARY and _is_live(program, steps, value, step))
    for step, op in enumerate(steps)
  ]


def _is_live(program: StepProgram, steps: list[int], value: int, step: int) -> bool:
  made = [at for at in range(step + 1) if value in program.outputs(steps[at])]
  if not made:
    return False
  if made[-1] == step:
    return True
  last = _last_read(program, steps, value, made[-1])
  return last > step or last == step and not _passes_on(program, steps, value, step)


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
  overwriters = {int(program.value_in_place_of[w]): int(w) for w in program.outputs(op)
                 if program.value_in_place_of[w] >= 0}
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
      heapq.heappush(frontier, (cost + (0.0 if is_next else float(program.op_cost_s[op])), count, step + is_next,
                                frozenset(kept | outputs)))
  return None
