"""`jax.checkpoint`, heard where user code calls it: also what was wrapped before, by Flax and Equinox, too.

JAX traces a checkpointed function, then binds its primitive. Both are listened to, so that whoever plans can take the
place of the checkpoint at the moment of the call, under whatever transformations are in progress. Derivatives bind the
primitive, too, with jaxprs of their own: what was not traced for a call just now is not a call.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from jax._src import ad_checkpoint, config
from jax.extend import core


class Listener(Protocol):
  """Who hears of calls."""

  def is_listening(self) -> bool:
    """Whether calls are to be carried out here and now by `carry_out`."""
    ...

  def inside(self) -> contextlib.AbstractContextManager:
    """For the time that the checkpointed function is traced."""
    ...

  def carry_out(
    self, inputs: Sequence[Any], jaxpr: core.Jaxpr, policy: Callable | None, prevent_cse: bool
  ) -> Sequence[Any] | None:
    """The outputs of the function for its flat inputs; None to leave the call to JAX."""
    ...


class _Thread(threading.local):
  is_plain = False  # calls are JAX's own
  jaxpr: core.Jaxpr | None = None  # of the call in progress


_thread = _Thread()


@functools.cache
def hear_checkpoints(listener: Listener) -> None:
  """Tells of every call from now on; while nobody listens, all is as it was."""
  trace, bind, remat3 = ad_checkpoint._trace_to_jaxpr, ad_checkpoint.remat_p.bind, ad_checkpoint.remat3
  is_heard = lambda: not _thread.is_plain and listener.is_listening()

  def traced(*args, **kwargs):
    if not is_heard():
      return trace(*args, **kwargs)
    with listener.inside():
      result = trace(*args, **kwargs)
    _thread.jaxpr = result[0]
    return result

  def bound(*inputs, jaxpr, prevent_cse, policy, **params):
    called, _thread.jaxpr = _thread.jaxpr, None
    if called is not None and jaxpr is called:
      is_pinned = prevent_cse if isinstance(prevent_cse, bool) else any(prevent_cse)
      if (outputs := listener.carry_out(inputs, jaxpr, policy, is_pinned)) is not None:
        return outputs
    return bind(*inputs, jaxpr=jaxpr, prevent_cse=prevent_cse, policy=policy, **params)

  def newer(fn=None, /, **options):
    """Under ``jax_remat3`` nothing is bound as a primitive of its own: the classic form is, where it is heard."""
    if fn is None:
      return functools.partial(newer, **options)

    @functools.wraps(fn)
    def call(*args, **kwargs):
      if not is_heard():
        return remat3(fn, **options)(*args, **kwargs)
      with config.remat3(False):
        return ad_checkpoint.checkpoint(fn, **options)(*args, **kwargs)

    return call

  ad_checkpoint._trace_to_jaxpr, ad_checkpoint.remat_p.bind, ad_checkpoint.remat3 = traced, bound, newer


@contextlib.contextmanager
def plain_checkpoints() -> Iterator[None]:
  """Inside, calls are JAX's own: those that carry a plan out."""
  outer, _thread.is_plain = _thread.is_plain, True
  try:
    yield
  finally:
    _thread.is_plain = outer
