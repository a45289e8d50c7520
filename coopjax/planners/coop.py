"""Coop (Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023), with DTR and DTE as baselines.

The simulation is in ``xla_pass/planners/coop/planner.h``, which says what differs from the paper and from OneFlow's
code. The presets: :meth:`CoopPlanner.published` is the paper, :meth:`CoopPlanner.as_shipped` OneFlow's defaults,
:meth:`CoopPlanner.dtr` and :meth:`CoopPlanner.dte` the loops it compares with, :data:`ABLATIONS` all of them and the
paper with one mechanism changed each.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.planners.base import PlannerResult, counters_of
from coopjax.planners.effort import DEFAULT_STEPS
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch

EVICTIONS = ("window", "dtr", "dte")
COSTS = ("own", "neighbours", "chain")
PARTITIONS = ("density", "op_list", "off")
NUM_GROUPS = (1, 2, 3, 4, 6)

EXPENSIVE_KINDS = frozenset(
  {"conv_general_dilated", "dot_general", "ragged_dot", "add_any", "add", "convolution", "dot"}
)
"""OneFlow's list of expensive ops (conv2d, its data and filter gradients, matmul, batch_matmul, add_n) as jaxpr
primitives and HLO opcodes. Its add_n is any sum of equal shapes: gradients (``add_any``) and residuals (``add``)."""


@dataclasses.dataclass(frozen=True)
class CoopPlanner:
  """Simulates the order in an arena of the budget's size and evicts contiguous windows.

  The defaults are the paper's but for exact chain costs and XLA:CPU's alignment; :meth:`published` has the paper's own.

  Attributes:
    eviction: ``"window"`` (Coop), ``"dtr"`` (one value at a time) or ``"dte"`` (DTR counting neighbouring holes).
    cost: ``"own"`` op, ``"neighbours"`` (evicted components by union-find, as Coop and DTR) or the exact ``"chain"``.
    partition: which ops' outputs are kept apart as cheap: those of low cost ``"density"`` (seconds per byte), all but
      those in the ``"op_list"`` (:data:`EXPENSIVE_KINDS`; needs ``op_kinds``), or ``"off"``.
    num_groups: how many groups the partition makes, one of :data:`NUM_GROUPS`; 2 grow from opposite ends of the arena,
      4 and 6 from those of its halves and thirds; 1 is no partition.
    cheap_below_s_per_byte: cost density of cheap ops; 0 for the program's median, weighted by bytes.
    recomputes_in_place: whether a value that is overwritten, or overwrites, may be made again.
    evicts_eagerly: whether what was remade only to remake something else goes at once, not when its bytes are needed.
    knows_future: whether the distance to the next need replaces staleness (ours).
    reuses_costs: whether costs of earlier searches serve as bounds, so that fewer are evaluated; plans stay the same
      but for ties.
    alignment_bytes: of placements.
    num_small_pieces: size of the area for small requests at the end of the arena, in ``small_piece_bytes``; 0: none.
    small_piece_bytes: the largest request that goes there.
    max_overhead: recompute over the program's own cost at which thrashing is given up.
  """

  eviction: str = "window"
  cost: str = "chain"
  partition: str = "density"
  num_groups: int = 2
  cheap_below_s_per_byte: float = 0.0
  recomputes_in_place: bool = True
  evicts_eagerly: bool = True
  knows_future: bool = False
  reuses_costs: bool = True
  alignment_bytes: int = 64
  num_small_pieces: int = 0
  small_piece_bytes: int = 10 * 1024
  max_overhead: float = 4.0

  def __post_init__(self):
    for name, known in (
      ("eviction", EVICTIONS),
      ("cost", COSTS),
      ("partition", PARTITIONS),
      ("num_groups", NUM_GROUPS),
    ):
      if getattr(self, name) not in known:
        raise ValueError(f"{name}={getattr(self, name)!r}: need one of {known}")
    if self.alignment_bytes < 1 or self.num_small_pieces < 0:
      raise ValueError(
        f"alignment_bytes={self.alignment_bytes}, num_small_pieces={self.num_small_pieces}: "
        "need at least 1 and at least 0"
      )

  @classmethod
  def published(cls, **changes) -> "CoopPlanner":
    """The paper's planner: staleness, union-find costs, cheap values apart by density, CUDA's alignment."""
    return cls(**{"cost": "neighbours", "alignment_bytes": 512, **changes})

  @classmethod
  def as_shipped(cls, **changes) -> "CoopPlanner":
    """OneFlow's defaults: no partition (one group), small pieces apart, every cost evaluated in every search."""
    return cls.published(**{"partition": "off", "num_small_pieces": 1024, "reuses_costs": False, **changes})

  @classmethod
  def dtr(cls, **changes) -> "CoopPlanner":
    """DTR's loop in the same arena: evict the least cost / (size x staleness), all evaluated, until a hole fits."""
    return cls.published(**{"eviction": "dtr", "partition": "off", "reuses_costs": False, **changes})

  @classmethod
  def dte(cls, **changes) -> "CoopPlanner":
    """MegTaiChi's DTE: DTR with the neighbouring holes counted into the size."""
    return cls.dtr(**{"eviction": "dte", **changes})

  def plan(
    self,
    program: StepProgram,
    budget_bytes: int,
    *,
    max_steps: int = DEFAULT_STEPS,
    order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`; ``order`` is the order to simulate, the least peak by default.

    ``counters`` has ``evictions``, ``searches``, ``candidates`` (costs evaluated, evicted neighbours and all),
    ``scanned`` (candidates looked at, also those judged by a stored bound alone), ``search_s``, ``fragmentation``
    (Coop's: mean over evicting allocations of free bytes over the arena, the hole not yet taken), ``heap_bytes`` and
    ``heap_fragmentation`` (``(heap - peak live) / heap``). When an allocation can't be met the result is the order
    itself, and ``failed_step`` and ``failed_bytes`` name it. The simulation is too quick to need ``max_steps``.

    Raises:
      InvalidProgramError: the program is malformed, or ``partition`` is ``"op_list"`` and it has no ``op_kinds``.
    """
    stopwatch = Stopwatch()
    order = _core.schedule_for_memory(program.core) if order is None else order
    found = _core.plan_coop(program.core, order, budget_bytes, self._options(program))
    counted, placements = counters_of(found), found["placements"].reshape(-1, 3)
    is_placed = counted.pop("is_feasible")
    result = PlannerResult.of(program, found["schedule"], "coop", budget_bytes, stopwatch.seconds, order, **counted)
    heap_bytes = found["heap_bytes"]
    lost_share = (heap_bytes - result.peak_live_bytes) / heap_bytes if is_placed and heap_bytes else 0.0
    counters = MappingProxyType({**result.counters, "heap_fragmentation": lost_share})
    return dataclasses.replace(result, placements=placements, counters=counters)

  def _options(self, program: StepProgram) -> "_core.CoopOptions":
    options = _core.CoopOptions()
    for field in dataclasses.fields(self):
      if field.name not in ("eviction", "cost", "partition"):
        setattr(options, field.name, getattr(self, field.name))
    options.eviction, options.cost = EVICTIONS.index(self.eviction), COSTS.index(self.cost)
    if self.partition == "off":
      options.num_groups = 1
    elif self.partition == "op_list":
      if len(program.op_kinds) != program.num_ops:
        raise InvalidProgramError(
          f"partition='op_list' asks what each op does, and the program has {program.num_ops} "
          f"ops but {len(program.op_kinds)} op_kinds; partition='density' needs none"
        )
      options.op_is_expensive = np.array([kind in EXPENSIVE_KINDS for kind in program.op_kinds], np.uint8)
    return options


ABLATIONS: Mapping[str, CoopPlanner] = MappingProxyType(
  {
    "coop": CoopPlanner.published(),
    "dtr": CoopPlanner.dtr(),
    "dte": CoopPlanner.dte(),
    "coop, knowing the future": CoopPlanner.published(knows_future=True),
    "coop as shipped": CoopPlanner.as_shipped(),
    "coop, partition by op list": CoopPlanner.published(partition="op_list"),
    "coop, no partition": CoopPlanner.published(partition="off"),
    "coop, 4 groups": CoopPlanner.published(num_groups=4),
    "coop, small pieces apart": CoopPlanner.published(num_small_pieces=1024),
    "coop, own costs": CoopPlanner.published(cost="own"),
    "coop, exact chains": CoopPlanner.published(cost="chain"),
    "coop, in-place values stay": CoopPlanner.published(recomputes_in_place=False),
    "coop, lazy eviction": CoopPlanner.published(evicts_eagerly=False),
    "coop, every cost anew": CoopPlanner.published(reuses_costs=False),
    "dtr, costs reused": CoopPlanner.dtr(reuses_costs=True),
    "dte, costs reused": CoopPlanner.dte(reuses_costs=True),
  }
)
"""The rows of Coop's tables: the paper, its baselines, and the paper with one mechanism changed each.

Compare like with like: ``"coop"`` reuses costs and ``"dtr"`` does not, so ``candidates`` of these two differ mostly by
that. Window against loop is ``"coop, every cost anew"`` against ``"dtr"``, or ``"coop"`` against ``"dtr, costs
reused"``; ``scanned`` counts candidates looked at and does not depend on reuse.
"""
