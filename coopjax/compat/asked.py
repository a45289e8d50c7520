"""What JAX is asked for: jitted functions with their arguments, of which it makes programs.

Neither JAX's traces nor what it lowers and compiles know of the function. It is read off the frames of the call that
traces or compiles it; what is compiled later than it is traced is told by the object in between. JAX keeps a trace as
long as its function lives, and lowers and compiles it again for other arguments, or other options: then it asks for
another program, which is seen here, and not where the function is traced.
"""

# pyright: reportPrivateImportUsage=false

import dataclasses
import functools
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import jax
import jax.core
import numpy as np
from jax._src import pjit

from coopjax.compat.traces import Surroundings


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
  """A jitted function with the types of its arguments: no array is kept for it.

  Attributes:
    jitted: the function.
    args: types of its arguments; what is no array, as it is.
    kwargs: same.
    surroundings: in which it is traced.
  """

  jitted: jax.stages.Wrapped
  args: Sequence[Any]
  kwargs: dict[str, Any]
  surroundings: Surroundings

  @classmethod
  def here(cls, jitted: jax.stages.Wrapped, args: Sequence[Any], kwargs: dict[str, Any]) -> "Asked | None":
    """Of a call that is made here; None where it is itself a part of a trace, or its arguments can't be told."""
    try:
      if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
        return None
      args, kwargs = jax.tree.map(_abstract, (tuple(args), kwargs))
    except Exception:  # static ones have rules of their own, which JAX does not follow here
      return None
    return cls(jitted, args, kwargs, Surroundings.here())

  def lower(self) -> jax.stages.Lowered:
    """It, lowered as it was, where its surroundings are entered."""
    return self.jitted.lower(*self.args, **self.kwargs)

  def unplaced(self) -> "Asked":
    """It, with its arguments put nowhere if all lie where they would then, on one device: it takes the same there."""
    leaves, tree = jax.tree.flatten((self.args, self.kwargs))
    places = [leaf.sharding for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None]
    if not all(isinstance(place, jax.sharding.SingleDeviceSharding) and _is_usual(place) for place in places):
      return self
    types = [
      jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
      if isinstance(leaf, jax.ShapeDtypeStruct)
      else leaf
      for leaf in leaves
    ]
    args, kwargs = jax.tree.unflatten(tree, types)
    return dataclasses.replace(self, args=args, kwargs=kwargs)

  @property
  def options(self) -> tuple[tuple[str, Any], ...]:
    """The options of its compiler, for those of which JAX knows."""
    info = getattr(self.jitted, "_jit_info", None)
    return () if info is None else info.compiler_options_kvs

  def with_options(self, options: dict[str, Any]) -> "Asked | None":
    """It, with more options; None where they can't be given to it."""
    jitted: Any = self.jitted
    if not all(hasattr(jitted, name) for name in ("_fun", "_jit_info")):
      return None
    info = jitted._jit_info._replace(compiler_options_kvs=(*self.options, *options.items()))
    return dataclasses.replace(self, jitted=pjit._cpp_pjit(jitted._fun, info))


_of_stages: weakref.WeakKeyDictionary[Any, Asked] = weakref.WeakKeyDictionary()  # of JAX, between trace and compile


def watch_stages() -> None:
  """From now on, what is traced and lowered to be compiled later holds what was asked."""
  trace, lower, made = pjit.jit_trace, jax.stages.Traced.lower, jax.stages.Lowered.__init__

  @functools.wraps(trace)
  def jit_trace(jitted, *args, **kwargs):
    traced = trace(jitted, *args, **kwargs)
    if (asked := Asked.here(jitted, args, kwargs)) is not None:
      _of_stages[traced] = asked
    return traced

  @functools.wraps(lower)
  def lower_traced(self, *args, **kwargs):
    lowered = lower(self, *args, **kwargs)
    if (asked := _of_stages.get(self)) is not None:
      _of_stages[lowered] = asked
    return lowered

  @functools.wraps(made)
  def made_of(self, *args, **kwargs):
    made(self, *args, **kwargs)
    others = (each for each in list(_of_stages) if isinstance(each, jax.stages.Lowered))
    same = next((each for each in others if each._lowering is self._lowering), None)
    if same is not None:  # `jax.pmap` makes a stage of its own of what its jit lowers to
      _of_stages[self] = _of_stages[same]

  pjit.jit_trace, jax.stages.Traced.lower, jax.stages.Lowered.__init__ = jit_trace, lower_traced, made_of
  jax.jit(lambda: None)  # has the class of jitted functions take the one above


def traced_here() -> Asked | None:
  """The outermost jitted function in whose trace this is called; None outside of one, and where that is not known."""
  found = None
  for frame in _frames():
    if frame.f_code is _code_of("_trace_for_jit"):
      found = frame
  return None if found is None else _read(found, "ji")


def compiled_here() -> Asked | None:
  """The jitted function that is being compiled where this is called; None where it is not known.

  Under transformations of JAX's it may be that around, of which another program is compiled.
  """
  for frame in _frames():
    if frame.f_code.co_qualname == "Lowered.compile":  # JAX's own, which others may have wrapped
      asked, options = _of_stages.get(frame.f_locals["self"]), frame.f_locals.get("compiler_options")
      return asked.with_options(options) if asked and options else asked
    if frame.f_code is _code_of("_cpp_pjit", "cache_miss"):
      return _read(frame, "jit_info")
  return None


def _read(frame: FrameType, info: str) -> Asked | None:
  """What a frame of JAX's tells; None where it is not made like those of 0.11.2 to 0.12."""
  known = frame.f_locals
  if not all(name in known for name in ("fun", info, "args", "kwargs")):
    return None
  return Asked.here(pjit._cpp_pjit(known["fun"], known[info]), known["args"], known["kwargs"])


def _frames() -> Iterator[FrameType]:
  frame = sys._getframe(1)
  while frame is not None:
    yield frame
    frame = frame.f_back


@functools.cache
def _code_of(name: str, inner: str = "") -> CodeType | None:
  """Of a function of JAX's that jits, or of one that is made in it."""
  code = getattr(getattr(pjit, name, None), "__code__", None)
  if code is None or not inner:
    return code
  return next((each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == inner), None)


def _is_usual(place: jax.sharding.SingleDeviceSharding) -> bool:
  """Whether it is the memory of a device like that on which arrays are that are put nowhere."""
  (device,) = place.device_set
  if device.platform != jax.local_devices()[0].platform:  # of a target, whose devices tell no default
    return False
  return place.memory_kind in (None, device.default_memory().kind)


def _abstract(leaf: Any) -> Any:
  """An array's type, with its sharding where it has been put somewhere."""
  if not isinstance(leaf, jax.Array | np.ndarray):
    return leaf
  aval = jax.typeof(leaf)
  sharding = leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
