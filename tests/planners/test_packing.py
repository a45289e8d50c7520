"""Packers against brute force, problems of known optimum, each other and the independent validator."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopjax.errors import InvalidProgramError
from coopjax.planners.packing import METHODS, ORDERS, Buffers, pack, pack_schedule, read_csv, write_csv
from coopjax.planners.peak import PeakPlanner
from coopjax.program import liveness
from coopjax.program.step_program import TEMPORARY
from coopjax.program.validate import validate
from tests.support import programs
from tests.support.programs import with_repeats
from tests.support.strategies import random_programs
from tests.support.transformer import transformer

GREEDY = [(method, order) for method in METHODS[:2] for order in (None, *ORDERS)]


def clash(rectangles) -> bool:
  """Whether two of the rows (lower, upper, size, offset) overlap."""
  return any(
    a[0] < b[1] and b[0] < a[1] and a[3] < b[3] + b[2] and b[3] < a[3] + a[2]
    for a, b in itertools.combinations([row for row in rectangles if row[2] > 0], 2)
  )


def check(packing, lower, upper, sizes, alignment=1) -> None:
  offsets = packing.offsets.tolist()
  assert not clash(list(zip(lower, upper, sizes, offsets)))
  assert all(offset >= 0 and offset % alignment == 0 for offset in offsets)
  assert packing.heap_bytes == max((o + s for o, s in zip(offsets, sizes) if s > 0), default=0)
  live = [sum(s for low, up, s in zip(lower, upper, sizes) if low <= t < up) for t in lower]
  assert packing.peak_live_bytes == max(live, default=0)
  assert packing.peak_live_bytes <= packing.lower_bound_bytes <= packing.heap_bytes


def smallest_heap(lower, upper, sizes, alignment=1) -> int:
  """By trying every offset of every buffer."""

  def fits(capacity, placed):
    k = len(placed)
    if k == len(sizes):
      return True
    rows = [(lower[k], upper[k], sizes[k], at) for at in range(0, capacity - sizes[k] + 1, alignment)]
    return any(not any(clash([row, other]) for other in placed) and fits(capacity, [*placed, row]) for row in rows)

  return next(capacity for capacity in itertools.count() if fits(capacity, []))


@st.composite
def problems(draw, max_buffers=30, max_size=12):
  count = draw(st.integers(0, max_buffers))
  lower = draw(st.lists(st.integers(-5, 12), min_size=count, max_size=count))
  duration = draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))
  sizes = draw(st.lists(st.integers(0, max_size), min_size=count, max_size=count))
  return lower, [low + length for low, length in zip(lower, duration)], sizes


# ---- buffers -----------------------------------------------------------------------------------


def test_published_example_has_no_fragmentation():
  # b3 and b5, and with them b1, then b2; after step 9 b4 and b5: 4 + 4 + 4 bytes at most.
  packing = pack([0, 3, 0, 9, 0], [3, 9, 9, 21, 21], [4] * 5)
  assert (packing.heap_bytes, packing.peak_live_bytes, packing.status) == (12, 12, "optimal")
  assert packing.fragmentation == 0.0


def test_capacity_just_below_and_at_the_smallest_heap():
  # 2 + 2 bytes live in [0, 2), 2 + 3 in [2, 4), 3 in [4, 6).
  problem = [0, 0, 2], [4, 2, 6], [2, 2, 3]
  assert pack(*problem).heap_bytes == 5
  assert pack(*problem, capacity=5).status == "optimal"
  assert pack(*problem, capacity=6).heap_bytes <= 6
  assert pack(*problem, capacity=4).status == "infeasible"
  assert pack(*problem, capacity=4, method="best_fit").status == "infeasible"


def test_nothing_to_pack():
  assert pack([], [], []).heap_bytes == 0
  assert pack([0], [1], [0], method="best_fit").fragmentation == 0.0


@settings(max_examples=60)
@given(problems(max_buffers=6, max_size=4), st.sampled_from([1, 2]))
def test_search_finds_the_smallest_heap(problem, alignment):
  packing = pack(*problem, alignment=alignment)
  check(packing, *problem, alignment)
  smallest = smallest_heap(*problem, alignment)
  assert (packing.heap_bytes, packing.status) == (smallest, "optimal")
  assert pack(*problem, alignment=alignment, capacity=smallest).heap_bytes == smallest
  if smallest:
    below = pack(*problem, alignment=alignment, capacity=smallest - 1)
    assert below.status == "infeasible"
    check(below, *problem, alignment)


@settings(max_examples=60)
@given(problems(), st.sampled_from([1, 8]))
def test_greedy_packings_are_valid_and_search_is_no_worse(problem, alignment):
  best = pack(*problem, alignment=alignment, effort=10_000_000)
  check(best, *problem, alignment)
  for method, order in GREEDY:
    packing = pack(*problem, alignment=alignment, method=method, order=order)
    check(packing, *problem, alignment)
    assert packing.heap_bytes >= best.heap_bytes
    assert packing.status == ("optimal" if packing.heap_bytes == packing.lower_bound_bytes else "feasible")
  again = pack(*problem, alignment=alignment, effort=10_000_000)
  assert np.array_equal(best.offsets, again.offsets) and best.effort == again.effort


def tiling(count, seed, duration=100_000, size=1 << 20):
  """A rectangle cut into pinwheels of five; its size is the smallest heap."""
  random, tiles = np.random.default_rng(seed), [(0, duration, size)]
  while len(tiles) < count:
    lower, upper, height = tiles.pop(int(random.integers(len(tiles))))
    if upper - lower < 3 or height < 3:
      tiles.append((lower, upper, height))
      continue
    across = int(random.integers(1, (upper - lower - 1) // 2 + 1))
    up = int(random.integers(1, (height - 1) // 2 + 1))
    tiles += [
      (lower, upper - across, up),
      (upper - across, upper, height - up),
      (lower + across, upper, up),
      (lower, lower + across, height - up),
      (lower + across, upper - across, height - 2 * up),
    ]
  return [list(column) for column in zip(*tiles)]


@pytest.mark.parametrize("seed", range(6))
def test_search_packs_tilings_without_fragmentation(seed):
  problem = tiling(80, seed)
  packing = pack(*problem)
  check(packing, *problem)
  assert packing.heap_bytes == 1 << 20 and packing.status == "optimal"
  assert pack(*problem, method="best_fit").fragmentation > 0.05


def test_many_buffers():
  random = np.random.default_rng(0)
  lower = random.integers(0, 30_000, 30_000)
  upper = lower + 1 + random.geometric(0.02, 30_000)
  sizes = random.integers(1, 1000, 30_000)
  packing = pack(lower, upper, sizes, method="best_fit")
  for time in range(0, 30_000, 10):
    live = np.flatnonzero((lower <= time) & (time < upper))
    live = live[np.argsort(packing.offsets[live])]
    ends = packing.offsets[live] + sizes[live]
    assert (ends[:-1] <= packing.offsets[live][1:]).all()
  assert packing.fragmentation < 0.1


def test_effort_and_time_end_the_search():
  problem = tiling(1200, 0, duration=10**8, size=1 << 40)
  spent = pack(*problem, effort=10_000_000)
  assert spent.status == "effort_spent" and spent.effort < 20_000_000
  assert pack(*problem, effort=0).status == "effort_spent"
  assert pack(*problem, effort=10_000_000, capacity=spent.heap_bytes).status == "feasible"
  assert pack(*problem, effort=1, capacity=spent.heap_bytes // 2).status == "infeasible"


def test_ties_and_fixed_offsets():
  # w takes v's bytes when v dies; u beside both, x beside w alone: 8 + 2 while v lives, then 8 + 2 + 3.
  packing = pack([0, 3, 0, 3], [3, 6, 6, 6], [8, 8, 2, 3], same_offset_as=[-1, 0, -1, -1])
  assert packing.offsets[0] == packing.offsets[1] and packing.heap_bytes == 13
  packing = pack([0, 0], [2, 2], [4, 4], fixed_offsets=[4, -1])
  assert packing.offsets.tolist() == [4, 0]
  with pytest.raises(ValueError, match="share bytes at the same time"):
    pack([0, 0], [2, 2], [4, 4], fixed_offsets=[3, 0])


def test_times_beyond_32_bits():
  packing = pack([0, 2**40, 2**40], [2**40, 2**41, 2**40 + 1], [4, 4, 4])
  assert packing.heap_bytes == 8


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(lower=[0], upper=[0], sizes=[1]), "buffer 0 lives from 0 to 0, which is no time"),
    (dict(lower=[0, 1], upper=[1, 2], sizes=[1, -1]), "buffer 1 has the negative size -1"),
    (dict(lower=[0], upper=[1, 2], sizes=[1]), "one-dimensional arrays of one length"),
    (dict(lower=[0], upper=[1], sizes=[1], alignment=0), "alignment 0 is below 1"),
    (dict(lower=[0], upper=[1], sizes=[1], capacity=-1), "the capacity -1 is negative"),
    (dict(lower=[0], upper=[1], sizes=[2**61]), "bytes in all"),
    (dict(lower=[0], upper=[1], sizes=[1], same_offset_as=[0]), "tied to buffer 0, which is not an earlier one"),
    (dict(lower=[0], upper=[1], sizes=[1], method="magic"), "unknown method 'magic'"),
    (dict(lower=[0], upper=[1], sizes=[1], order="size"), "order 'size' with method 'search'"),
  ],
)
def test_bad_problems_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    pack(**arguments)


# ---- schedules ---------------------------------------------------------------------------------


def check_schedule_packing(program, schedule, packed, alignment) -> None:
  packing = packed.packing
  report = validate(
    program,
    schedule,
    claimed_peak_bytes=packing.peak_live_bytes,
    placements=packed.placements.tolist(),
    arena_bytes=packing.heap_bytes,
    alignment_bytes=alignment,
  )
  assert report.is_valid, str(report)
  # What the validator does not look at: workspace, and where in-place and sharing pairs lie.
  values, starts, ends = liveness.live_ranges(program, schedule)
  offsets = {(value, step): offset for value, step, offset in packed.placements.tolist()}
  size = program.value_bytes.tolist()
  at_step = {step: [] for step in range(len(schedule))}
  latest = {}
  for value, start, end in zip(values.tolist(), starts.tolist(), ends.tolist()):
    if program.value_kind[value] == TEMPORARY:
      for step in range(start, end):
        at_step[step].append((0, 1, size[value], offsets[value, start]))
  workspace = dict(packed.workspace.tolist())
  assert sorted(workspace) == np.flatnonzero(program.op_workspace_bytes[schedule]).tolist()
  for step, op in enumerate(schedule.tolist()):
    here = at_step[step]
    if step in workspace:
      here = [*here, (0, 1, int(program.op_workspace_bytes[op]), workspace[step])]
      assert workspace[step] + program.op_workspace_bytes[op] <= packing.heap_bytes
    assert not clash(here)
    for output in program.outputs(op).tolist():
      given = int(program.value_in_place_of[output])
      if given >= 0 and program.value_kind[given] == TEMPORARY and program.value_kind[output] == TEMPORARY:
        assert offsets[output, step] == offsets[given, latest[given]]
    for value in program.outputs(op).tolist():
      if program.value_kind[value] == TEMPORARY:
        check_inputs_survive(program, step, op, value, offsets, latest)
    latest.update((value, step) for value in program.outputs(op).tolist())


def check_inputs_survive(program, step, op, output, offsets, latest) -> None:
  """An output that lies on an input's bytes begins where the input begins, as its in-place or sharing heir."""
  heirs = {(int(given), int(taker)) for at, given, taker in program.may_share.tolist() if at == op}
  heirs.add((int(program.value_in_place_of[output]), output))
  shared_by_outputs = {given for given, taker in heirs if program.value_kind[taker] != TEMPORARY}
  for value in program.inputs(op).tolist():
    if program.value_kind[value] != TEMPORARY or value in shared_by_outputs:
      continue
    mine, other = offsets[output, step], offsets[value, latest[value]]
    overlaps = clash([(0, 1, int(program.value_bytes[output]), mine), (0, 1, int(program.value_bytes[value]), other)])
    if overlaps and (value, output) in heirs:
      assert mine == other


