"""A corpus of programs whose scheduled modules show what XLA:CPU makes of JAX: ops, loops, calls, shardings.

Every program is a function with its arguments, small enough to compile in about a second, and deterministic: two runs
capture the same bytes. ``capture`` stops XLA right after scheduling, so no code is generated.

  python -m benchmarks.hlo_corpus build/corpus              # writes serialized HloModuleProtos: build/corpus/NAME.pb
  python -m benchmarks.hlo_corpus build/corpus fft pooling  # only these
"""

from . import networks, ops, sequences, sharded
from .program import PROGRAMS, Program, capture, compile_rewritten, names, use_virtual_devices

__all__ = [
  "PROGRAMS",
  "Program",
  "capture",
  "compile_rewritten",
  "names",
  "networks",
  "ops",
  "sequences",
  "sharded",
  "use_virtual_devices",
]
