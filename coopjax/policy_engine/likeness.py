"""When two segments of a jaxpr are the same function: the layers of an unrolled model."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from jax.extend import core

from coopjax.policy_engine.decisions import Segment, Value


def likeness(jaxpr: core.Jaxpr, segment: Segment, invars: Sequence[core.Var], outvars: Sequence[core.Var]) -> Hashable:
  """Equal for segments that do the same equations in the same order, and keep the same of them.

  Of custom derivative rules that are traced at each call, no two are known to be the same.

  Args:
    jaxpr: of the region.
    segment: of it.
    invars: what it reads from outside.
    outvars: what is read of it later.
  """
  number = {var: i for i, var in enumerate(invars)}
  equations = []
  for equation in jaxpr.eqns[segment.start : segment.stop]:
    atoms = tuple(number[atom] if isinstance(atom, core.Var) else _literal(atom) for atom in equation.invars)
    params = tuple((name, _by_value(value)) for name, value in sorted(equation.params.items()))
    made = tuple(var.aval for var in equation.outvars)
    equations.append((equation.primitive, atoms, params, made, id(equation.ctx)))
    number.update((var, len(number)) for var in equation.outvars)
  types = tuple(var.aval for var in invars)
  return tuple(equations), types, tuple(number[var] for var in outvars), _from_start(segment, segment.start)


def _literal(atom: Any) -> Hashable:
  return "literal", atom.aval, type(atom.val), np.asarray(atom.val).tobytes()  # scalars


def _by_value(value: Any) -> Hashable:
  """The value; what can't be compared is like itself alone."""
  try:
    hash(value)
  except TypeError:
    return "id", id(value)
  return value


def _from_start(segment: Segment, start: int) -> Hashable:
  """What is decided on a segment, in positions from there."""

  def of(values: Sequence[Value]) -> Hashable:
    return tuple((position - start, index) for position, index in values)

  bounds, kept = (segment.start - start, segment.stop - start), (of(segment.saved), of(segment.offloaded))
  return bounds, kept, segment.is_wrapped, tuple(_from_start(piece, start) for piece in segment.inner)
