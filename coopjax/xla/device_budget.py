"""What a device lets one program take, and what a user may ask of it."""

import dataclasses
from typing import Any

from coopjax.budget import Budget, format_bytes
from coopjax.errors import InvalidBudgetError
from coopjax.xla.targets import Target

# For what XLA does not count. On a CPU programs run beside others; on a GPU there are the context, the buffers of
# collectives and gaps between allocations; on a TPU infeeds and what the runtime keeps.
_RESERVED = {"cpu": 0.2, "gpu": 0.08, "tpu": 0.03}
_JAX_SHARE_OF_GPU = 0.75  # XLA_PYTHON_CLIENT_MEM_FRACTION; what is here says itself what it took


def fitting_bytes(target: Target) -> int:
  """What one program may take of one device, arguments and outputs included, with that reserve."""
  is_assumed = target.platform == "gpu" and not target.is_running
  return int(target.memory_bytes * (_JAX_SHARE_OF_GPU if is_assumed else 1.0) * (1 - _RESERVED[target.platform]))


def allowed(budget: Any, target: Target) -> Budget:
  """What a user asks of a device: "fits" in its bytes, anything else as it is.

  Raises:
    InvalidBudgetError: it is no budget, or more than an accelerator has.
  """
  budget = Budget.parse(budget)
  if budget.fits:
    return dataclasses.replace(budget, limit_bytes=fitting_bytes(target), fits=False)
  if target.platform != "cpu" and budget.limit_bytes is not None and budget.limit_bytes > target.memory_bytes:
    raise InvalidBudgetError(
      f"budget={budget}: one device of {target.name} has {format_bytes(target.memory_bytes)}; ask for less, or for "
      f'"fits", which leaves a program {format_bytes(fitting_bytes(target))}'
    )
  return budget
