"""What a user's `jax.checkpoint` policy says of a jaxpr: saved, offloaded, or recomputed.

A policy answers with a bool, or with one of JAX's own marks. Those have no public name, so their types are taken from
the answers of JAX's own policy.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.extend.core import primitives

from coopjax import compat

_example = jax.checkpoint_policies.save_and_offload_only_these_names(
  names_which_can_be_saved=(), names_which_can_be_offloaded=("offloaded",), offload_src="device",
  offload_dst="pinned_host")
_OFFLOADED, _RECOMPUTED = (type(_example(primitives.name_p, name=name)) for name in ("offloaded", "recomputed"))


def is_kept(case: Any) -> bool:
  """Whether a policy's answer is to save or to offload."""
  return case is not False and not isinstance(case, _RECOMPUTED)


def is_offloaded(case: Any) -> bool:
  """Whether a policy's answer is to offload."""
  return isinstance(case, _OFFLOADED)


def kept_values(jaxpr: core.Jaxpr, policy: Callable) -> set[core.Var]:
  """The variables whose values a policy keeps, wherever; of a named value that under the name, too."""
  kept = set()
  for equation in jaxpr.eqns:
    if is_kept(answer(equation, policy)):
      named = equation.invars if compat.as_policies_see(equation)[0] is primitives.name_p else ()
      kept.update(atom for atom in (*named, *equation.outvars) if isinstance(atom, core.Var))
  return kept


def offloads(jaxpr: core.Jaxpr, policy: Callable) -> bool:
  """Whether a policy offloads anything of a jaxpr, in loops and calls too."""
  return any(is_offloaded(answer(equation, policy))
             or any(offloads(inner, policy) for inner in compat.sub_jaxprs(equation)) for equation in jaxpr.eqns)


def answer(equation: core.JaxprEqn, policy: Callable) -> Any:
  """What a policy says of one equation."""
  primitive, params = compat.as_policies_see(equation)
  return policy(primitive, *(atom.aval for atom in equation.invars), **params)
