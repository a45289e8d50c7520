"""What a user's `jax.checkpoint` policy says of a jaxpr: saved, offloaded, or recomputed.

A policy answers with a bool, or with one of JAX's own marks. Those have no public name, so their types are taken from
the answers of JAX's own policy.

Under a checkpoint around, JAX forgets what the policies of checkpoints inside want saved. So what a region's policy
saves is given a name of ours (`with_names`), and regions around save that name. (What it offloads is not: there, it is
recomputed.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.extend import core
from jax.extend.core import primitives

from coopjax import compat


def over_names(saved: Sequence[str], offloaded: Sequence[str]) -> Callable[..., Any]:
  """JAX's policy that saves the values of some names, and offloads those of others to the host."""
  return jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=saved,
    names_which_can_be_offloaded=offloaded,
    offload_src="device",
    offload_dst="pinned_host",
  )


_example = over_names((), ("offloaded",))
_OFFLOADED, _RECOMPUTED = (type(_example(primitives.name_p, name=name)) for name in ("offloaded", "recomputed"))
KEPT = "coopjax:kept"  # the name of ours


def is_kept(answer: Any) -> bool:
  """Whether a policy's answer is to save or to offload."""
  return answer is not False and not isinstance(answer, _RECOMPUTED)


def is_offloaded(answer: Any) -> bool:
  """Whether a policy's answer is to offload."""
  return isinstance(answer, _OFFLOADED)


def kept_values(jaxpr: core.Jaxpr, policy: Callable) -> set[core.Var]:
  """The variables whose values a policy keeps, wherever; of a named value that under the name, too."""
  kept = set()
  for equation in reversed(jaxpr.eqns):
    is_name = compat.as_policies_see(equation)[0] is primitives.name_p
    if is_kept(answer_of(equation, policy)) or (is_name and not kept.isdisjoint(equation.outvars)):
      named = equation.invars if is_name else ()
      kept.update(atom for atom in (*named, *equation.outvars) if isinstance(atom, core.Var))
  return kept


def with_names(jaxpr: core.Jaxpr, policy: Callable) -> core.Jaxpr:
  """The jaxpr with our name on every value that a policy saves, in loops and branches too."""
  inner = [
    compat.map_sub_jaxprs(equation, lambda body: with_names(body, policy), lambda rule: rule) for equation in jaxpr.eqns
  ]
  equations: list[core.JaxprEqn] = []
  for original, equation in zip(jaxpr.eqns, inner, strict=True):
    answer = answer_of(original, policy)
    is_saved = is_kept(answer) and not is_offloaded(answer)
    equations += compat.named(equation, [var for var in equation.outvars if is_saved and is_nameable(var)], KEPT)
  return compat.rebuild(jaxpr, equations)


def is_nameable(var: core.Var) -> bool:
  """True for arrays that a policy can save by name: not for tokens, references, random keys, complex numbers (JAX puts
  a ``reduce_precision`` on what is saved, which takes none), or values that nobody reads.
  """
  aval = var.aval
  return (
    not isinstance(var, core.DropVar)
    and isinstance(aval, jax.core.ShapedArray)
    and any(jnp.issubdtype(aval.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
  )


def saving_names(jaxpr: core.Jaxpr, policy: Callable | None) -> Callable | None:
  """The policy, which saves what has our name, too, if the jaxpr gives it to anything."""
  if not _has_names(jaxpr):
    return policy

  def both(primitive, *avals, **params):
    if primitive is primitives.name_p and params["name"] == KEPT:
      return True
    return policy(primitive, *avals, **params) if policy else False

  return both


def besides(ours: Callable, users: Callable | None) -> Callable:
  """What a policy of ours saves and offloads besides what the user's does; what the user's offloads stays so."""
  if users is None:
    return ours

  def both(*args, **params):
    answer, theirs = ours(*args, **params), users(*args, **params)
    return answer if is_kept(answer) and not is_offloaded(theirs) else theirs

  return both


def _has_names(jaxpr: core.Jaxpr) -> bool:
  return any(
    compat.as_policies_see(equation)[1].get("name") == KEPT or any(map(_has_names, compat.sub_jaxprs(equation)))
    for equation in jaxpr.eqns
  )


def offloads(jaxpr: core.Jaxpr, policy: Callable) -> bool:
  """Whether a policy offloads anything of a jaxpr, in loops and calls too."""
  return any(
    is_offloaded(answer_of(equation, policy)) or any(offloads(inner, policy) for inner in compat.sub_jaxprs(equation))
    for equation in jaxpr.eqns
  )


def answer_of(equation: core.JaxprEqn, policy: Callable) -> Any:
  """What a policy says of one equation."""
  primitive, params = compat.as_policies_see(equation)
  return policy(primitive, *(atom.aval for atom in equation.invars), **params)
