"""Planning time over size: layered programs with skips, each planned in a process of its own.

``python benchmarks/scale.py OPS SHARE PLANNER SECONDS`` plans one, and prints whether the budget holds, the overhead,
the seconds, microseconds an op and the process's largest resident GiB.
"""

import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import layered
from tables import Row

from coopjax import _core
from coopjax.planners.auto import AutoPlanner
from coopjax.planners.effort import DEFAULT_STEPS
from coopjax.planners.peak import PeakPlanner
from coopjax.planners.segments import SegmentPlanner

PLANNERS = {
  "first plan": SegmentPlanner(num_rounds=1, max_polished_ops=0),
  "auto": AutoPlanner(),
  "greedy": PeakPlanner.greedy(),
}
_GREEDY_TAKES = 20_000  # ops; above, it takes hours


def rows(sizes: tuple[int, ...], max_steps: int, announce: Callable[[str], None]) -> Iterator[Row]:
  """One row per size, share of the un-rematerialized peak and planner."""
  for num_ops in sizes:
    for share in (0.5, 0.25):
      for label in PLANNERS:
        if label == "greedy" and num_ops > _GREEDY_TAKES:
          continue
        announce(f"{num_ops:,} ops at {share:.0%}: {label}")
        steps = min(max_steps, DEFAULT_STEPS) if num_ops <= AutoPlanner.large_ops else max_steps
        child = [sys.executable, __file__, str(num_ops), str(share), label, str(steps)]
        figures = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True).stdout
        yield dict(
          zip(
            ("ops", "share", "planner", "holds", "overhead", "seconds", "us_per_op", "rss_gib"),
            (num_ops, share, label, *map(float, figures.split())),
            strict=True,
          )
        )


def main(num_ops: int, share: float, label: str, max_steps: int) -> None:
  program = layered.layered(num_ops)
  budget_bytes = math.floor(share * int(_core.live_bytes(program.core, program.schedule).max()))
  start = time.perf_counter()
  result = PLANNERS[label].plan(program, budget_bytes, max_steps=max_steps)
  seconds = time.perf_counter() - start
  rss_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  print(int(result.is_feasible), result.overhead(program), seconds, 1e6 * seconds / program.num_ops, rss_gib)


if __name__ == "__main__":
  main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
