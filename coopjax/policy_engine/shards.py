"""What one device holds of each value of a program that XLA will partition.

Weights and batches are spread by the caller, everything between them by the partitioner: a product's columns lie apart,
the sum over them whole on every device. What saving a value costs follows from that, so the partitioner is asked: the
forward pass with all of its values as results, those of scan bodies stacked, is partitioned, and its results' shapes
are read. Values of derivative rules, which only the differentiated pass has, are shared as values of their shape are.

The partitioner may decide otherwise where it sees the backward pass, too: compiles say how far that is off.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import EquationInfo, tag_jaxpr
from coopjax.jaxpr.trace import TracedFn

Shape = tuple[int, ...]
ShapesFn = Callable[[Callable[..., list[jax.Array]], Sequence[jax.ShapeDtypeStruct]], Sequence[Shape]]
_Key = tuple[int, int, int]  # region, position, output
_TOP = -1  # the region of no scan


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
  """How many devices share the values of one region.

  Attributes:
    at: by position and shape.
    anywhere: by shape, the fewest.
  """

  at: Mapping[tuple[int, Shape], int]
  anywhere: Mapping[Shape, int]

  def num_bytes(self, aval: Any, position: int) -> int:
    """What one device holds of a value that this position makes."""
    shape = getattr(aval, "shape", ())
    shards = self.at.get((position, shape)) or self.anywhere.get(shape)
    if shards is None:  # a derivative rule's own: most are as large as what the op reads or makes, reduced or widened
      shards = min((num for (at, _), num in self.at.items() if at == position), default=1)
    return -(-cost.num_bytes(aval) // shards)


WHOLE = Shards({}, {})  # on every device


def shards_of(traced: TracedFn, result_shapes: ShapesFn) -> dict[int | None, Shards]:
  """How values are shared, by the scan whose body holds them, None for the top; empty for a program of one device.

  Args:
    traced: the function.
    result_shapes: partitions a function of flat arrays: what one device holds of each of its results.
  """
  if not (traced.placement.is_spread and traced.placement.is_known):
    return {}
  _, table = tag_jaxpr(traced.inlined)
  program = _Probe(table)

  def values(*inputs):
    _, kept = program.evaluate(traced.inlined, _TOP, inputs)
    return [kept[key] for key in program.shapes]

  shapes = result_shapes(values, traced.in_avals)
  found: dict[int, dict[tuple[int, Shape], int]] = {}
  for (region, position, _), whole, part in zip(program.shapes, program.shapes.values(), shapes, strict=True):
    held = math.prod(part[len(part) - len(whole) :])
    found.setdefault(region, {})[position, whole] = max(1, math.prod(whole) // max(held, 1))
  lengths = {info.id: info.equation.params["length"] for info in table if info.primitive == "scan"}
  parents = {info.id: _TOP if info.parent_id is None else info.parent_id for info in table}
  anywhere = {region: _fewest((shape, num) for (_, shape), num in at.items()) for region, at in found.items()}
  for scan in sorted(anywhere.keys() - {_TOP}, reverse=True):  # what a body saves is stacked outside of it
    outside = anywhere.setdefault(parents[scan], {})
    stacked = {(lengths[scan], *shape): num for shape, num in anywhere[scan].items()}
    outside.update({shape: num for shape, num in stacked.items() if shape not in outside})
  return {
    None if region == _TOP else region: Shards(found.get(region, {}), by_shape) for region, by_shape in anywhere.items()
  }


def _fewest(found: Any) -> dict[Shape, int]:
  fewest: dict[Shape, int] = {}
  for shape, num in found:
    fewest[shape] = min(fewest.get(shape, num), num)
  return fewest


class _Probe:
  """Evaluates a jaxpr, and keeps every array on the way.

  Attributes:
    shapes: of what is kept, whole, in the order of the results.
  """

  def __init__(self, table: Sequence[EquationInfo]):
    self.shapes: dict[_Key, Shape] = {}
    self._ids: dict[int, list[int]] = {}
    for info in table:
      self._ids.setdefault(_TOP if info.parent_id is None else info.parent_id, []).append(info.id)

  def evaluate(self, jaxpr: core.Jaxpr, region: int, inputs: Sequence[Any]) -> tuple[list[Any], dict[_Key, jax.Array]]:
    """The outputs of a region, and what it makes, loops' values stacked."""
    env, kept = dict(zip(jaxpr.invars, inputs, strict=True)), dict[_Key, jax.Array]()
    read = lambda atom: atom.val if isinstance(atom, core.Literal) else env[atom]
    for position, (equation, equation_id) in enumerate(zip(jaxpr.eqns, self._ids.get(region, ()), strict=True)):
      arguments = [read(atom) for atom in equation.invars]
      if equation.primitive.name == "scan":
        outputs, inside = compat.scan_keeping(
          equation, arguments, lambda body, values, scan=equation_id: self.evaluate(body, scan, values)
        )
        kept |= inside
      else:
        outputs = compat.bind(equation, arguments)
      for index, (var, out) in enumerate(zip(equation.outvars, outputs, strict=True)):
        env[var] = out
        if isinstance(out, jax.Array) and out.ndim and not jnp.issubdtype(out.dtype, jax.dtypes.extended):
          kept[region, position, index] = out
          self.shapes[region, position, index] = out.shape
    return [read(atom) for atom in jaxpr.outvars], kept
