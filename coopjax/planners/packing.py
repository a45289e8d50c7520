"""Offsets for buffers whose live ranges are fixed, and for the values of a schedule.

A heap can't be smaller than the bytes that are live together; what it has above them is fragmentation. Three packers,
all in ``xla_pass/packing/``:

* ``best_fit``: what XLA does for temporaries: best fit by falling size, and again by falling duration, the smaller
  heap.
* ``first_fit``: the same with the lowest gap instead of the tightest.
* ``search``: the greedy ones in all orders, then branch and bound over canonical packings (M. D. Moffitt, "MiniMalloc",
  ASPLOS 2023), in short rounds of many orders, with and without buffers of one lifetime stacked, with tiny buffers
  packed apart where they are in the way, and annealing over the order of placement (A. Imanishi and Z. Xu, ISMM 2024).
  It stops at fragmentation 0.

The greedy packers take O(n sqrt n) set operations at worst: 100k buffers in seconds. The search is bounded by an effort
that is counted, so the same input gives the same packing. Weakness: components with more
than six million pairs of overlapping buffers are left to the greedy packers.
"""

import csv
import dataclasses
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch

METHODS = ("best_fit", "first_fit", "search")
ORDERS = ("size", "duration", "area", "lower", "pressure")
STATUSES = ("optimal", "feasible", "infeasible", "effort_spent")
EFFORT = 2_000_000_000
_COLUMNS = ("id", "lower", "upper", "size")
_TIMES = np.iinfo(np.int32)
_MOST_BYTES = 2**60


@dataclasses.dataclass(frozen=True, eq=False)
class Packing:
  """Where buffers lie.

  Attributes:
    offsets: of each buffer, bytes, int64 ``[n]``.
    heap_bytes: highest used address.
    peak_live_bytes: most bytes live at any time.
    lower_bound_bytes: below it no heap exists: the peak with offsets aligned, or what the search proved.
    status: ``optimal``: no smaller heap exists; ``feasible``: valid and within the capacity if there is one, nothing
      proven; ``infeasible``: no packing within the capacity exists (this one exceeds it); ``effort_spent``:
      the search ended without a proof, or above the capacity.
    seconds: how long it took.
    effort: elementary steps that the search took.
  """

  offsets: np.ndarray
  heap_bytes: int
  peak_live_bytes: int
  lower_bound_bytes: int
  status: str
  seconds: float
  effort: int

  @property
  def fragmentation(self) -> float:
    """Share of the heap above the peak of live bytes."""
    return (self.heap_bytes - self.peak_live_bytes) / self.heap_bytes if self.heap_bytes else 0.0


def pack(
  lower: ArrayLike,
  upper: ArrayLike,
  sizes: ArrayLike,
  *,
  alignment: int = 1,
  capacity: int | None = None,
  fixed_offsets: ArrayLike | None = None,
  same_offset_as: ArrayLike | None = None,
  method: str = "search",
  order: str | None = None,
  effort: int = EFFORT,
) -> Packing:
  """Gives every buffer an offset, such that no two that live at the same time share a byte.

  Args:
    lower: time from which each buffer lives, ints ``[n]``.
    upper: time at which each is dead again, ints ``[n]``, above ``lower``.
    sizes: bytes, ints ``[n]``.
    alignment: offsets are multiples of it, bytes.
    capacity: bytes to stay within; the search then stops at the first packing that does.
    fixed_offsets: where buffers must lie, -1 where they may lie anywhere, ints ``[n]``.
    same_offset_as: an earlier buffer at whose offset a buffer lies, or -1, ints ``[n]``; such buffers may overlap.
    method: ``best_fit``, ``first_fit`` or ``search``.
    order: for the greedy methods, who is placed first: the large (``size``), the long-lived (``duration``), those of
      the largest bytes times time (``area``), those that live first (``lower``: what an eager allocator does) or those
      that see the most live bytes (``pressure``). None: by size and by duration, the smaller heap.
    effort: elementary steps that the search may take (looks at a conflicting buffer).

  Returns:
    The packing.

  Raises:
    ValueError: arrays that do not fit together, an empty lifetime, a negative size or another malformed buffer; the
      message names the first.

  Example:
    >>> pack([0, 3, 0], [3, 9, 9], [4, 4, 4]).heap_bytes
    8
  """
  if method not in METHODS:
    raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
  if order is not None and (method == "search" or order not in ORDERS):
    raise ValueError(f"order {order!r} with method {method!r}; greedy methods take {', '.join(ORDERS)}")
  problem = _problem(lower, upper, sizes, alignment, capacity, fixed_offsets, same_offset_as)
  return _solve(problem, method, order, effort)


