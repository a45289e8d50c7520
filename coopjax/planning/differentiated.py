"""Functions that a step differentiates, as regions: of a step that has no others, and that the HLO engine alone can't
fit, or repeats much for; or whose own regions are too small for that.

While such a step is planned or its plan carried out, what `jax.grad` and `jax.vjp` are taken of becomes a region, as if
it stood under `coopjax.remat`; the step's own regions are a part of it. Of gradients of gradients, the outermost.
"""

from collections.abc import Callable

from coopjax import compat, contexts
from coopjax.planning import regions
from coopjax.planning.choice import Choice


class _Gradients:
  """Listens on behalf of the step that is being traced."""

  def is_listening(self) -> bool:
    return regions.is_planned() and contexts.directions.value.of_gradients

  def in_place_of(self, fn: Callable) -> Callable:
    return regions.region(fn, lambda _: Choice(), is_filtered=True)  # never asked: the step directs


_GRADIENTS = _Gradients()


def watch() -> None:
  """From now on, steps that are traced under directions say what they differentiate."""
  compat.hear_gradients(_GRADIENTS)
