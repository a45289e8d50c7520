"""Values inside the loops, branches, shards and derivative rules of a region: a step's gates, one expert's products,
the row sums that the backward pass of a flash attention reads.

A policy around the region saves them by name, stacked over the steps, and what lies between them alone is repeated.
So such a value has a name of ours: ``@`` and its place, ``body.equation.output``, behind those of the equations that it
lies in. What a loop carries into a step has the equation -1.
"""

import itertools
from collections.abc import Callable

from jax.extend import core
from jax.extend.core import primitives

from coopjax import compat
from coopjax.jaxpr.inline import inline_jits
from coopjax.jaxpr.user_policy import is_nameable
from coopjax.policy_engine.decisions import Value

_MARK, _AND = "@", "&"
_OPENED = ("scan", "cond", "shard_map")
_WITH_RULE = "custom_vjp_call"  # whose forward rule is what a gradient runs


def is_inside(value: Value) -> bool:
  """Whether a value lies in a loop, a branch, a shard or a rule, without a name of the user's."""
  return isinstance(value[1], str) and value[1].startswith(_MARK)


def parsed(name: str) -> Value | None:
  """The value that `opened` gave this name, with the position as a prefix."""
  position, mark, place = name.partition(_MARK)
  return (int(position), mark + place) if mark and position.isdigit() else None


def joined(values: list[Value]) -> Value:
  """What branches hand out in one place: saved if each of these is."""
  return values[0][0], _AND.join(dict.fromkeys(str(index) for _, index in values))


def parts(value: Value) -> list[Value]:
  """The values that `joined` made one of; else the value itself."""
  return [(value[0], index) for index in str(value[1]).split(_AND)] if is_inside(value) else [value]


def opened(equation: core.JaxprEqn, name_of: Callable[[str], str | None], place: str = _MARK) -> core.JaxprEqn:
  """A loop, a branch, a `shard_map` or a call with a derivative rule, names on what lies inside; others as they are.

  Args:
    equation: of the region.
    name_of: from the place to the name; None for what gets none.
    place: of the equation's bodies.
  """

  def named(body: core.Jaxpr, number: int) -> core.Jaxpr:
    at, equations = f"{place}{number}.", list[core.JaxprEqn]()
    for i, inner in enumerate(body.eqns):
      made = [opened(inner, name_of, f"{at}{i}/")]
      if inner.primitive is not primitives.name_p:  # what the user has named, a policy knows
        for index, var in enumerate(inner.outvars):
          if is_nameable(var) and (name := name_of(f"{at}{i}.{index}")):
            made[:1] = compat.named(made[0], [var], name)
      equations += made
    carries = _carries(equation, body)
    names = {var: name for k, var in enumerate(carries) if is_nameable(var) and (name := name_of(f"{at}-1.{k}"))}
    return compat.with_named_inputs(compat.rebuild(body, equations), names)

  if equation.primitive.name == _WITH_RULE:
    return compat.map_sub_jaxprs(equation, lambda body: body, lambda rule: named(inline_jits(rule), 0))
  if equation.primitive.name not in _OPENED:
    return equation
  numbers = itertools.count()
  return compat.map_sub_jaxprs(equation, lambda body: named(body, next(numbers)), lambda rule: rule)


def _carries(equation: core.JaxprEqn, body: core.Jaxpr) -> list[core.Var]:
  if equation.primitive.name != "scan":
    return []
  at = {var: i for i, var in enumerate(next(compat.sub_jaxprs(equation)).invars)}
  return [body.invars[at[var]] for var in compat.scan_carries(equation)]
