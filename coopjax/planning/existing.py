"""Regions under the user's own `jax.checkpoint`: what a planned step decides on in place of what they say.

Flax, Equinox and everybody's layers end up there, in scans or out of them. While a step is planned or a plan carried
out, the call of a checkpointed function becomes that of a region (`regions.region`); checkpoints inside it are a part
of it. Outside of planned steps a checkpoint stays what it is.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
from jax.extend import core

from coopjax import compat, contexts
from coopjax.jaxpr.traced_once import trace_once
from coopjax.planning import regions

_KEPT_FUNCTIONS = 256


class _Checkpoints:
  """Listens on behalf of the step that is being traced."""

  def is_listening(self) -> bool:
    return regions.is_planned() and contexts.directions.value.existing != "keep"

  def inside(self) -> contextlib.AbstractContextManager:
    return regions.inside_region()

  def carry_out(
    self, inputs: Sequence[Any], jaxpr: core.Jaxpr, policy: Callable | None, prevent_cse: bool
  ) -> Sequence[Any] | None:
    kept = policy if contexts.directions.value.existing == "at_least" else None
    with regions.inside_region():
      traced, leaves = trace_once(
        _function_of(jaxpr), inputs, {}, policy=kept, static_argnums=(), static_argnames=(), paths=_paths(jaxpr)
      )
    flat_fn = regions.directed(traced, prevent_cse, policy or jax.checkpoint_policies.nothing_saveable)
    return None if flat_fn is None else traced.call(leaves, flat_fn)


_CHECKPOINTS = _Checkpoints()


def watch() -> None:
  """From now on, steps that are traced under directions say what their checkpoints do."""
  compat.hear_checkpoints(_CHECKPOINTS)


@functools.lru_cache(_KEPT_FUNCTIONS)
def _function_of(jaxpr: core.Jaxpr) -> Callable[..., list[Any]]:
  """The checkpointed function, of flat inputs; the same one for a jaxpr, so that it is traced once."""

  def checkpointed(*inputs):
    return jax.core.eval_jaxpr(jaxpr, (), *inputs)

  checkpointed.__name__ = jaxpr.debug_info.func_name.split(" ")[0]
  return checkpointed


def _paths(jaxpr: core.Jaxpr) -> list[str]:
  """Those of its inputs, as the checkpointed function knows them; "" for what it closes over."""
  names = jaxpr.debug_info.arg_names or ()
  return [name or "" for name in names] if len(names) == len(jaxpr.invars) else [""] * len(jaxpr.invars)
