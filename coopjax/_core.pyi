"""The C++ core of coopjax: planners over a StepProgram, and the HLO pass (bytes in, bytes out).

In sections by the file of ``xla_pass/python/`` that binds them; the headers that the docstrings name are the
specification. Arrays are contiguous and one-dimensional, unless a shape is given. What the core returns as a dict has
its keys here as a TypedDict, which is a plain dict when the program runs: these classes are for annotations, in quotes.
tests/house/test_types.py holds this file against the extension.
"""

from collections.abc import Callable
from typing import TypedDict, type_check_only

import numpy as np
from numpy.typing import NDArray

type Bools = NDArray[np.bool_]
type UInt8s = NDArray[np.uint8]
type Int32s = NDArray[np.int32]
type Int64s = NDArray[np.int64]
type Float64s = NDArray[np.float64]
type Csr = tuple[Int32s, Int32s]  # (offsets, items): row r is items[offsets[r] : offsets[r + 1]]

# work_bindings.cc: the steps that this thread's searches take, and its fuse.

UNLIMITED_STEPS: int

def steps_taken() -> int:
  """By this thread's searches; see base/allowance.h."""

def count_steps(steps: int) -> None:
  """Counts what was done outside of the core."""

def num_cuts() -> int:
  """How often this thread found an allowance to be over."""

def count_cut() -> None:
  """Notes that one was found to be over outside of the core."""

def light_fuse(seconds: float | None) -> None:
  """After so many seconds every allowance of this thread is over; None: never."""

def is_fuse_blown() -> bool:
  """Whether these seconds have passed."""

def fuse_seconds_left() -> float:
  """Infinity where no fuse is lit."""

# planner_bindings.cc: StepProgram, its bounds, and the planners of its live bytes.

class StepProgram:
  """A training step as the planners see it; see step_program.h. It copies what it is given."""

  def __init__(
    self,
    input_offsets: Int32s,
    inputs: Int32s,
    output_offsets: Int32s,
    outputs: Int32s,
    control_offsets: Int32s,
    control: Int32s,
    cost_s: Float64s,
    flops: Float64s,
    workspace_bytes: Int64s,
    can_recompute: Bools | UInt8s,
    value_bytes: Int64s,
    producer: Int32s,
    kind: UInt8s,
    in_place_of: Int32s,
    may_share: Int32s,
    schedule: Int32s,
    /,
  ) -> None:
    """The fields of ``coopjax.program.step_program.StepProgram``; ``may_share`` is ``[n, 3]``."""

  def check(self) -> str:
    """The first fault in one sentence, or an empty string."""

def check_schedule(program: StepProgram, schedule: Int32s, /) -> str:
  """The first fault of a schedule in one sentence, or an empty string."""

def live_bytes(program: StepProgram, schedule: Int32s, /) -> Int64s:
  """Live bytes at each step of a valid schedule, ``[steps]``."""

def recompute_totals(program: StepProgram, schedule: Int32s, /) -> tuple[float, float, int]:
  """Modelled seconds, FLOPs and number of the repeats in a schedule."""

def lower_bound(program: StepProgram, /) -> tuple[int, int]:
  """Bytes that no schedule avoids, and the op that forces them (-1: no ops)."""

def cost_bound(program: StepProgram, budget_bytes: int, /) -> float:
  """Seconds of recompute that no schedule under a budget avoids, inf where none holds it; see cost_bound.h."""

def cost_unit(program: StepProgram, /) -> float:
  """What every recompute cost is a multiple of, 0 for nothing; see cost_bound.h."""

NUM_ORDER_RULES: int

def schedule_by_rule(program: StepProgram, rule: int, /) -> Int32s:
  """An order without repeats by one of NUM_ORDER_RULES rules, ``[num_ops]``; see list_scheduler.h."""

def schedule_for_memory(program: StepProgram, /) -> Int32s:
  """The best order of all rules, ``[num_ops]``."""

