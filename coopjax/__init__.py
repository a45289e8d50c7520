"""coopjax: a memory budget in, a JAX training step that fits it out.

Public names are loaded when first used, so that ``coopjax.program`` and ``coopjax.planners`` work without JAX.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
  "coopjax.api": ("plan", "remat"),
  "coopjax.budget": ("Budget",),
  "coopjax.planning.budget_frontier": ("Frontier", "FrontierPoint", "frontier"),
  "coopjax.enabling": ("disable", "enable"),
  "coopjax.errors": (
    "BudgetExceededWarning", "BudgetInfeasibleError", "CacheWarning", "CompileMemoryError", "CoopjaxError",
    "DumpError", "HostOffloadError", "HostOffloadWarning", "InvalidBudgetError", "InvalidPlanError", "InvalidProgramError",
    "LostUpdateWarning", "MissingPackageError", "MissingWheelError", "NotDifferentiableError", "OrderedEffectError",
    "PlanMismatchError", "RematNoEffectWarning", "ShardingUnknownWarning", "UnknownTargetError", "UserFunctionError",
  ),
  "coopjax.memory_profile": ("Buffer", "MemoryProfile"),
  "coopjax.planning.remat_plan": ("Decision", "RematPlan"),
  "coopjax.report.profile": ("inspect",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("linen", "nnx")  # need Flax

# _HOMES once more, as type checkers read it, to whom `as` makes a name public; tests/house/test_types.py compares them.
if TYPE_CHECKING:
  from coopjax import linen as linen, nnx as nnx
  from coopjax.api import plan as plan, remat as remat
  from coopjax.budget import Budget as Budget
  from coopjax.planning.budget_frontier import (
    Frontier as Frontier,
    FrontierPoint as FrontierPoint,
    frontier as frontier,
  )
  from coopjax.enabling import disable as disable, enable as enable
  from coopjax.errors import (
    BudgetExceededWarning as BudgetExceededWarning,
    BudgetInfeasibleError as BudgetInfeasibleError,
    CacheWarning as CacheWarning,
    CompileMemoryError as CompileMemoryError,
    CoopjaxError as CoopjaxError,
    DumpError as DumpError,
    HostOffloadError as HostOffloadError,
    HostOffloadWarning as HostOffloadWarning,
    InvalidBudgetError as InvalidBudgetError,
    InvalidPlanError as InvalidPlanError,
    InvalidProgramError as InvalidProgramError,
    LostUpdateWarning as LostUpdateWarning,
    MissingPackageError as MissingPackageError,
    MissingWheelError as MissingWheelError,
    NotDifferentiableError as NotDifferentiableError,
    OrderedEffectError as OrderedEffectError,
    PlanMismatchError as PlanMismatchError,
    RematNoEffectWarning as RematNoEffectWarning,
    ShardingUnknownWarning as ShardingUnknownWarning,
    UnknownTargetError as UnknownTargetError,
    UserFunctionError as UserFunctionError,
  )
  from coopjax.memory_profile import Buffer as Buffer, MemoryProfile as MemoryProfile
  from coopjax.planning.remat_plan import Decision as Decision, RematPlan as RematPlan
  from coopjax.report.profile import inspect as inspect
else:
  __all__ = sorted(_HOME_OF)

  def __getattr__(name: str):
    if name in _MODULES:
      return importlib.import_module(f"coopjax.{name}")
    if name not in _HOME_OF:
      raise AttributeError(f"module 'coopjax' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)

  def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