@settings(max_examples=150)
@given(
  random_programs(max_ops=16),
  st.integers(0, 5),
  st.sampled_from(METHODS),
  st.sampled_from([1, 8]),
  st.randoms(use_true_random=False),
)
def test_the_validator_accepts_every_placement(program, num_repeats, method, alignment, random):
  schedule = with_repeats(program, random, num_repeats)
  packed = pack_schedule(program, schedule, method=method, alignment=alignment, effort=10_000_000)
  check_schedule_packing(program, schedule, packed, alignment)
  again = pack_schedule(program, schedule, method=method, alignment=alignment, effort=10_000_000)
  assert np.array_equal(packed.placements, again.placements)
  if packed.packing.status == "optimal":
    assert packed.packing.heap_bytes == packed.packing.lower_bound_bytes


@pytest.mark.parametrize("name", programs.NAMED)
def test_named_programs_have_no_fragmentation(name):
  make, peak = programs.NAMED[name]
  program = make()
  packed = pack_schedule(program, program.schedule, alignment=1)
  assert (packed.packing.heap_bytes, packed.packing.status) == (peak, "optimal")
  check_schedule_packing(program, program.schedule, packed, 1)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_rematerialized_transformers_have_no_fragmentation(share):
  program = transformer(6, width=96, seq=64)
  peak = int(liveness.live_bytes(program, program.schedule).max())
  schedule = PeakPlanner().plan(program, int(share * peak)).schedule
  packed = pack_schedule(program, schedule, alignment=1)
  check_schedule_packing(program, schedule, packed, 1)
  assert packed.packing.fragmentation == 0.0


