"""Functions that are called under `vmap`: what is compiled is of all examples, as the user's own program will be."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coopjax import compat

Aval = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Batch:
  """A `vmap` around a function.

  Attributes:
    num_examples: it runs over.
    is_batched: per input of the function: each example has its own.
    of_gradient: a gradient is taken of each example; else, one of all, or none.
    axis_name: that the function may know it by.
  """

  num_examples: int
  is_batched: tuple[bool, ...]
  of_gradient: bool
  axis_name: Any = dataclasses.field(repr=False)  # for none, JAX has an object; the axes in scope tell the others apart


def batches_of(values: Sequence[Any]) -> tuple[Batch, ...]:
  """The `vmap`s around a call with these inputs, the innermost first."""
  return tuple(Batch(*found) for found in compat.vmaps_around(values))


def batched_fn(fn: Callable[..., Any], batches: Sequence[Batch]) -> Callable[..., Any]:
  """A function of flat inputs, of all examples; of inputs beyond those that are known, each example has its own."""
  for batch in batches:
    fn = _vmapped(fn, batch)
  return fn


def _vmapped(fn: Callable[..., Any], batch: Batch) -> Callable[..., Any]:
  @functools.wraps(fn)
  def of_all(*inputs):
    own = (*batch.is_batched, *[True] * (len(inputs) - len(batch.is_batched)))
    axes = tuple(0 if is_own else None for is_own in own)
    return jax.vmap(fn, axes, axis_name=batch.axis_name, axis_size=batch.num_examples)(*inputs)

  return of_all


def batched_avals(inputs: Sequence[Aval], others: Sequence[Aval], batches: Sequence[Batch]) -> tuple[list[Aval], ...]:
  """The types of all examples' inputs; same."""
  inputs, others = list(inputs), list(others)
  for batch in batches:
    inputs = [_stacked(aval, batch) if is_own else aval for is_own, aval in zip(batch.is_batched, inputs, strict=True)]
    others = [_stacked(aval, batch) for aval in others]
  return inputs, others


def _stacked(aval: Aval, batch: Batch) -> Aval:
  return jax.ShapeDtypeStruct((batch.num_examples, *aval.shape), aval.dtype, weak_type=aval.weak_type)