@type_check_only
class PeakResult(TypedDict):
  """What `plan_peak` made: the schedule ``[steps]``, and what it counted."""

  schedule: Int32s
  is_cut_short: bool
  trials: int
  moves: int
  removals: int
  swaps: int

def plan_peak(
  program: StepProgram,
  order: Int32s,
  budget_bytes: int,
  *,
  exponent: float = 2.0,
  num_price_rounds: int = 24,
  merge_repeats: bool = True,
  clean_up: bool = True,
  swap: bool = True,
  max_trials: int = 1000000,
  max_steps: int = 1000000000,
) -> PeakResult:
  """Rematerialization under a budget of live bytes; see planners/peak/planner.h."""

@type_check_only
class SearchResult(TypedDict):
  """What a search made of the plan that it started from: the schedule ``[steps]``, and what it counted."""

  schedule: Int32s
  rounds: int
  improvements: int
  is_cut_short: bool

def search_neighbourhood(
  program: StepProgram,
  start: Int32s,
  budget_bytes: int,
  *,
  max_work: int = 2000000,
  patience: int = 400,
  stop_at_cost_s: float = 0.0,
  seed: int = 1,
  max_steps: int = 1000000000,
) -> SearchResult:
  """A plan that is not worse than `start`, by large-neighbourhood search; see neighbourhood_search.h."""

def search_exchanges(
  program: StepProgram,
  start: Int32s,
  budget_bytes: int,
  *,
  max_work: int = 3000000,
  patience: int = 8,
  stop_at_cost_s: float = 0.0,
  seed: int = 1,
  max_steps: int = 1000000000,
) -> SearchResult:
  """A plan that is not worse than `start`, by exchanging many moves at once; see exchange_search.h."""

# coop_bindings.cc: Coop, DTR and DTE.

class CoopOptions:
  """The switches of the Coop planner; see planners/coop/options.h."""

  def __init__(self) -> None: ...
  eviction: int  # position in coopjax.planners.coop.EVICTIONS
  cost: int  # position in coopjax.planners.coop.COSTS
  @property
  def op_is_expensive(self) -> UInt8s:
    """``[num_ops]``, or empty: by cost density."""

  @op_is_expensive.setter
  def op_is_expensive(self, ops: UInt8s, /) -> None: ...
  num_groups: int
  cheap_below_s_per_byte: float
  recomputes_in_place: bool
  evicts_eagerly: bool
  knows_future: bool
  reuses_costs: bool
  alignment_bytes: int
  small_piece_bytes: int
  num_small_pieces: int
  max_overhead: float

@type_check_only
class CoopResult(TypedDict):
  """What `plan_coop` made: the schedule ``[steps]``, where its values lie, and what it counted."""

  schedule: Int32s
  placements: Int64s  # rows (value, step of production, offset), flattened
  is_feasible: bool
  failed_step: int
  failed_bytes: int
  evictions: int
  searches: int
  candidates: int
  scanned: int
  search_s: float
  fragmentation: float
  heap_bytes: int

def plan_coop(program: StepProgram, order: Int32s, budget_bytes: int, options: CoopOptions, /) -> CoopResult:
  """Coop, DTR or DTE simulated in an arena of the budget's size; see planners/coop/planner.h."""

@type_check_only
class WindowResult(TypedDict):
  """What `plan_windows` made: the schedule ``[steps]``, and what it counted."""

  schedule: Int32s
  is_feasible: bool
  num_windows: int
  num_evicted: int

def plan_windows(program: StepProgram, order: Int32s, offsets: Int64s, budget_bytes: int, /) -> WindowResult:
  """Coop's windows over given offsets, ``[num_values]``, -1 for what stays; see window_planner.h."""

# order_bindings.cc: orders without repeats, for MODeL's planner.

def op_predecessors(program: StepProgram, /) -> Csr:
  """The ops that must run before each op when none is repeated; see dependences.h."""

