"""Lists the models: ``python -m zoo [name ...]`` in `benchmarks/`, with the seconds it takes to trace them."""

import sys
import time

import zoo
from coopjax.jaxpr.step_program import persistent_bytes
from coopjax.program import liveness


def main(names: list[str]) -> None:
  print(f"{'model':20}{'batch':>6}{'ops':>8}{'paper':>7}{'values':>8}{'peak MiB':>11}{'inputs MiB':>12}{'seconds':>9}")
  for name in names or zoo.MODELS:
    start = time.perf_counter()
    program = zoo.build(name)
    seconds = time.perf_counter() - start
    peak = liveness.live_bytes(program, program.schedule).max()
    model = zoo.MODELS[name]
    print(
      f"{name:20}{model.default_batch:6}{program.num_ops:8,}{model.num_nodes or '':>7}{program.num_values:8,}"
      f"{peak >> 20:11,}{persistent_bytes(program) >> 20:12,}{seconds:9.1f}",
      flush=True,
    )


if __name__ == "__main__":
  main(sys.argv[1:])
