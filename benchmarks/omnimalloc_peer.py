"""Packing by ``omnimalloc`` (PyPI): the peer of ``benchmarks/planners.py packing``.

Its best allocator is ``supermalloc``, a portfolio of branch-and-bound searches; one thread, like ours. The heap is
counted here from the offsets that it returns.
"""

import time

import numpy as np
from omnimalloc import Allocation
from omnimalloc.allocators.supermalloc import SupermallocAllocator


def measure(
  lower: np.ndarray,
  upper: np.ndarray,
  sizes: np.ndarray,
  *,
  live_bytes: int,
  time_limit_s: float = 10.0,
) -> dict[str, float]:
  """Fragmentation and seconds of omnimalloc.

  Args:
    lower: time from which each buffer lives, ints ``[n]``.
    upper: time at which each is dead again, ints ``[n]``.
    sizes: bytes, positive ints ``[n]``.
    live_bytes: the most that is live at any time.
    time_limit_s: for its search.

  Returns:
    ``omnimalloc_fragmentation``, share of the heap above ``live_bytes``, and ``omnimalloc_s``.
  """
  rows = zip(lower.tolist(), upper.tolist(), sizes.tolist())
  buffers = tuple(Allocation(id=k, size=size, start=low, end=up) for k, (low, up, size) in enumerate(rows))
  start = time.perf_counter()
  found = SupermallocAllocator(timeout=time_limit_s, num_threads=1).solve(buffers)
  seconds = time.perf_counter() - start
  heap_bytes = max((buffer.offset + buffer.size for buffer in found.allocations), default=0)
  return {
    "omnimalloc_fragmentation": (heap_bytes - live_bytes) / heap_bytes if heap_bytes else 0.0,
    "omnimalloc_s": seconds,
  }