@type_check_only
class OrderCutResult(TypedDict):
  """What `reorder_by_cuts` made."""

  schedule: Int32s  # [num_ops]
  peak_bytes: int
  bound_bytes: int  # no order's peak is smaller
  stuck_at: Int32s  # op ids
  num_cuts: int
  is_cut_short: bool

def reorder_by_cuts(
  program: StepProgram,
  order: Int32s,
  *,
  max_cuts: int = 400,
  max_descents: int = 12,
  relative_gap: float = 0.0,
  bound_bytes: int = 0,
  max_steps: int = 1000000000,
) -> OrderCutResult:
  """An order of smaller peak by minimum cuts, and a bound on every order's peak; see order_cut.h."""

# segment_bindings.cc: the planner of large programs.

@type_check_only
class SegmentResult(TypedDict):
  """What `plan_segments` made: the schedule ``[steps]``, and what it counted."""

  schedule: Int32s
  is_cut_short: bool
  first_plan_steps: int
  evaluations: int
  segments: int
  kinds: int
  cuts: int
  removals: int
  moves: int

def plan_segments(
  program: StepProgram,
  order: Int32s,
  budget_bytes: int,
  *,
  num_rounds: int = 14,
  max_levels: int = 6,
  clean_up: bool = True,
  max_polished_ops: int = 2000000,
  max_trials: int = 100000000,
  max_steps: int = 6000000000,
  stop_at_cost_s: float = 0.0,
) -> SegmentResult:
  """Rematerialization of large programs; see planners/segments/planner.h. `order` has no repeats."""

# saving_bindings.cc: what a checkpointed region saves.

def save_frontier(
  op_cost: Float64s,
  input_offsets: Int32s,
  inputs: Int32s,
  output_offsets: Int32s,
  outputs: Int32s,
  value_bytes: Int64s,
  wanted: Int32s,
  *,
  max_sets: int = 64,
  max_cuts: int = 60,
  relative_gap: float = 0.001,
  is_early: bool = False,
) -> tuple[tuple[Int32s, int, float, float], ...]:
  """What a checkpointed region saves, from the fewest bytes to the least cost; see planners/saving/save_frontier.h.
  Each set: its values, their bytes, what is run again, and what any set of so many bytes makes run again at least.
  """

# fastsa_bindings.cc: FastSA.

@type_check_only
class AnnealResult(TypedDict):
  """What `plan_fastsa` made: the schedule ``[steps]``, and what it counted."""

  schedule: Int32s
  is_cut_short: bool
  tried: int
  legal: int
  accepted: int
  num_groups: int

def plan_fastsa(
  program: StepProgram,
  order: Int32s,
  budget_bytes: int,
  *,
  group: bool = True,
  retry_ungrouped: bool = True,
  order_only: bool = False,
  seed: int = 0,
  num_slots: int = 1048576,
  stage1_iterations: int = 20000000,
  stage2_iterations: int = 2000000,
  start_temperature: float = 0.001,
  stage2_temperature: float = 0.0,
  stays_within: bool = False,
  cooling: float = 0.0001,
  max_steps: int = 1000000000,
) -> AnnealResult:
  """FastSA from a valid schedule, which may have repeats; see anneal.h."""

# packing_bindings.cc: offsets for fixed live ranges.

@type_check_only
class PackingResult(TypedDict):
  """A packing, and what is known of it."""

  offsets: Int64s  # [num_buffers]
  heap_bytes: int
  peak_live_bytes: int
  lower_bound_bytes: int
  status: int  # position in coopjax.planners.packing.STATUSES
  effort: int