def _solve(problem: _core.PackingProblem, method: str, order: str | None, effort: int) -> Packing:
  stopwatch = Stopwatch()
  if method == "search":
    found = problem.search(effort=effort)
  elif method == "best_fit" and order is None:
    found = problem.pack_best_fit()
  else:
    orders = ("size", "duration") if order is None else (order,)
    heaps = [problem.pack_in_order(ORDERS.index(name), method == "first_fit") for name in orders]
    found = min(heaps, key=lambda heap: heap["heap_bytes"])
  return Packing(
    found["offsets"],
    found["heap_bytes"],
    found["peak_live_bytes"],
    found["lower_bound_bytes"],
    STATUSES[found["status"]],
    stopwatch.seconds,
    found["effort"],
  )


def _problem(lower, upper, sizes, alignment, capacity, fixed_offsets, same_offset_as):
  lower, upper, sizes = (np.ascontiguousarray(column, np.int64) for column in (lower, upper, sizes))
  none = np.full(sizes.shape, -1, np.int64)
  fixed = none if fixed_offsets is None else np.ascontiguousarray(fixed_offsets, np.int64)
  same = none if same_offset_as is None else np.ascontiguousarray(same_offset_as, np.int64)
  shapes = {column.shape for column in (lower, upper, sizes, fixed, same)}
  if len(shapes) > 1 or sizes.ndim != 1:
    raise ValueError(f"one-dimensional arrays of one length are needed, not of shapes {sorted(shapes)}")
  if alignment < 1:
    raise ValueError(f"alignment {alignment} is below 1")
  if capacity is not None and capacity < 0:
    raise ValueError(f"the capacity {capacity} is negative")
  if float(np.abs(sizes).sum(dtype=float)) + float(alignment) * len(sizes) + float(fixed.max(initial=0)) > _MOST_BYTES:
    raise ValueError(f"more than {_MOST_BYTES} bytes in all")
  if len(sizes) and (min(lower.min(), upper.min()) < _TIMES.min or max(lower.max(), upper.max()) > _TIMES.max):
    lower, upper = np.unique(np.concatenate([lower, upper]), return_inverse=True)[1].reshape(2, -1)
  problem = _core.PackingProblem(
    lower.astype(np.int32),
    upper.astype(np.int32),
    sizes,
    np.full(sizes.shape, alignment, np.int64),
    fixed,
    same.clip(-1, _TIMES.max).astype(np.int32),
    -1 if capacity is None else capacity,
  )
  if fault := problem.check():
    raise ValueError(fault)
  return problem


@dataclasses.dataclass(frozen=True, eq=False)
class SchedulePacking:
  """Where the values of a schedule lie.

  Attributes:
    placements: rows (value, step of production, offset) of all productions of temporaries, int64 ``[n, 3]``: what
      ``PlannerResult.placements`` holds and ``program/validate.py`` checks.
    workspace: rows (step, offset) of the steps that need workspace, int64 ``[m, 2]``.
    packing: the packing of both, values first.
  """

  placements: np.ndarray
  workspace: np.ndarray
  packing: Packing


def pack_schedule(
  program: StepProgram,
  schedule: np.ndarray,
  *,
  alignment: int = 64,
  capacity: int | None = None,
  method: str = "search",
  effort: int = EFFORT,
) -> SchedulePacking:
  """Offsets for every production of every temporary value, and for workspace.

  The live ranges are those of ``xla_pass/program/liveness.h``. What is overwritten in place lies where its overwriter
  lies. A pair that may share, where the input dies at the op, either lies at one offset, or does not overlap at all:
  the second, which leaves the packer more freedom, where the step has room for both below the peak. Where that does not
  end at fragmentation 0, all pairs are tied as XLA does it, and the better packing is taken.

  Args:
    program: the program.
    schedule: op ids, repeats allowed; must be valid.
    alignment: offsets are multiples of it, bytes.
    capacity: see :func:`pack`.
    method: ``best_fit``, ``first_fit`` or ``search``.
    effort: of the search, for each of the two ways to share that it tries.

  Returns:
    The placements; ``packing.status`` is ``optimal`` or ``infeasible`` only where that holds for any way to share.

  Raises:
    InvalidProgramError: the program or the schedule is malformed.
  """
  stopwatch = Stopwatch()
  schedule = np.ascontiguousarray(schedule, np.int32)
  if fault := _core.check_schedule(program.core, schedule):
    raise InvalidProgramError(fault)
  ways = []
  for shares_always in (False, True):
    values, lower, upper, sizes, same = _core.schedule_buffers(program.core, schedule, shares_always)
    ways.append((values, lower, _problem(lower, upper, sizes, alignment, capacity, None, same)))
  packings = []
  for *_, problem in ways:
    packings.append(_solve(problem, method, None, effort))
    if packings[-1].heap_bytes <= max(packings[-1].peak_live_bytes, -1 if capacity is None else capacity):
      break
  best = min(packings, key=lambda packing: packing.heap_bytes)
  values, steps, _ = ways[packings.index(best)]
  # Tying all pairs leaves the shortest lifetimes: its aligned live bytes bound every way, and nothing else does.
  bound = ways[-1][2].lower_bound()
  best = dataclasses.replace(
    best,
    lower_bound_bytes=bound,
    status=_joint_status(best.heap_bytes, bound, capacity, packings),
    seconds=stopwatch.seconds,
    effort=sum(packing.effort for packing in packings),
  )
  rows = np.stack([values, steps, best.offsets], axis=1).astype(np.int64)
  return SchedulePacking(rows[values >= 0], rows[values < 0, 1:], best)