def test_a_capacity_for_a_schedule():
  program = programs.skip()  # 18 bytes at the peak
  assert pack_schedule(program, program.schedule, alignment=1, capacity=17).packing.status == "infeasible"
  assert pack_schedule(program, program.schedule, alignment=1, capacity=18).packing.status == "optimal"
  assert pack_schedule(program, program.schedule, alignment=1, capacity=100).packing.status in ("optimal", "feasible")


def test_malformed_schedules_are_named():
  program = programs.chain()
  with pytest.raises(InvalidProgramError, match="read"):
    pack_schedule(program, [1, 0, 2])


# ---- files -------------------------------------------------------------------------------------


def test_csv_round_trip(tmp_path):
  path = tmp_path / "buffers.csv"
  path.write_text("id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\n")
  buffers = read_csv(path)
  assert buffers.ids == ("b1", "b2", "b3") and buffers.offsets is None
  packing = pack(buffers.lower, buffers.upper, buffers.sizes)
  solved = Buffers(buffers.ids, buffers.lower, buffers.upper, buffers.sizes, packing.offsets)
  write_csv(path, solved)
  assert path.read_text().startswith("id,lower,upper,size,offset\nb1,0,3,4,")
  assert read_csv(path).offsets.tolist() == packing.offsets.tolist()
  write_csv(path, buffers)
  assert path.read_text() == "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\n"
  path.write_text("size, upper,lower,id\n4,3,0,b1\n\n")
  assert read_csv(path).upper.tolist() == [3]
  path.write_text("id,lower,upper,size\n")
  assert len(read_csv(path).sizes) == 0


