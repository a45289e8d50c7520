"""Traces: which are in progress around what runs here, how to leave them, and what `jax.checkpoint` does in them."""

import contextlib
import itertools
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
from jax._src import config
from jax._src import core as core_internals
from jax._src import mesh as mesh_lib
from jax._src.interpreters import ad, batching, partial_eval

from coopjax.compat.meshes import without_manual_axes

_GRADIENTS = ad.JVPTrace | ad.LinearizeTrace | partial_eval.JaxprTrace
_LOOPS = ("scan", "fori_loop", "while_body")


@contextlib.contextmanager
def no_trace() -> Iterator[None]:
  """Leaves every trace in progress, so that a program can be compiled from inside a traced function.

  Named axes in scope are left, too; a mesh that the user has set stays.
  """
  axes, mesh = core_internals.trace_ctx.axis_env, jax.sharding.get_abstract_mesh()
  # The tracers of the traces left are no leaks, and the user's function has been checked when it was traced.
  unchecked = jax.check_tracer_leaks(False)
  outside = jax.sharding.use_abstract_mesh(without_manual_axes(mesh)) if mesh.manual_axes else contextlib.nullcontext()
  with unchecked, jax.core.eval_context(), outside:
    core_internals.trace_ctx.set_axis_env(core_internals.top_axis_env)
    try:
      yield
    finally:
      core_internals.trace_ctx.set_axis_env(axes)


class Surroundings(NamedTuple):
  """What the user has set around a program that is traced.

  Attributes:
    mesh: with `jax.set_mesh`.
    physical: a mesh as a context.
    settings: JAX's, meshes aside.
  """

  mesh: jax.sharding.Mesh
  physical: jax.sharding.Mesh
  settings: Hashable

  @classmethod
  def here(cls) -> "Surroundings":
    with no_trace(), jax.sharding.use_abstract_mesh(mesh_lib.empty_abstract_mesh):
      return cls(mesh_lib.get_concrete_mesh(), mesh_lib.thread_resources.env.physical_mesh, trace_context())

  @contextlib.contextmanager
  def entered(self) -> Iterator[None]:
    """What is traced inside is traced as in them: their meshes are set where none is, outside of every trace.

    Raises:
      RuntimeError: JAX's settings are others here.
    """
    here = Surroundings.here()
    with contextlib.ExitStack() as stack:
      if here.mesh.empty and not self.mesh.empty:
        stack.enter_context(jax.set_mesh(self.mesh))
      if here.physical.empty and not self.physical.empty:
        with warnings.catch_warnings():
          warnings.simplefilter("ignore", DeprecationWarning)  # which the user has had
          stack.enter_context(self.physical)
      if Surroundings.here().settings != self.settings:
        raise RuntimeError("it was traced under other settings of JAX than are set where it is compiled")
      yield


def vmaps_around(values: Sequence[Any]) -> list[tuple[int, tuple[bool, ...], bool, Hashable]]:
  """The `vmap`s that run over some of the values, the innermost first.

  Returns:
    ``(number of examples, whether each value is one of them, whether a gradient is taken of each example, name of the
    axis)``; for no name, JAX has an object.
  """
  found, has_gradient = [], False
  for trace in reversed(_traces()):
    has_gradient |= isinstance(trace, _GRADIENTS)
    if isinstance(trace, batching.BatchTrace):
      flags = tuple(trace in _batched_by(value) for value in values)
      if any(flags):
        found.append((trace.axis_data.size, flags, has_gradient, trace.axis_data.name))
  return found


def _batched_by(value: Any) -> list[batching.BatchTrace]:
  """The traces of the `vmap`s that run over a value."""
  if isinstance(value, ad.JVPTracer | ad.LinearizeTracer):
    return _batched_by(value.primal)
  if isinstance(value, batching.BatchTracer):
    return [value._trace, *_batched_by(value.val)]
  return []


