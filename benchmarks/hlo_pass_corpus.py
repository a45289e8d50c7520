"""The part `corpus` of `hlo_pass.py`: programs compiled and run with and without the pass, at every budget."""

import time
from collections.abc import Iterator

import hlo_corpus
import jax
import numpy as np
import tables
import temp_bounds
from hlo_capture import post_scheduler

from coopjax.hlo_engine.recompute_order import Changes, RecomputeOrderResult, recompute_order
from coopjax.xla.module import read_step_program

NEAR_BOUND = 1.02


class Corpus:
  """Compiles and runs programs of the corpus, with and without the pass."""

  def __init__(self, name: str):
    self.name, self.program = name, hlo_corpus.PROGRAMS[name]()
    modules = []
    with post_scheduler(lambda module: modules.append(bytes(module))):
      plain = self.program.lower().compile()
    (self.module,) = modules
    self.temp_bytes = plain.memory_analysis().temp_size_in_bytes
    self.outputs = self._outputs(plain)
    self.bound_bytes = temp_bounds.least_temp_bytes(self.module, temp_bounds.of_schedules)
    self.cost_s = float(read_step_program(self.module)[0].op_cost_s.sum())
    self._runs: dict[bytes | None, tuple[int, bool]] = {None: (self.temp_bytes, True)}

  def rows(self, budgets: tuple[float, ...]) -> Iterator[tables.Row]:
    for share in budgets:
      for changes in (Changes.ORDER, Changes.BOTH):
        start = time.perf_counter()
        result = recompute_order(self.module, int(share * self.temp_bytes), changes=changes)
        yield self._row(share, changes, result, time.perf_counter() - start)

  def _row(self, share: float, changes: Changes, result: RecomputeOrderResult, seconds: float) -> tables.Row:
    temp_bytes, same_bits = self._run(result.module_bytes)
    budget_bytes = int(share * self.temp_bytes)
    bound_bytes = result.after.least_temp_bytes if changes == Changes.ORDER else self.bound_bytes
    over_bound = temp_bytes / bound_bytes - 1 if bound_bytes else 0.0
    is_smallest = temp_bytes <= NEAR_BOUND * bound_bytes
    return {
      "part": "corpus",
      "program": self.name,
      "changes": changes.name.lower(),
      "budget": share,
      "before_kib": self.temp_bytes / 1024,
      "budget_kib": budget_bytes / 1024,
      "temp_kib": temp_bytes / 1024,
      "predicted_kib": result.after.temp_bytes / 1024,
      "bound_kib": bound_bytes / 1024,
      "over_bound": over_bound,
      "verdict": "holds" if temp_bytes <= budget_bytes else "smallest" if is_smallest else "misses",
      "overhead": result.recompute_cost_s / self.cost_s if self.cost_s else 0.0,
      "same_bits": same_bits,
      "seconds": seconds,
      "reason": result.reason,
    }

  def _run(self, module_bytes: bytes | None) -> tuple[int, bool]:
    """Temporary bytes of the module, compiled, and whether its outputs have the bits of the plain program's."""
    if module_bytes not in self._runs:
      with post_scheduler(lambda _: module_bytes):
        compiled = self.program.lower().compile()
      same_bits = all(map(np.array_equal, self._outputs(compiled), self.outputs))
      self._runs[module_bytes] = compiled.memory_analysis().temp_size_in_bytes, same_bits
    return self._runs[module_bytes]

  def _outputs(self, compiled: jax.stages.Compiled) -> list[np.ndarray]:
    """The bits of every result."""
    results = jax.tree.leaves(compiled(*self.program.args))
    return [np.frombuffer(np.asarray(result).tobytes(), np.uint8) for result in results]


def corpus_rows(names: list[str], budgets: tuple[float, ...]) -> Iterator[tables.Row]:
  for name in names:
    yield from Corpus(name).rows(budgets)
