"""Planning time and quality over size: programs of six shapes (`shapes.py`), each in a process of its own.

``python benchmarks/scale.py SHAPE OPS SHARE STEPS PLANNER...`` plans one, and prints, for each planner, whether the
budget holds, the overhead, what no plan goes below, the steps, seconds of the processor and microseconds an op that it
took, and the process's largest resident GiB so far.
"""

import itertools
import math
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from shapes import SHAPES
from tables import Row

from coopjax import _core
from coopjax.planners.auto import AutoPlanner
from coopjax.planners.effort import steps_of
from coopjax.planners.peak import PeakPlanner
from coopjax.planners.segments import SegmentPlanner

PLANNERS = {
  "first plan": SegmentPlanner(num_rounds=1, max_polished_ops=0),
  "auto": AutoPlanner(),
  "greedy": PeakPlanner.greedy(),
}
_GREEDY_TAKES = 10_000  # ops; above, it takes minutes, then hours
_FIELDS = ("holds", "overhead", "least_overhead", "steps", "seconds", "us_per_op", "rss_gib")


def steps_for(num_ops: int) -> int:
  """About as many as 10,000 ops take in a second, 100,000 in six and a million in sixty; at most what requests get."""
  return min((8_000 if num_ops <= AutoPlanner.large_ops else 4_000) * num_ops, steps_of("normal", num_ops))


def rows(sizes: tuple[int, ...], max_steps: int, announce: Callable[[str], None]) -> Iterator[Row]:
  """One row per size, shape, share of the un-rematerialized peak and planner."""
  for num_ops, shape, share in itertools.product(sizes, SHAPES, (0.5, 0.25)):
    labels = [label for label in PLANNERS if label != "greedy" or num_ops <= _GREEDY_TAKES]
    announce(f"{shape} of {num_ops:,} ops at {share:.0%}")
    steps = min(max_steps, steps_for(num_ops))
    child = [sys.executable, __file__, shape, str(num_ops), str(share), str(steps), *labels]
    lines = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for label, figures in zip(labels, lines, strict=True):
      yield {
        "shape": shape,
        "ops": num_ops,
        "share": share,
        "planner": label,
        **dict(zip(_FIELDS, map(float, figures.split()), strict=True)),
      }


def main(shape: str, num_ops: int, share: float, max_steps: int, *labels: str) -> None:
  program = SHAPES[shape](num_ops)
  budget_bytes = math.floor(share * int(_core.live_bytes(program.core, program.schedule).max()))
  for label in labels:
    start, steps_before = time.process_time(), _core.steps_taken()
    result = PLANNERS[label].plan(program, budget_bytes, max_steps=max_steps)
    seconds, steps = time.process_time() - start, _core.steps_taken() - steps_before
    bounds = result.overhead(program), result.least_overhead(program)
    print(int(result.is_feasible), *bounds, steps, seconds, 1e6 * seconds / program.num_ops, _largest_resident_gib())


def _largest_resident_gib() -> float:
  """Of this process alone: getrusage also counts the process that started it."""
  fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
  return int(fields["VmHWM"].split()[0]) / 2**20


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
