"""What an equation evaluates inside: which jaxprs, and how often.

`compat.sub_jaxprs` gives the jaxprs of ordinary JAX code that may be rewritten; costs also need those that may not.
A ``while`` says nothing of its length and counts as one iteration. Of a linear solve counts the solver, whose
``matvec`` is there for the gradient alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend import core

from coopjax import compat

# Their jaxprs combine two elements or two blocks: the rules of `op_work` count them.
_APPLIED = frozenset(
  "reduce reduce_window scatter scatter-add scatter-mul scatter-min scatter-max scatter-sub scatter_add scatter_mul "
  "scatter_min scatter_max scatter_sub select_and_scatter".split()
)
_KERNELS = frozenset("pallas_call mpmd_map".split())


class Bodies(NamedTuple):
  """The jaxprs inside an equation.

  Attributes:
    jaxprs: none for an equation without any.
    times: how often each of them is evaluated, on all devices together.
    is_choice: one of them is evaluated, not all.
  """

  jaxprs: Sequence[core.Jaxpr]
  times: int = 1
  is_choice: bool = False

  def total(self, each: Sequence[float]) -> float:
    """The cost of all that is evaluated, from those of the jaxprs; of a choice, the costliest."""
    return self.times * (max(each) if self.is_choice else sum(each))


def bodies_of(equation: core.JaxprEqn) -> Bodies:
  """The ordinary code inside an equation, which XLA compiles with the code around it."""
  name = equation.primitive.name
  if name in _APPLIED or name in _KERNELS:
    return Bodies(())
  if name == "custom_linear_solve":
    return Bodies((equation.params["jaxprs"].solve,))
  jaxprs = tuple(compat.sub_jaxprs(equation)) or _first_jaxpr(equation.params)
  if name == "scan":
    return Bodies(jaxprs, times=equation.params["length"])
  if name == "shard_map":
    return Bodies(jaxprs, times=compat.num_shards(equation))
  return Bodies(jaxprs, is_choice=name == "cond")


def kernels_of(equation: core.JaxprEqn) -> list[tuple[int, core.Jaxpr]]:
  """Runs and jaxpr of each kernel that an equation launches; a grid's dimension that is not known yet counts once."""
  name, params = equation.primitive.name, equation.params
  if name == "pallas_call":
    return [(math.prod(size for size in params["grid_mapping"].grid if isinstance(size, int)), params["jaxpr"])]
  if name == "mpmd_map":
    return [
      (math.prod(mesh.shape.values()), jaxpr) for mesh, jaxpr in zip(params["meshes"], params["jaxprs"], strict=True)
    ]
  return []


def _first_jaxpr(params: Mapping[str, Any]) -> tuple[core.Jaxpr, ...]:
  """The code of a call that nothing looks into otherwise; jaxprs behind the first are those of its derivatives."""
  return tuple(value for value in params.values() if isinstance(value, core.Jaxpr))[:1]
