"""What makes the suite quick and leaves alone what it looks at; for `conftest`, and for processes that tests start.

Nearly all of the time is XLA, compiling, and planners, improving. So, everywhere but where that is the point:

- What planners try is compiled for its memory and never run: XLA makes the same module of it, and LLVM, which takes
  half of a compile, no fast code. What a test compiles itself is compiled as a user's program is, since bits are
  compared; modules that look at bytes alone, or compare numbers within rounding, use the fixture `quick_compiles`.
- `auto` improves plans with a tenth of its effort. Stages, budgets and what is done with a plan stay as they are.

``python -m tests.support.quick SCRIPT ARGUMENT...`` runs a script that way.
"""

import dataclasses
import runpy
import sys

from coopjax.planners import auto
from coopjax.xla import compile as compiling

COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@dataclasses.dataclass(frozen=True)
class AutoPlanner(auto.AutoPlanner):
  """`auto`, with a tenth of its work."""

  search_work: int = auto.AutoPlanner.search_work // 10
  exchange_work: int = auto.AutoPlanner.exchange_work // 10
  anneal_iterations: int = auto.AutoPlanner.anneal_iterations // 10


def compile_trials_quickly():
  compiling._PLANNING["cpu"] = COMPILER_OPTIONS


def be_quick():
  compile_trials_quickly()
  auto.AutoPlanner = AutoPlanner


if __name__ == "__main__":
  be_quick()
  del sys.argv[0]
  runpy.run_path(sys.argv[0], run_name="__main__")