class PackingProblem:
  """Buffers to be given offsets; see packing.h. It copies what it is given."""

  def __init__(
    self,
    lower: Int32s,
    upper: Int32s,
    sizes: Int64s,
    alignments: Int64s,
    fixed_offsets: Int64s,
    same_offset_as: Int32s,
    capacity: int,
    /,
  ) -> None:
    """Arrays are ``[num_buffers]``, -1 where no offset is fixed or shared; capacity -1 is none."""

  def check(self) -> str:
    """The first fault in one sentence, or an empty string."""

  def lower_bound(self) -> int:
    """Live bytes with offsets aligned: no heap is smaller."""

  def pack_best_fit(self) -> PackingResult:
    """Best fit by size and by duration, the smaller heap."""

  def pack_in_order(self, order: int, is_first_fit: bool, /) -> PackingResult:
    """One greedy packer: a position in ``coopjax.planners.packing.ORDERS``, first or best fit."""

  def search(
    self,
    *,
    effort: int,
    peels: bool = True,
    branches: bool = True,
    anneals: bool = True,
    seed: int = 0,
  ) -> PackingResult:
    """The search of packing/search.h."""

def schedule_buffers(
  program: StepProgram, schedule: Int32s, shares_always: bool, /
) -> tuple[Int32s, Int32s, Int32s, Int64s, Int32s]:
  """(value or -1 for workspace, lower, upper, bytes, buffer at whose offset it lies or -1) of each buffer of a valid
  schedule, ``[num_buffers]`` each; see packing/of_schedule.h.
  """

# hlo_bindings.cc: HLO modules: read, rewrite, verify, predict.

TRANSCENDENTAL_FLOPS: float

class HloModule:
  """A parsed HloModuleProto; ValueError says what keeps bytes from being one."""

  def __init__(self, module_bytes: bytes, /) -> None: ...
  @property
  def name(self) -> str: ...
  @property
  def num_instructions(self) -> int:
    """Of all computations, fused ones included."""

def apply_schedule(
  module: HloModule, op_instruction_ids: Int64s, schedule: Int32s, computation_id: int | None = None
) -> bytes:
  """The module with the schedule, repeats as clones, in a computation, by default the entry; see transform.h."""

def verify_transform(before: HloModule, after: HloModule, /) -> str:
  """Why `after` may not compute what `before` does, or an empty string; see verify.h."""

@type_check_only
class ProgramFields(TypedDict):
  """The fields of ``coopjax.program.step_program.StepProgram``, two of them in the core's form."""

  op_inputs: Csr
  op_outputs: Csr
  op_control: Csr
  op_cost_s: Float64s
  op_flops: Float64s
  op_workspace_bytes: Int64s
  op_can_recompute: UInt8s  # 0 or 1
  value_bytes: Int64s
  value_producer: Int32s
  value_kind: UInt8s
  value_in_place_of: Int32s
  may_share: Int32s  # rows (op, input value, output value), flattened
  schedule: Int32s
  op_names: tuple[str, ...]
  op_kinds: tuple[str, ...]
  op_scopes: tuple[str, ...]
  op_sources: tuple[str, ...]
  value_types: tuple[str, ...]

def read_step_program(
  module: HloModule,
  flops_per_s: float,
  transcendentals_per_s: float,
  bytes_per_s: float,
  op_overhead_s: float,
  computation_id: int | None,
  kept_scope: str,
) -> tuple[ProgramFields, Int64s]:
  """The fields of a computation's StepProgram, by default the entry's, and the instruction id of each op,
  ``[num_ops]``; see hlo_program.h.
  """

@type_check_only
class HeapFields(TypedDict):
  """The fields of ``coopjax.xla.module.HeapResult``."""

  temp_bytes: int
  argument_bytes: int
  output_bytes: int
  alias_bytes: int
  heap_bytes: int
  peak_live_bytes: int
  least_temp_bytes: int
  buffer_instruction_ids: Int64s
  buffer_shape_indices: tuple[tuple[int, ...], ...]
  buffer_bytes: Int64s
  buffer_offsets: Int64s
  buffer_allocations: Int32s
  buffer_kinds: UInt8s
  buffer_starts: Int32s
  buffer_ends: Int32s

def predict_memory(module: HloModule, /) -> HeapFields:
  """What XLA's buffer assignment will do with a scheduled module; see heap.h."""

def module_cost(module: HloModule, count_iterations: bool, /) -> tuple[float, float, float]:
  """FLOPs, transcendentals and bytes accessed of one run of a module; see bridge/cost.h."""

