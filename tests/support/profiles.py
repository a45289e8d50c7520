"""A memory profile as large as one likes, made up."""

import numpy as np

from coopjax.memory_profile import Buffer, MemoryProfile


def profile_with(num_buffers: int) -> MemoryProfile:
  """A profile of a large training step: blocks whose values stay until the backward pass comes by."""
  half = num_buffers // 2
  buffers = tuple(
    Buffer(
      f"fusion.{i}",
      f"f32[{i % 97 + 1},256]",
      1024 * (i % 97 + 1),
      start=i,
      end=num_buffers - i if i < half else i + 20,
      offset=1024 * 97 * min(i, num_buffers - i),
      op="fusion",
      kind="residual" if i < half else "temporary",
      scope=f"jit(step)/jvp(Model)/block_{i % 48}/dense/dot_general",
      source=f"/home/me/model.py:{i % 300}",
      cost_s=1e-6 * i,
      cost_rank=i,
    )
    for i in range(num_buffers)
  )
  change = np.zeros(num_buffers + 21, np.int64)
  for buffer in buffers:
    change[buffer.start] += buffer.num_bytes
    change[buffer.end] -= buffer.num_bytes
  live_bytes = tuple(np.cumsum(change).tolist())
  return MemoryProfile(2**30, peak_live_bytes=max(live_bytes), live_bytes=live_bytes, name="step", buffers=buffers)