@pytest.mark.parametrize(
  "text, message",
  [
    ("", "line 1: no column id, lower, upper, size; found nothing"),
    ("id,lower,upper\n", "line 1: no column size; found id, lower, upper"),
    ("id,lower,upper,size,gaps\n", "line 1: unknown column gaps"),
    ("id,lower,upper,size,size\n", "line 1: a column twice"),
    ("id,lower,upper,size\na,0,1\n", "line 2: 3 fields, not the 4"),
    ("id,lower,upper,size\na,0,1,2\nb,0,1,-2\n", "line 3: the size -2 is negative"),
    ("id,lower,upper,size\na,3,3,2\n", "line 2: upper 3 is not above lower 3"),
    ("id,lower,upper,size\na,0,1,2\n\na,0,1,2\n", "line 4: the id 'a' occurs before"),
    ("id,lower,upper,size\na,0,1,2.5\n", "line 2: size is '2.5', not an integer"),
    ("id,lower,upper,size\na,0,99999999999999999999,1\n", "line 2: upper is 99999999999999999999, beyond"),
    ("id,lower,upper,size,offset\na,0,1,2,-1\n", "line 2: the offset -1 is negative"),
  ],
)
def test_bad_csv_names_the_line(tmp_path, text, message):
  path = tmp_path / "bad.csv"
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    read_csv(path)
