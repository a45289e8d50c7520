"""A region's decisions as a `jax.checkpoint` policy would say them: what happens to the values that have names."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from jax.extend import core
from jax.extend.core import primitives

from coopjax import compat
from coopjax.jaxpr import user_policy
from coopjax.jaxpr.tags import EquationInfo, tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.planning.choice import Choice
from coopjax.planning.policy_names import HLO_ENGINE, RegionNames
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Value
from coopjax.policy_engine.description import describe, equations_of
from coopjax.policy_engine.inside import is_inside
from coopjax.policy_engine.scan import layer

_EVERYTHING = "nothing is repeated: no checkpoint, or jax.checkpoint_policies.everything_saveable"


def region_names(traced: TracedFn, choice: Choice, num_runs: int, num_examples: float = 1.0) -> RegionNames:
  """What a choice does to the names of a region.

  Args:
    traced: the region.
    choice: for it.
    num_runs: how often a step runs it.
    num_examples: that each run is over.
  """
  jaxpr, table = tag_jaxpr(traced.inlined)
  everywhere = dict.fromkeys(_names_in(jaxpr))
  beyond = [HLO_ENGINE] if choice.mark else []
  if choice.decisions is None or not choice.decisions.regions:
    return RegionNames(traced.name, beyond=tuple(beyond), keeps_all=True)
  saved, offloaded = _kept_by_policy(traced, everywhere)
  for region in choice.decisions.regions:
    equations = equations_of(table, choice.decisions, region)
    for leaf, _ in region.leaves:
      saved, offloaded = saved | _named(equations, leaf.saved), offloaded | _named(equations, leaf.offloaded)
  if traced.policy is not None and any(_keeps_unnamed(traced.policy, equation) for equation in jaxpr.eqns):
    beyond.append("what the step's own policy saves has names in part only")
  with traced.scope.entered():
    beyond += _unnamed(traced, jaxpr, table, choice.decisions, num_runs, num_examples)
  beyond += (line for region in choice.decisions.regions if (line := _shape(region)))
  return RegionNames(
    traced.name,
    tuple(name for name in everywhere if name in saved),
    tuple(name for name in everywhere if name in offloaded),
    tuple(name for name in everywhere if name not in saved and name not in offloaded),
    tuple(beyond),
  )


def _names_in(jaxpr: core.Jaxpr) -> Iterator[str]:
  for equation in jaxpr.eqns:
    primitive, params = compat.as_policies_see(equation)
    if primitive is primitives.name_p and params["name"] != user_policy.KEPT:
      yield params["name"]
    for inner in compat.sub_jaxprs(equation):
      yield from _names_in(inner)


def _kept_by_policy(traced: TracedFn, names: Iterable[str]) -> tuple[set[str], set[str]]:
  """What a policy that binds saves and offloads, in all decisions alike."""
  if traced.policy is None:
    return set(), set()
  answers = {name: traced.policy(primitives.name_p, name=name) for name in names}
  offloaded = {name for name, answer in answers.items() if user_policy.is_offloaded(answer)}
  return {name for name, answer in answers.items() if user_policy.is_kept(answer)} - offloaded, offloaded


def _keeps_unnamed(policy: Callable, equation: core.JaxprEqn) -> bool:
  is_name = compat.as_policies_see(equation)[0] is primitives.name_p
  return not is_name and user_policy.is_kept(user_policy.answer_of(equation, policy))


def _named(equations: Sequence[EquationInfo], values: Iterable[Value]) -> set[str]:
  """The users' names among what is kept of these equations."""
  return {name for value in values if (name := _name_of(equations, value)) is not None}


def _name_of(equations: Sequence[EquationInfo], value: Value) -> str | None:
  position, index = value
  if isinstance(index, str):
    return None if is_inside(value) else index
  equation = equations[position].equation if position >= 0 else None
  if equation is None or equation.primitive is not primitives.name_p:
    return None
  return equation.params["name"]  # ours, too, of what a policy that binds keeps


def _unnamed(
  traced: TracedFn,
  jaxpr: core.Jaxpr,
  table: tuple[EquationInfo, ...],
  decisions: PolicyDecisions,
  num_runs: int,
  num_examples: float,
) -> Iterator[str]:
  """What is kept without a name, and what it spares where the whole region is in one piece."""
  unnamed = {region: _unnamed_in(equations_of(table, decisions, region), region) for region in decisions.regions}
  ids = set().union(*unnamed.values())
  for value in describe(traced, decisions) if ids else ():
    if (value.equation_id, value.index) in ids:
      yield f"{value.decision} without a name: {value.type} of {value.source or 'a library'}"
  top = decisions.top
  if top is None or not unnamed[top] or decisions.home or len(list(top.leaves)) > 1:
    return
  whole = layer(jaxpr, table, traced.is_differentiable, num_runs, is_cut=False)
  if whole is not None:
    equations, kept = equations_of(table, decisions, top), frozenset(_kept(top))
    named = frozenset(value for value in kept if _name_of(equations, value) is not None)
    some_flops, all_flops = (num_examples * whole.choice_of(values).flops for values in (kept, named))
    yield f"what has no name spares {all_flops - some_flops:.3g} of {all_flops:.3g} FLOPs repeated in a step"


def _kept(region: Region) -> Iterator[Value]:
  for leaf, _ in region.leaves:
    yield from (*leaf.saved, *leaf.offloaded)


def _unnamed_in(equations: Sequence[EquationInfo], region: Region) -> set[tuple[int, int | str]]:
  """What a region keeps without a name, by the equation's id."""
  return {
    (equations[position].id, index)
    for position, index in _kept(region)
    if position >= 0 and _name_of(equations, (position, index)) is None
  }


def _shape(region: Region) -> str:
  """How a region is cut, where one checkpoint around it would not do the same; "" where it does."""
  if region.equation_id is not None:
    groups = f", and around each {region.group_size} turns of it" if region.group_size > 1 else ""
    return f"a checkpoint around the body of a loop inside the region{groups}"
  (segment, *others) = region.segments
  if others or segment.inner:
    return f"the region is cut into {len(list(region.leaves))} pieces, under checkpoints of their own"
  return "" if segment.is_wrapped else _EVERYTHING