def _joint_status(heap_bytes: int, bound: int, capacity: int | None, packings: Sequence[Packing]) -> str:
  """What holds for any way to share: a proof for one way says nothing about another."""
  if capacity is not None and bound > capacity:
    return "infeasible"
  if heap_bytes <= bound:
    return "optimal"
  if capacity is not None and heap_bytes <= capacity:
    return "feasible"
  is_cut_short = capacity is not None or any(packing.status == "effort_spent" for packing in packings)
  return "effort_spent" if is_cut_short else "feasible"


@dataclasses.dataclass(frozen=True, eq=False)
class Buffers:
  """Buffers with their names, as in a CSV file.

  Attributes:
    ids: a name per buffer.
    lower: time from which each lives, int64 ``[n]``.
    upper: time at which each is dead again, int64 ``[n]``.
    sizes: bytes, int64 ``[n]``.
    offsets: where each lies, int64 ``[n]``; None for a problem without a solution.
  """

  ids: tuple[str, ...]
  lower: np.ndarray
  upper: np.ndarray
  sizes: np.ndarray
  offsets: np.ndarray | None = None


def read_csv(path: str | os.PathLike) -> Buffers:
  """Reads the public CSV form of packing problems (that of github.com/google/minimalloc).

  A header names the columns ``id``, ``lower``, ``upper``, ``size`` and maybe ``offset``, in any order; a buffer lives
  in the half-open [lower, upper).

  Raises:
    ValueError: a column is missing or unknown, or a row is malformed; the message names the line.
  """
  with pathlib.Path(path).open(newline="") as file:
    reader = csv.reader(file, skipinitialspace=True)
    header = [name.strip() for name in next(reader, [])]
    if missing := [name for name in _COLUMNS if name not in header]:
      raise ValueError(f"line 1: no column {', '.join(missing)}; found {', '.join(header) or 'nothing'}")
    if unknown := [name for name in header if name not in (*_COLUMNS, "offset")]:
      raise ValueError(f"line 1: unknown column {', '.join(unknown)}")
    if len(set(header)) < len(header):
      raise ValueError(f"line 1: a column twice in {', '.join(header)}")
    rows: dict[str, list[int]] = {}
    for row in reader:
      if row:
        _read_row(header, row, reader.line_num, rows)
  names = [name for name in header if name != "id"]
  columns = dict(zip(names, np.array(list(rows.values()), np.int64).reshape(-1, len(names)).T))
  return Buffers(tuple(rows), columns["lower"], columns["upper"], columns["size"], columns.get("offset"))


def _read_row(header: Sequence[str], row: Sequence[str], line: int, rows: dict[str, list[int]]) -> None:
  if len(row) != len(header):
    raise ValueError(f"line {line}: {len(row)} fields, not the {len(header)} of the header")
  fields = {name: text.strip() for name, text in zip(header, row)}
  name = fields.pop("id")
  if name in rows:
    raise ValueError(f"line {line}: the id {name!r} occurs before")
  numbers = {}
  for column, text in fields.items():
    try:
      numbers[column] = int(text)
    except ValueError:
      raise ValueError(f"line {line}: {column} is {text!r}, not an integer") from None
    if abs(numbers[column]) >= _MOST_BYTES:
      raise ValueError(f"line {line}: {column} is {text}, beyond {_MOST_BYTES}")
  if numbers["size"] < 0:
    raise ValueError(f"line {line}: the size {numbers['size']} is negative")
  if numbers["upper"] <= numbers["lower"]:
    raise ValueError(f"line {line}: upper {numbers['upper']} is not above lower {numbers['lower']}")
  if numbers.get("offset", 0) < 0:
    raise ValueError(f"line {line}: the offset {numbers['offset']} is negative")
  rows[name] = list(numbers.values())


def write_csv(path: str | os.PathLike, buffers: Buffers) -> None:
  """Writes ``buffers`` in the form that :func:`read_csv` reads, with a column ``offset`` if they have offsets."""
  columns = {"id": buffers.ids, "lower": buffers.lower, "upper": buffers.upper, "size": buffers.sizes}
  if buffers.offsets is not None:
    columns["offset"] = buffers.offsets
  with pathlib.Path(path).open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
