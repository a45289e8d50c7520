"""Reverse-mode gradients, heard where user code takes them: by `jax.grad` and `jax.vjp`, of Flax's and Equinox's, too.

All of them linearize a function of pytrees in one place. It is listened to, so that whoever plans can put another
function there that computes the same.
"""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from jax._src.interpreters import ad

from coopjax.compat.traces import num_gradients

_linearize, _backward_pass = ad.linearize, ad.backward_pass3  # JAX's own; one without them can't be imported


class GradientListener(Protocol):
  """Who hears of gradients."""

  def is_listening(self) -> bool:
    """Whether functions that are differentiated here and now are to be replaced."""
    ...

  def in_place_of(self, fn: Callable) -> Callable:
    """What is differentiated in place of a function; it takes and gives the same."""
    ...


class _Thread(threading.local):
  is_taking = False  # a gradient: what it is taken of runs, or the backward pass does


_thread = _Thread()


@functools.cache
def hear_gradients(listener: GradientListener) -> None:
  """Tells of every gradient from now on, but of those inside another derivative, or in a rule for one that the user
  wrote; while nobody listens, all is as it was.
  """

  @functools.wraps(_linearize)
  def linearized(fn, *args, is_vjp=False, **options):
    if is_vjp and not _thread.is_taking and not num_gradients() and listener.is_listening():
      fn = listener.in_place_of(_named(fn))
    with _taking():
      return _linearize(fn, *args, is_vjp=is_vjp, **options)

  @functools.wraps(_backward_pass)
  def passed_back(*args, **options):
    with _taking():
      return _backward_pass(*args, **options)

  ad.linearize, ad.backward_pass3 = linearized, passed_back


@contextlib.contextmanager
def _taking() -> Iterator[None]:
  outer, _thread.is_taking = _thread.is_taking, True
  try:
    yield
  finally:
    _thread.is_taking = outer


def _named(fn: Callable) -> Callable:
  """A function that JAX made for a gradient by some of the arguments, named after the one that it calls."""
  if getattr(fn, "__qualname__", "").startswith("argnums_partial"):
    inside = inspect.getclosurevars(fn).nonlocals.get("f")
    fn.__name__ = getattr(inside, "__name__", fn.__name__)
  return fn
