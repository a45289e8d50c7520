"""What one device holds of each value of a program that XLA will partition.

Weights and batches are spread by the caller, everything between them by the partitioner: a product's columns lie apart,
the sum over them whole on every device. What saving a value costs follows from that, so the partitioner is asked, with
the gradient, too: of a forward pass alone it may leave whole what it cuts where gradients must lie apart. Values of
derivative rules, which only the differentiated pass has, are taken to be shared as others of their shape are.

What is repeated it may cut otherwise: compiles say how far that is off.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import EquationInfo, tag_jaxpr
from coopjax.jaxpr.trace import TracedFn, fn_and_gradient

Shape = tuple[int, ...]
Partition = Callable[[Callable[..., list[jax.Array]], Sequence[jax.ShapeDtypeStruct]], object]


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
  """How many devices share the values of one region.

  Attributes:
    at: by position and shape.
    anywhere: by shape, the fewest.
    of_work: that the region's work is cut into: as many as the program's most finely cut value has.
  """

  at: Mapping[tuple[int, Shape], int]
  anywhere: Mapping[Shape, int]
  of_work: int = 1

  def num_bytes(self, aval: Any, position: int) -> int:
    """What one device holds of a value that this position makes."""
    shape = getattr(aval, "shape", ())
    shards = self.at.get((position, shape)) or self.anywhere.get(shape)
    if shards is None:  # a derivative rule's own: most are as large as what the op reads or makes, reduced or widened
      shards = min((num for (at, _), num in self.at.items() if at == position), default=1)
    return -(-cost.num_bytes(aval) // shards)


WHOLE = Shards({}, {})  # on every device


def shards_of(traced: TracedFn, partition: Partition) -> dict[int | None, Shards]:
  """How values are shared, by the scan whose body holds them, None for the top; empty for a program of one device.

  Args:
    traced: the function.
    partition: compiles a function of flat arrays, this one's with its gradient, until XLA has partitioned it, at least.
  """
  if not (traced.placement.is_spread and traced.placement.is_known):
    return {}
  observed = Observed()
  partition(*fn_and_gradient(traced, observed.flat_fn(traced)))
  return observed.shards


def _fewest(at: Mapping[tuple[int, Shape], int]) -> dict[Shape, int]:
  fewest: dict[Shape, int] = {}
  for (_, shape), num in at.items():
    fewest[shape] = min(fewest.get(shape, num), num)
  return fewest


class Observed:
  """A way to carry a function out: as it is, with the partitioner telling how it cuts each array."""

  def __init__(self):
    self._at: dict[int | None, dict[tuple[int, Shape], int]] = {}  # by region, of a position's values of a shape
    self._table: tuple[EquationInfo, ...] = ()
    self._ids: dict[int | None, list[int]] = {}

  def flat_fn(self, traced: TracedFn) -> Callable[..., list[Any]]:
    """The function, in place of ``traced.evaluate``."""
    _, self._table = tag_jaxpr(traced.inlined)
    self._ids = {}
    for info in self._table:
      self._ids.setdefault(info.parent_id, []).append(info.id)
    return lambda *inputs: self._evaluate(traced.inlined, None, inputs)

  @property
  def shards(self) -> dict[int | None, Shards]:
    """What the partitioner told, as from `shards_of`; empty if it was not asked."""
    anywhere = {region: _fewest(at) for region, at in self._at.items()}
    for info in sorted(self._table, key=lambda info: -info.id):  # what a body saves is stacked outside of it
      for shape, num in anywhere.get(info.id, {}).items():
        anywhere.setdefault(info.parent_id, {}).setdefault((info.equation.params["length"], *shape), num)
    if not anywhere:
      return {}
    of_work = max(num for at in self._at.values() for num in at.values())
    return {region: Shards(self._at.get(region, {}), anywhere.get(region, {}), of_work) for region in self._ids}

  def _evaluate(self, jaxpr: core.Jaxpr, region: int | None, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a region."""
    env = compat.environment(jaxpr, inputs)
    made_from_inputs = {*jaxpr.invars}  # what is not, a mask for one, each device makes as it needs it
    read = lambda atom: atom.val if isinstance(atom, core.Literal) else env[atom]
    for position, (equation, equation_id) in enumerate(zip(jaxpr.eqns, self._ids.get(region, ()), strict=True)):
      arguments = [read(atom) for atom in equation.invars]
      if equation.primitive.name == "scan":
        inside = lambda body, values, scan=equation_id: self._evaluate(body, scan, values)
        outputs = compat.bind_scan(equation, arguments, inside)
      else:
        outputs = compat.bind(equation, arguments)
      env.update(zip(equation.outvars, outputs, strict=True))
      if made_from_inputs.isdisjoint(atom for atom in equation.invars if isinstance(atom, core.Var)):
        continue
      made_from_inputs.update(equation.outvars)
      for out in outputs:
        if isinstance(out, jax.Array) and out.ndim and not jnp.issubdtype(out.dtype, jax.dtypes.extended):
          at = self._at.setdefault(region, {})
          compat.observe_shards(out, functools.partial(at.__setitem__, (position, out.shape)))
    return [read(atom) for atom in jaxpr.outvars]