def is_differentiated(value: Any) -> bool:
  """Whether the traces in progress show that a reverse-mode gradient is taken with respect to a value.

  One that is taken outside of a jit around is not shown by the values inside.
  """
  if isinstance(value, batching.BatchTracer):
    return is_differentiated(value.val)
  if isinstance(value, ad.JVPTracer):
    return is_differentiated(value.primal) or is_differentiated(value.tangent)
  return isinstance(value, ad.LinearizeTracer | partial_eval.JaxprTracer)


def is_eager() -> bool:
  """Whether operations run one by one here, each a program of its own: nothing around is traced to be compiled."""
  return not any(isinstance(trace, partial_eval.DynamicJaxprTrace) for trace in _traces())


def has_backward_outside() -> bool:
  """Whether a reverse-mode gradient of what runs here is taken outside of all that is compiled as one program."""
  outside = itertools.takewhile(lambda trace: not isinstance(trace, partial_eval.DynamicJaxprTrace), _traces())
  return any(isinstance(trace, ad.LinearizeTrace | partial_eval.JaxprTrace) for trace in outside)


def has_backward() -> bool:
  """Whether the traces in progress show that a reverse-mode gradient of what runs here is taken."""
  return any(isinstance(trace, ad.LinearizeTrace | partial_eval.JaxprTrace) for trace in _traces())


def shows_gradient() -> bool:
  """Whether a gradient is taken within all that is traced to be compiled here: values show with respect to what."""
  inside = itertools.takewhile(lambda trace: not isinstance(trace, partial_eval.DynamicJaxprTrace), _traces()[::-1])
  return any(isinstance(trace, _GRADIENTS) for trace in inside)


def is_in_differentiated_loop() -> bool:
  """Whether what runs here is a part of a loop's body, and a gradient is taken of the loop: it becomes two loops."""
  inside = itertools.dropwhile(lambda trace: not isinstance(trace, _GRADIENTS), _traces())
  return any(isinstance(trace, partial_eval.DynamicJaxprTrace) and _is_of_loop(trace) for trace in inside)


def _is_of_loop(trace: partial_eval.DynamicJaxprTrace) -> bool:
  about = trace.frame.debug_info
  return about is not None and about.traced_for in _LOOPS


def trace_context() -> Hashable:
  """All settings that what is traced here may depend on: flags, meshes and named axes in scope, user contexts."""
  return config.trace_context()


def num_gradients() -> int:
  """How many derivatives are being taken of what is traced here."""
  return sum(isinstance(trace, _GRADIENTS) for trace in _traces())


def outermost_traced() -> Hashable | None:
  """Stands for the outermost trace in progress of what is compiled, and is gone when that is; None outside of one."""
  return next((trace for trace in _traces() if isinstance(trace, partial_eval.DynamicJaxprTrace)), None)


def _traces() -> list[core_internals.Trace]:
  """The traces in progress here, the outermost first."""
  trace, found = core_internals.trace_ctx.trace, []
  while trace is not None:
    found.insert(0, trace)
    trace = getattr(trace, "parent_trace", None)
  return found


def pinned_checkpoint(fn: Callable, *, policy: Callable | None, prevent_cse: Any, is_classic: bool = False) -> Callable:
  """`jax.checkpoint` whose recompute waits for its cotangents.

  With both ``jax_remat3`` and ``jax_remat_barrier_no_cotangents`` on, the barrier holds the residuals alone, XLA:CPU
  hoists every recompute to the start of the backward pass and nothing is saved (16-layer decoder, JAX 0.11.2 and
  0.12.0.1: 75 MiB becomes 751). The classic implementation always pins the cotangents, so it is used there. It is used,
  too, where it is asked for: with inputs on the host, ``jax_remat3`` can't linearize (JAX 0.12.0.1).
  """

  def call(*args):
    must_be_classic = is_classic or config.remat_barrier_no_cotangents.value
    with config.remat3(False) if must_be_classic else contextlib.nullcontext():
      return jax.checkpoint(fn, policy=policy, prevent_cse=prevent_cse)(*args)

  return call
