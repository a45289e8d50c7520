"""coopjax: a memory budget in, a JAX training step that fits it out.

Public names are loaded when first used, so that ``coopjax.program`` and ``coopjax.planners`` work without JAX.
"""

import importlib

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
__all__ = sorted(_HOME_OF)


def __getattr__(name: str):
  if name in _MODULES:
    return importlib.import_module(f"coopjax.{name}")
  if name not in _HOME_OF:
    raise AttributeError(f"module 'coopjax' has no attribute {name!r}")
  return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__, *_MODULES})
