"""Turns of a loop in groups, each group under one more checkpoint: below what a checkpoint around the body takes.

A checkpoint around the body keeps the carry of every turn. With one around every `size` turns only every `size`-th is
kept; a group is run forward once more when its turn comes, and keeps the carries, and what its turns save, until it is
done. The last turn of a group is differentiated as soon as it has run: peeled off the group's loop, it needs no
checkpoint of its own. For `length` turns that is ``length / size + size - 1`` carries in place of `length`, for up to
``(size - 1) / size`` of a further forward pass: none where the turns save everything that they repeat otherwise. Not
peeled, it is a carry and a turn more; but a peeled turn has gradients of its own for what all turns share: the weights
of a recurrent net. After Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section 4.

No parameter is copied for it but those of one group: the stacks that a loop goes over are looked at in another shape.
Only sizes that divide the number of turns are used: what is left over would have to be cut off the stacks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from coopjax import compat

_MAX_SIZES = 4


def sizes(length: int) -> list[int]:
  """Of groups of the turns of a loop, each with fewer carries than those before it.

  Example:
    >>> sizes(48)
    [2, 3, 4, 6]
  """
  found, fewest = list[int](), length
  for size in range(2, length):
    if length % size == 0 and length // size + size - 1 < fewest:
      found.append(size)
      fewest = length // size + size - 1
  return [found[i] for i in sorted({*np.linspace(0, len(found) - 1, _MAX_SIZES, dtype=int).tolist()})] if found else []


def in_groups(
  scan: core.JaxprEqn,
  size: int,
  wrapped: core.Jaxpr,
  plain: core.Jaxpr | None,
  checkpoint: Callable[[Callable], Callable],
) -> core.JaxprEqn:
  """A scan as one call that runs its turns in groups.

  Args:
    scan: the equation.
    size: of a group; divides the scan's length.
    wrapped: the body of all turns of a group but the last, if that is peeled off.
    plain: the body of the last; None where it is not peeled.
    checkpoint: puts a function of arrays under a checkpoint.
  """
  is_reverse, num_groups = scan.params["reverse"], scan.params["length"] // size

  def run(*values):
    consts, init, stacks = compat.scan_parts(scan, values)

    def turn(body: core.Jaxpr):
      def run_body(carry: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outputs = jax.core.eval_jaxpr(body, (), *consts, *carry, *slices)
        return outputs[: len(init)], outputs[len(init) :]

      return run_body

    def group(carry, slices):
      if plain is None:
        return lax.scan(turn(wrapped), list(carry), list(slices), size, is_reverse)
      early, last = zip(*(_parted(each, is_reverse) for each in slices), strict=True) if slices else ((), ())
      carry, made = lax.scan(turn(wrapped), list(carry), list(early), size - 1, is_reverse)
      carry, made_last = turn(plain)(carry, last)
      return carry, [_joined(each, own, is_reverse) for each, own in zip(made, made_last, strict=True)]

    grouped = [stack.reshape(num_groups, size, *stack.shape[1:]) for stack in stacks]
    carry, made = lax.scan(checkpoint(group), list(init), grouped, num_groups, is_reverse)
    return [*carry, *(each.reshape(num_groups * size, *each.shape[2:]) for each in made)]

  with scan.ctx.manager:
    (call,) = jax.make_jaxpr(jax.jit(run))(*[atom.aval for atom in scan.invars]).eqns
  return call.replace(invars=scan.invars, outvars=scan.outvars, source_info=scan.source_info)


def _parted(stack: jax.Array, is_reverse: bool) -> tuple[jax.Array, jax.Array]:
  """Of all turns of a group but the one that runs last, and of that."""
  return (stack[1:], stack[0]) if is_reverse else (stack[:-1], stack[-1])


def _joined(stack: jax.Array, last: jax.Array, is_reverse: bool) -> jax.Array:
  pieces = (last[None], stack) if is_reverse else (stack, last[None])
  return jnp.concatenate(pieces)
