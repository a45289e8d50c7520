"""Splits of random keys: before a checkpoint, not in it.

A turn that takes ``key, mine = split(key)`` runs its layer with ``mine``. A checkpoint around both keeps the key, and
splits it again; people write it around the layer alone: it keeps ``mine``, as many bytes. So what stands in front of a
turn, has no gradient and is as small runs before the turn's checkpoint; what is drawn from keys may be a little more.
"""

from collections.abc import Collection, Iterable

from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import is_floating

_SPLIT_BYTES = 192  # about what XLA takes to split a key once more


def num_before(body: core.Jaxpr, stop: int, carried: Collection[core.Var], num_turns: int) -> int:
  """How many of the first equations of a scan's body run before its checkpoint.

  Args:
    body: the body.
    stop: where the checkpoint ends.
    carried: the variables of the body that hold the carry: what else it is given is there in every turn anyway.
    num_turns: of the scan.
  """
  num, made, more_bytes = 0, set[core.Var](), 0
  for first, equation in enumerate(body.eqns[: stop - 1], 1):
    if equation.effects or any(is_floating(var.aval) for var in equation.outvars):
      break
    made.update(equation.outvars)
    if _is_random(equation):
      more_bytes = _SPLIT_BYTES
    inside = _read(body.eqns[first:stop])
    kept, spared = made & inside, _read(body.eqns[:first]).intersection(carried) - inside
    if num_turns * (_num_bytes(kept) - _num_bytes(spared)) <= more_bytes:
      num = first
  return num


def _is_random(equation: core.JaxprEqn) -> bool:
  inner = (each for jaxpr in compat.sub_jaxprs(equation) for each in jaxpr.eqns)
  return equation.primitive.name.startswith(("random_", "rng_", "threefry")) or any(map(_is_random, inner))


def _read(equations: Iterable[core.JaxprEqn]) -> set[core.Var]:
  return {atom for equation in equations for atom in equation.invars if isinstance(atom, core.Var)}


def _num_bytes(values: Iterable[core.Var]) -> int:
  return sum(cost.num_bytes(var.aval) for var in values)
