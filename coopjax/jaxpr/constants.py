"""Arrays that a function closes over, as they stand in the program that runs: constants, which XLA folds.

Weakness: more than 32 MiB of them are inputs where plans are tried, since every trial would write and read them; bytes
are off, then, by what XLA makes of them when it compiles.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

_MOST_BYTES = 2**25  # of all together


def with_constants(
  fn: Callable[..., Any], avals: Sequence[jax.ShapeDtypeStruct], consts: Sequence[Any]
) -> tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]:
  """A function without those of its inputs that are constants, and the types of the others.

  Args:
    fn: of flat inputs.
    avals: their types.
    consts: of its first inputs; tracers of an outer trace, keys and arrays on several devices stay inputs.
  """
  known = {i: const for i, const in enumerate(consts) if _is_constant(const)}
  if not known or sum(const.nbytes for const in known.values()) > _MOST_BYTES:
    return fn, tuple(avals)

  def of_others(*others):
    left = iter(others)
    return fn(*(_as_it_stands(known[i]) if i in known else next(left) for i in range(len(avals))))

  of_others.__name__ = fn.__name__
  return of_others, tuple(aval for i, aval in enumerate(avals) if i not in known)


def _as_it_stands(const: jax.Array | np.ndarray) -> Any:
  """The constant on no device. What is one value to JAX, as its own arrays are, a loop hands on; NumPy's arrays, which
  are new ones wherever they are met, it stacks slice by slice. A name, which XLA does not see, makes it one.
  """
  return checkpoint_name(np.asarray(const), "constant") if isinstance(const, jax.Array) else const


def _is_constant(const: Any) -> bool:
  if isinstance(const, jax.core.Tracer) or not isinstance(const, jax.Array | np.ndarray):
    return False
  is_whole = not isinstance(const, jax.Array) or len(const.sharding.device_set) == 1
  return is_whole and not jnp.issubdtype(const.dtype, jax.dtypes.extended)
