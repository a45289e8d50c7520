"""MODeL's control edges: orders that are given away to make the lifetime ILP smaller (Steiner et al., ICML 2023).

The edges are heuristic: an order without them may need less memory. ROAM (arXiv 2310.19295) shows programs where early
updates raise the peak. So they are options, and off by default.
"""

import dataclasses

import numpy as np

from coopjax import _core
from coopjax.planners.model.graph import OrderGraph, order_graph
from coopjax.program.step_program import OUTPUT, PARAMETER, StepProgram, csr


def add_control_edges(program: StepProgram, *, updates_early: bool, generators_late: bool) -> StepProgram:
  """The program with more control edges, in a given order that respects them.

  Args:
    program: a well-formed program.
    updates_early: an op that updates a weight (reads a parameter and makes only outputs of the program, or nothing)
      runs before an anchor: walking back from the update through its producers, of the ops whose forward level just
      exceeds the update's the one farthest from the end. Gradients then die early.
    generators_late: an op that depends on nothing runs after the earliest other producer of what its readers read.

  Returns:
    A program whose orders are all orders of ``program``, or ``program`` itself without a switch. An edge that would
    close a cycle is left out.
  """
  if not (updates_early or generators_late):
    return program
  graph = order_graph(program, program.schedule)
  edges: list[tuple[int, int]] = []
  if updates_early:
    edges += _update_edges(program, graph)
  if generators_late:
    edges += _generator_edges(graph)
  successors: list[set[int]] = [set() for _ in range(graph.num_ops)]
  for op, before in enumerate(graph.predecessors):
    for predecessor in before:
      successors[predecessor].add(op)
  kept = []
  for before, after in edges:
    if before != after and not _reaches(successors, after, before):
      successors[before].add(after)
      kept.append((graph.ops[before], graph.ops[after]))
  return with_edges(program, program.schedule, kept)


def _levels(graph: OrderGraph) -> tuple[np.ndarray, np.ndarray]:
  """Ops on the longest path to each op, and from it to the end."""
  forward, reverse = np.zeros(graph.num_ops, np.int64), np.zeros(graph.num_ops, np.int64)
  for op, predecessors in enumerate(graph.predecessors):
    forward[op] = max((forward[before] + 1 for before in predecessors), default=0)
  for op in reversed(range(graph.num_ops)):
    for before in graph.predecessors[op]:
      reverse[before] = max(reverse[before], reverse[op] + 1)
  return forward, reverse


def _update_edges(program: StepProgram, graph: OrderGraph) -> list[tuple[int, int]]:
  forward, reverse = _levels(graph)
  by_level = np.lexsort((np.arange(graph.num_ops), -reverse, forward))
  edges = []
  for update in range(graph.num_ops):
    if not _is_update(program, graph.ops[update]):
      continue
    later = [op for op in by_level.tolist() if forward[op] > forward[update]]
    fan_in = list(graph.predecessors[update])
    while fan_in:
      anchor = next((op for op in later if any(graph.is_before(before, op) for before in fan_in)), None)
      if anchor is not None:
        edges.append((update, anchor))
        break
      fan_in = sorted({op for before in fan_in for op in graph.predecessors[before]})
  return edges


def _is_update(program: StepProgram, op: int) -> bool:
  outputs = program.outputs(op)
  return bool(
    (program.value_kind[program.inputs(op)] == PARAMETER).any() and (program.value_kind[outputs] == OUTPUT).all()
  )


def _generator_edges(graph: OrderGraph) -> list[tuple[int, int]]:
  forward, _ = _levels(graph)
  edges = []
  readers: list[list[int]] = [[] for _ in range(graph.num_ops)]
  for op, predecessors in enumerate(graph.predecessors):
    for before in predecessors:
      readers[before].append(op)
  for op, predecessors in enumerate(graph.predecessors):
    if not predecessors:
      others = {other for reader in readers[op] for other in graph.predecessors[reader] if graph.predecessors[other]}
      if others:
        edges.append((min(others, key=lambda other: (forward[other], other)), op))
  return edges


def _reaches(successors: list[set[int]], origin: int, target: int) -> bool:
  seen, pending = {origin}, [origin]
  while pending:
    op = pending.pop()
    if op == target:
      return True
    fresh = successors[op] - seen
    seen |= fresh
    pending.extend(fresh)
  return False


def with_edges(program: StepProgram, schedule: np.ndarray, edges: list[tuple[int, int]]) -> StepProgram:
  """The program with control edges (before, after) that close no cycle, in ``schedule`` changed where they ask."""
  rows = [program.control(op).tolist() for op in range(program.num_ops)]
  for before, after in edges:
    rows[after].append(before)
  return dataclasses.replace(program, op_control=csr(rows), schedule=_stable_order(program, schedule, edges))


def _stable_order(program: StepProgram, schedule: np.ndarray, edges: list[tuple[int, int]]) -> np.ndarray:
  """``schedule``, changed only where the edges ask for it: an op waits for what must precede it."""
  offsets, items = _core.op_predecessors(program.core)
  before_of = [items[offsets[op] : offsets[op + 1]].tolist() for op in range(program.num_ops)]
  for before, after in edges:
    before_of[after].append(before)
  order, done = [], np.zeros(program.num_ops, bool)
  for op in schedule.tolist():
    pending = [op]
    while pending:
      waiting = [before for before in before_of[pending[-1]] if not done[before]]
      if waiting:
        pending.extend(waiting)
        continue
      ready = pending.pop()
      if not done[ready]:
        done[ready] = True
        order.append(ready)
  return np.array(order, np.int32)
