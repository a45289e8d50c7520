"""Functions traced once for arguments of one kind, as JAX does it for those under `jax.checkpoint`.

A trace is kept as long as its function, under all that it depends on: structure, types and places of the arguments,
static ones, JAX's settings. One that holds values of a trace in progress is not kept. So a function that is called
again is not run again, and what is compiled for its equations is found in JAX's caches.
"""

import collections
import dataclasses
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.core

from coopjax import compat
from coopjax.jaxpr.arguments import SplitArguments, split_arguments
from coopjax.jaxpr.placement import place
from coopjax.jaxpr.trace import TracedFn, trace

_KEPT_TRACES = 32  # of one function


class _Kept:
  """Traces by the identity of their function; safe under threads."""

  def __init__(self):
    self._lock = threading.RLock()
    self._of: dict[int, tuple[weakref.ref, collections.OrderedDict[Hashable, TracedFn]]] = {}

  def get(self, fn: Callable, key: Hashable) -> TracedFn | None:
    with self._lock:
      _, traces = self._of.get(id(fn), (None, {}))
      return traces.get(key)

  def put(self, fn: Callable, key: Hashable, traced: TracedFn) -> None:
    number = id(fn)
    try:
      watched = weakref.ref(fn, lambda _: self._forget(number))
    except TypeError:  # nobody would tell when it is gone
      return
    with self._lock:
      _, traces = self._of.setdefault(number, (watched, collections.OrderedDict()))
      traces[key] = traced
      while len(traces) > _KEPT_TRACES:
        traces.popitem(last=False)

  def _forget(self, number: int) -> None:
    with self._lock:
      self._of.pop(number, None)


_kept = _Kept()


def trace_once(
  fn: Callable,
  args: Sequence[Any],
  kwargs: dict[str, Any],
  *,
  policy: Callable | None,
  static_argnums: int | Sequence[int],
  static_argnames: str | Sequence[str],
  is_filtered: bool = False,
  paths: Sequence[str] | None = None,
) -> tuple[TracedFn, tuple[Any, ...]]:
  """The traced function (see `trace`) and the leaves to call it with; `paths` are theirs where the function has others
  than these arguments have.
  """
  split = split_arguments(
    fn, args, kwargs, static_argnums=static_argnums, static_argnames=static_argnames, is_filtered=is_filtered
  )
  key = _key(split, policy)
  if key is not None and (known := _kept.get(fn, key)) is not None:
    return _as_called(fn, key, known, split.leaves), split.leaves
  traced = trace(fn, dataclasses.replace(split, paths=paths), policy=policy)
  if key is not None and not any(isinstance(const, jax.core.Tracer) for const in traced.consts):
    _kept.put(fn, key, traced)
  return traced, split.leaves


def _as_called(fn: Callable, key: Hashable, traced: TracedFn, leaves: Sequence[Any]) -> TracedFn:
  """A kept trace for a call that may be differentiated by other arguments: it has choices of its own."""
  called = traced.called_with(leaves)
  if called is traced:
    return traced
  key = (key, called.is_differentiable)
  if (known := _kept.get(fn, key)) is not None:
    return known
  _kept.put(fn, key, called)
  return called


def _key(split: SplitArguments, policy: Callable | None) -> Hashable | None:
  """What a trace depends on besides its function; None where that can't be compared."""
  static = tuple((where, type(value), value) for where, value in split.static)
  try:
    types = tuple(map(jax.typeof, split.leaves))
    key = (split.in_tree, split.is_filtered, types, static, policy, place(split.leaves), compat.trace_context())
    hash(key)
  except TypeError:
    return None
  return key
