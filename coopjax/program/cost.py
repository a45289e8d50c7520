"""Seconds of an op by a roofline: what makes a recompute of one op comparable with that of another.

FLOPs, transcendentals and bytes are counted per instruction by ``xla_pass/bridge/cost.h``, as XLA counts them; a target
turns them into seconds. Planners need ratios, not a stopwatch: a matrix product against an exponential against a copy.
"""

import dataclasses
import math

FLOPS_PER_LINK_BYTE = 2000.0
"""FLOPs of a device in the time that it takes to send a byte to another, where the target is not known.

Near those of an H100 (2,198) and of a v5e (2,189).
"""


@dataclasses.dataclass(frozen=True)
class Roofline:
  """How fast a target is at its best.

  An op is modelled to take
  ``max(flops / flops_per_s + transcendentals / transcendentals_per_s, bytes / bytes_per_s) + op_overhead_s``.

  Attributes:
    flops_per_s: floating-point operations per second in a large matrix product.
    transcendentals_per_s: exponentials, hyperbolic tangents, logarithms and the like per second.
    bytes_per_s: bytes read plus written per second by an op whose arrays don't fit the inner caches.
    op_overhead_s: seconds to start an op.
    link_bytes_per_s: bytes per second that a device sends to its neighbours while all do.
  """

  flops_per_s: float
  transcendentals_per_s: float
  bytes_per_s: float
  op_overhead_s: float
  link_bytes_per_s: float = math.inf

  def __post_init__(self):
    rates = (self.flops_per_s, self.transcendentals_per_s, self.bytes_per_s, self.link_bytes_per_s)
    if not all(rate > 0 for rate in rates) or not 0 <= self.op_overhead_s < math.inf:
      raise ValueError(f"a roofline has positive rates and an overhead of no less than 0, got {self}")

  @property
  def flops_per_link_byte(self) -> float:
    """What a device could compute while it sends a byte."""
    return self.flops_per_s / self.link_bytes_per_s

  @property
  def of_one_device(self) -> tuple[float, float, float, float]:
    """Without the link, which no op that the HLO engine repeats uses: as C++ takes them."""
    return self.flops_per_s, self.transcendentals_per_s, self.bytes_per_s, self.op_overhead_s

  def arithmetic_seconds(self, flops: float, transcendentals: float) -> float:
    """The first term: seconds that the arithmetic takes."""
    return flops / self.flops_per_s + transcendentals / self.transcendentals_per_s

  def seconds(self, arithmetic_s: float, num_bytes: float) -> float:
    """Modelled seconds of one op."""
    return max(arithmetic_s, num_bytes / self.bytes_per_s) + self.op_overhead_s


CPU = Roofline(flops_per_s=4e11, transcendentals_per_s=2e9, bytes_per_s=2e10, op_overhead_s=2e-6, link_bytes_per_s=1e10)
"""A CPU with two cores, by XLA:CPU's own kernels, best of five to nine runs each:

- FLOPs: ``a @ a`` for float32 ``[n, n]``, n = 256 ... 2048 (240 to 520 GFLOP/s), and a 3x3 convolution with 64 channels
  (440 GFLOP/s).
- transcendentals: eight chained ``exp``, ``tanh``, ``log`` over 4 Mi float32 (1.7 to 2.2 G/s; ``rsqrt`` 5 G/s).
- bytes: ten chained unfusable roll-and-scale passes inside one program, 4 to 256 MiB each (75 GB/s in cache, 19 GB/s at
  16 MiB, 8 to 9 GB/s beyond).
- link: a copy in memory, read and written; not measured.
- overhead: the slope of the time of chains of products and sorts of 4x4 arrays over their length (1.5 us an op).
"""
