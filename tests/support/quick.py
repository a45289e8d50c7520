"""What makes the suite quick and leaves alone what it looks at; for `conftest`, and for processes that tests start.

Nearly all of the time is XLA, compiling, and planners, improving. So, everywhere but where that is the point:

- LLVM, half of a compile, makes no fast code: XLA's module, whose bytes and ops are looked at, is the same. Processes
  that tests start inherit that. Programs whose bits are compared are compiled alike; that engines keep all bits
  whatever LLVM does is shown by tests with the mark `optimized`. Compiles for TPUs and GPUs are a user's, too.
- `auto` improves plans with a hundredth of its effort, and a thousandth of its annealing. Stages, budgets and what is
  done with a plan stay as they are.

``python -m tests.support.quick SCRIPT ARGUMENT...`` runs a script that way.
"""

import dataclasses
import os
import runpy
import sys

import jax

from coopjax.planners import auto

ThoroughPlanner = auto.AutoPlanner


@dataclasses.dataclass(frozen=True)
class QuickPlanner(ThoroughPlanner):
  """`auto`, with a hundredth of its work; of that, annealing would take most."""

  search_work: int = ThoroughPlanner.search_work // 100
  exchange_work: int = ThoroughPlanner.exchange_work // 100
  anneal_iterations: int = ThoroughPlanner.anneal_iterations // 1000


def be_quick():
  set_optimizations(False)
  auto.AutoPlanner = QuickPlanner


def set_optimizations(are_on):
  """Whether LLVM optimizes what is compiled from now on, here and in processes started from here."""
  os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(not are_on))
  jax.config.update("jax_disable_most_optimizations", not are_on)


if __name__ == "__main__":
  be_quick()
  del sys.argv[0]
  sys.path.insert(0, os.path.dirname(sys.argv[0]))
  runpy.run_path(sys.argv[0], run_name="__main__")
