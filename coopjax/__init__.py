"""coopjax: a memory budget in, a JAX training step that fits it out.

Public names are loaded when first used, so that ``coopjax.program`` and ``coopjax.planners`` work without JAX. Where
it is there, programs that `jax.export` has written with a mark for coopjax are planned from the import on.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import signal
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
  "coopjax.api": ("plan", "remat"),
  "coopjax.budget": ("Budget",),
  "coopjax.calibration": ("calibrate",),
  "coopjax.planning.batch_search": ("BatchPoint", "Fit", "fit"),
  "coopjax.planning.budget_frontier": ("Frontier", "FrontierPoint", "frontier"),
  "coopjax.enabling": ("disable", "enable"),
  "coopjax.launching": ("plan_steps",),
  "coopjax.xla.speeds": ("SpeedProfile",),
  "coopjax.xla.targets": ("Target", "target"),
  "coopjax.errors": (
    "BudgetExceededWarning",
    "BudgetInfeasibleError",
    "CacheWarning",
    "CompileMemoryError",
    "CoopjaxError",
    "DumpError",
    "HostOffloadError",
    "HostOffloadWarning",
    "InvalidBudgetError",
    "InvalidPlanError",
    "InvalidProgramError",
    "LostUpdateWarning",
    "MissingPackageError",
    "MissingWheelError",
    "NoRegionsError",
    "NotDifferentiableError",
    "OrderedEffectError",
    "PlanMismatchError",
    "PolicyNamesError",
    "RematNoEffectWarning",
    "ShardingUnknownWarning",
    "UnknownTargetError",
    "UserFunctionError",
  ),
  "coopjax.memory_profile": ("Buffer", "MemoryProfile"),
  "coopjax.optimizers": ("offload_state", "state_on_host"),
  "coopjax.planning.decision": ("Decision",),
  "coopjax.planning.remat_plan": ("RematPlan",),
  "coopjax.report.profile": ("inspect",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("equinox", "linen", "nnx")  # need Equinox and Flax

# _HOMES once more, as type checkers read it, to whom `as` makes a name public; tests/house/test_types.py compares them.
if TYPE_CHECKING:
  from coopjax import equinox as equinox
  from coopjax import linen as linen
  from coopjax import nnx as nnx
  from coopjax.api import plan as plan
  from coopjax.api import remat as remat
  from coopjax.budget import Budget as Budget
  from coopjax.calibration import calibrate as calibrate
  from coopjax.enabling import disable as disable
  from coopjax.enabling import enable as enable
  from coopjax.errors import (
    BudgetExceededWarning as BudgetExceededWarning,
  )
  from coopjax.errors import (
    BudgetInfeasibleError as BudgetInfeasibleError,
  )
  from coopjax.errors import (
    CacheWarning as CacheWarning,
  )
  from coopjax.errors import (
    CompileMemoryError as CompileMemoryError,
  )
  from coopjax.errors import (
    CoopjaxError as CoopjaxError,
  )
  from coopjax.errors import (
    DumpError as DumpError,
  )
  from coopjax.errors import (
    HostOffloadError as HostOffloadError,
  )
  from coopjax.errors import (
    HostOffloadWarning as HostOffloadWarning,
  )
  from coopjax.errors import (
    InvalidBudgetError as InvalidBudgetError,
  )
  from coopjax.errors import (
    InvalidPlanError as InvalidPlanError,
  )
  from coopjax.errors import (
    InvalidProgramError as InvalidProgramError,
  )
  from coopjax.errors import (
    LostUpdateWarning as LostUpdateWarning,
  )
  from coopjax.errors import (
    MissingPackageError as MissingPackageError,
  )
  from coopjax.errors import (
    MissingWheelError as MissingWheelError,
  )
  from coopjax.errors import (
    NoRegionsError as NoRegionsError,
  )
  from coopjax.errors import (
    NotDifferentiableError as NotDifferentiableError,
  )
  from coopjax.errors import (
    OrderedEffectError as OrderedEffectError,
  )
  from coopjax.errors import (
    PlanMismatchError as PlanMismatchError,
  )
  from coopjax.errors import (
    PolicyNamesError as PolicyNamesError,
  )
  from coopjax.errors import (
    RematNoEffectWarning as RematNoEffectWarning,
  )
  from coopjax.errors import (
    ShardingUnknownWarning as ShardingUnknownWarning,
  )
  from coopjax.errors import (
    UnknownTargetError as UnknownTargetError,
  )
  from coopjax.errors import (
    UserFunctionError as UserFunctionError,
  )
  from coopjax.launching import plan_steps as plan_steps
  from coopjax.memory_profile import Buffer as Buffer
  from coopjax.memory_profile import MemoryProfile as MemoryProfile
  from coopjax.optimizers import offload_state as offload_state
  from coopjax.optimizers import state_on_host as state_on_host
  from coopjax.planning.batch_search import BatchPoint as BatchPoint
  from coopjax.planning.batch_search import Fit as Fit
  from coopjax.planning.batch_search import fit as fit
  from coopjax.planning.budget_frontier import (
    Frontier as Frontier,
  )
  from coopjax.planning.budget_frontier import (
    FrontierPoint as FrontierPoint,
  )
  from coopjax.planning.budget_frontier import (
    frontier as frontier,
  )
  from coopjax.planning.decision import Decision as Decision
  from coopjax.planning.remat_plan import RematPlan as RematPlan
  from coopjax.report.profile import inspect as inspect
  from coopjax.xla.speeds import SpeedProfile as SpeedProfile
  from coopjax.xla.targets import Target as Target
  from coopjax.xla.targets import target as target
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


def _watch() -> None:
  """Plans from now on what carries a mark; one error where this is no JAX that the private parts are known of.

  It is asked here, and not in `coopjax.compat`, which can't be imported then.
  """
  version = importlib.metadata.version("jax")
  release = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
  asked = f"coopjax {__version__} is made for JAX 0.11.2 to 0.12, and this is JAX {version}"
  if release < (0, 11, 2):
    raise ImportError(f"{asked}: pip install 'jax>=0.11.2'")
  try:
    importlib.import_module("coopjax.hlo_engine.hook").watch()
  except (ImportError, AttributeError, TypeError) as error:
    if release < (0, 13):
      raise
    raise ImportError(f"{asked}, which it does not know yet ({error}): pip install 'jax<0.13'") from error


def _is_command() -> bool:
  """Whether this process is the command line: its script, or ``python -m coopjax``."""
  script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
  return script == "coopjax" or (script == "-m" and any(name in sys.orig_argv for name in ("coopjax", "coopjax.cli")))


def _interrupted(*_: object) -> None:
  print("coopjax: interrupted", file=sys.stderr, flush=True)
  os._exit(130)


if _is_command():
  signal.signal(signal.SIGINT, _interrupted)  # importing JAX takes a second or two; then `coopjax.cli` listens

if importlib.util.find_spec("jax"):
  _watch()