# The fields of LogicalBuffer and Allocation in coopjax/xla/buffer_assignment.py.
type LogicalBufferRow = tuple[int, int, int, str, tuple[int, ...], int]
type AllocationRow = tuple[int, int, bool, bool, bool, bool, bool, int, int, tuple[tuple[int, int, int], ...]]

@type_check_only
class BufferAssignmentFields(TypedDict):
  """The fields of ``coopjax.xla.buffer_assignment.BufferAssignment``, as rows."""

  logical_buffers: tuple[LogicalBufferRow, ...]
  allocations: tuple[AllocationRow, ...]

def parse_buffer_assignment(proto: bytes, is_hlo_proto: bool, /) -> BufferAssignmentFields:
  """The logical buffers and allocations of a BufferAssignmentProto, or of the one in an HloProto; see
  buffer_assignment.h. ValueError where the bytes are none.
  """

# inspect_bindings.cc: HLO modules: what people want to see of them.

@type_check_only
class ModuleFacts(TypedDict):
  """Instructions by flattened time, then the buffers in the order of `predict_memory`."""

  module_name: str
  instruction_ids: Int64s
  names: tuple[str, ...]
  opcodes: tuple[str, ...]
  scopes: tuple[str, ...]
  sources: tuple[str, ...]
  computations: tuple[str, ...]
  frame_ids: Int64s
  frames: tuple[str, ...]
  frame_callers: Int64s
  buffer_types: tuple[str, ...]
  buffer_unpadded_bytes: Int64s

def inspect_module(module: HloModule, /) -> ModuleFacts:
  """What stands behind the times and buffers of `predict_memory`."""

# recompute_order_bindings.cc: the HLO pass as a whole.

def remake_costs(program: StepProgram, order: Int32s, /) -> tuple[Float64s, Int32s]:
  """Seconds to make each value again and its rank by cost per byte, ``[num_values]`` each; see remake_costs.h."""

# (fields, order or None, name of the core's choice or "", limit_bytes, max_steps) -> (schedule, order, planner)
type PlanCallback = Callable[[ProgramFields, Int32s | None, str, int, int], tuple[Int32s, Int32s, str]]
# The fields of Round in coopjax/hlo_engine/recompute_order.py.
type RoundRow = tuple[int, int, int, float, str, float, tuple[tuple[str, int, str], ...]]
# (name, fields, schedule, planner, limit_bytes, order)
type InnerRow = tuple[str, ProgramFields, Int32s, str, int, Int32s]

@type_check_only
class StageSeconds(TypedDict):
  """Seconds by stage of the pass."""

  read: float
  order: float
  plan: float
  emit: float
  verify: float

@type_check_only
class RecomputeOrderFields(TypedDict):
  """The fields of ``coopjax.hlo_engine.recompute_order.RecomputeOrderResult``, in the core's form."""

  module_bytes: bytes  # empty where the module is best left as it came
  reason: str
  order: Int32s
  schedule: Int32s
  planner: str
  limit_bytes: int
  inner: tuple[InnerRow, ...]
  program: ProgramFields
  least_workspaces: Int64s
  recompute_cost_s: float
  before: HeapFields
  after: HeapFields
  remake_s: Float64s
  cost_rank: Int32s
  orders: tuple[tuple[str, int, int], ...]
  rounds: tuple[RoundRow, ...]
  timing_s: StageSeconds

def recompute_order(
  module: HloModule,
  *,
  changes: int,
  budget_bytes: int | None,
  roofline: tuple[float, float, float, float],
  kept_scope: str,
  planner: PlanCallback | None,
  searches_order: bool,
  near_smallest: float,
  max_steps: int,
) -> RecomputeOrderFields:
  """A module in less memory, by its order and by recomputing; see pass/recompute_order.h."""

def least_workspaces(module: HloModule, /) -> Int64s:
  """A lower bound on the workspace of each of the entry's ops, ``[num_ops]``, whatever is planned inside; see
  inner_planner.h.
  """
