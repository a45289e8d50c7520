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
ThoroughPlanner = auto.AutoPlanner


@dataclasses.dataclass(frozen=True)
class QuickPlanner(ThoroughPlanner):
  """`auto`, with a tenth of its work."""

  search_work: int = ThoroughPlanner.search_work // 10
  exchange_work: int = ThoroughPlanner.exchange_work // 10
  anneal_iterations: int = ThoroughPlanner.anneal_iterations // 10


def be_quick():
  compiling._PLANNING["cpu"] = COMPILER_OPTIONS
  auto.AutoPlanner = QuickPlanner


if __name__ == "__main__":
  be_quick()
  del sys.argv[0]
  runpy.run_path(sys.argv[0], run_name="__main__")
