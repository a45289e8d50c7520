"""Compiles a function for abstract arguments, from anywhere."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from coopjax import compat


def compile_abstract(fn: Callable[..., Any], avals: Sequence[jax.ShapeDtypeStruct], *,
                     target: jax.sharding.Sharding | None = None, donate: Sequence[int] = ()) -> jax.stages.Compiled:
  """Compiles `fn` for positional arguments of these types without running it.

  It may be called while JAX is tracing something else (inside a jitted or differentiated function); `fn` then must
  not close over that trace's values.

  Args:
    fn: a function of positional arrays.
    avals: one per argument; a sharding on one is obeyed.
    target: where arguments without a sharding live: a sharding over a compile-only topology's devices compiles for
      hardware that is not there. None is the default backend.
    donate: positions of the arguments whose buffers outputs may take over.
  """
  if target is not None:
    avals = [aval if aval.sharding is not None else
             jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=target, weak_type=aval.weak_type)
             for aval in avals]
  with compat.no_trace():
    return jax.jit(fn, donate_argnums=tuple(donate)).lower(*avals).compile()
