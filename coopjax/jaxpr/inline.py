"""A jaxpr with calls in it opened up: what JAX opens up itself, nested jits (and settled branches), or all."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend import core

from coopjax import compat


def inline_jits(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """The jaxpr with nested jits opened up, at every depth; custom derivative rules and checkpoints stay whole.

  A jit that asks for shardings, layouts or compiler options stays a call.
  """
  return _inline(jaxpr, lambda equation: equation.params["jaxpr"] if compat.is_plain_jit(equation) else None)


def inline_settled(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """The jaxpr with nested jits opened up, and of each `cond` whose predicate is a constant the branch that runs."""
  return _inline(jaxpr, _settled_body)


def inline_as_jax_does(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """The jaxpr with those calls opened up that JAX itself opens up where it traces (see `compat.keep_calls`)."""
  body_of = lambda equation: equation.params["jaxpr"] if compat.is_opened_by_jax(equation) else None
  return _inline(jaxpr, body_of, is_deep=False)


def inline_calls(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """The jaxpr with all calls opened up, at every depth: plain jits, custom derivative rules and checkpoints.

  For looking at, not for differentiating.
  """
  return _inline(jaxpr, compat.call_body)


def _settled_body(equation: core.JaxprEqn) -> core.Jaxpr | None:
  if equation.primitive.name != "cond" or not isinstance(equation.invars[0], core.Literal):
    return equation.params["jaxpr"] if compat.is_plain_jit(equation) else None
  branches = list(compat.sub_jaxprs(equation))
  taken = branches[min(max(int(equation.invars[0].val), 0), len(branches) - 1)]  # as the primitive clamps it
  return None if taken.consts or equation.effects else taken


def _inline(
  jaxpr: core.Jaxpr, body_of: Callable[[core.JaxprEqn], core.Jaxpr | None], *, is_deep: bool = True
) -> core.Jaxpr:
  """The jaxpr with the equations opened up for which `body_of` has a jaxpr, those in loops and rules, too, if deep."""
  substitute: dict[core.Var, Any] = {}
  read = lambda atom: atom if isinstance(atom, core.Literal) else substitute.get(atom, atom)
  equations: list[core.JaxprEqn] = []
  for equation in jaxpr.eqns:
    invars = [read(atom) for atom in equation.invars]
    if (body := body_of(equation)) is not None:
      outputs = _inline_call(equation, _inline(body, body_of) if is_deep else body, invars, equations)
      substitute.update(zip(equation.outvars, outputs, strict=True))
    else:
      if is_deep:
        equation = compat.map_sub_jaxprs(equation, lambda inner: _inline(inner, body_of), lambda rule: rule)
      equations.append(equation.replace(invars=invars))
  return compat.rebuild(jaxpr, equations, [read(atom) for atom in jaxpr.outvars])


def _inline_call(
  call: core.JaxprEqn, body: core.Jaxpr, arguments: Sequence[Any], equations: list[core.JaxprEqn]
) -> list[Any]:
  """Appends the equations of a call's body, with fresh variables, and returns what stands for its outputs."""
  operands = arguments[len(arguments) - len(body.invars) :]  # behind the index of a `cond`
  substitute = dict(zip(body.invars, operands, strict=True))
  read = lambda atom: atom if isinstance(atom, core.Literal) else substitute[atom]
  is_opened_by_jax = compat.is_opened_by_jax(call)
  for inner in body.eqns:
    if is_opened_by_jax and (known := compat.folded_by_jax(inner, list(map(read, inner.invars)))):
      substitute.update(zip(inner.outvars, known, strict=True))
      continue
    outvars = [var if isinstance(var, core.DropVar) else core.Var(var.aval) for var in inner.outvars]
    equations.append(compat.inlined(call, inner, [read(atom) for atom in inner.invars], outvars))
    substitute.update(zip(inner.outvars, outvars, strict=True))
  return [read(atom) for atom in body.outvars]
