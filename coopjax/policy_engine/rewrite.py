"""Carries a policy plan out: segments under `jax.checkpoint`, chosen values saved by name.

The recompute of a segment is tied to that segment's cotangents, so the backward pass runs R_n B_n R_{n-1} B_{n-1} ...
One policy around the whole function would recompute everything at once (see `compat.pinned_checkpoint` for the case
where JAX drops the tie). Every equation is bound under its own source line, and tags and mark are those of
`tags.tag_jaxpr`, so the HLO engine and the reports see the rewritten program as they see the original.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import jax.core
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

from coopjax import compat
from coopjax.errors import PlanMismatchError
from coopjax.jaxpr import user_policy
from coopjax.jaxpr.tags import marked_fn, marked_jaxpr, tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.policy_engine import groups, host_copies, key_splits
from coopjax.policy_engine.by_hand import policy_of
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment, Value
from coopjax.policy_engine.inside import is_inside, opened
from coopjax.policy_engine.likeness import likeness


def rewrite(
  traced: TracedFn,
  decisions: PolicyDecisions,
  mark: str | None = None,
  *,
  prevent_cse: bool = True,
  alike: dict[Hashable, Callable] | None = None,
) -> Callable[..., list[Any]]:
  """The traced function with its decisions carried out, from the flat inputs of its jaxpr to its flat outputs.

  It stands in for `traced.evaluate` (``traced.call(leaves, rewrite(traced, decisions))``), under any transformation.

  Args:
    traced: from `trace`.
    decisions: made for this jaxpr.
    mark: set on every equation for the HLO engine, recomputed ones included.
    prevent_cse: as for `jax.checkpoint`, of the segments outside of loops.
    alike: segments that are alike, a model's layers, are one function, which JAX traces and differentiates once: to the
      same program, but with the tags and source lines of the first of them. So are those of other rewrites, with this
      mark and this `prevent_cse`, that were given the same dictionary.

  Raises:
    PlanMismatchError: the decisions don't fit the jaxpr.
  """
  if decisions.regions and all(region.policy is not None for region in decisions.regions):
    return _as_written(traced, decisions, mark, prevent_cse)
  jaxpr, _ = tag_jaxpr(traced.inlined, mark, traced.policy)
  jaxpr = apply_inside(jaxpr, decisions, traced.policy, prevent_cse)
  return evaluator(jaxpr, decisions, traced.policy, prevent_cse, alike)


def _as_written(
  traced: TracedFn, decisions: PolicyDecisions, mark: str | None, prevent_cse: bool
) -> Callable[..., list[Any]]:
  """The function with its calls as they are, under the policies of its regions: around it, or in its scans.

  XLA fuses what stands in a call otherwise than what is opened up: a scanned decoder took 0.2% more than by hand.
  """
  if (top := decisions.top) is not None:
    policy = _policy_of(top, traced.policy)
    return compat.pinned_checkpoint(marked_fn(traced, mark), policy=policy, prevent_cse=prevent_cse)
  ids = dict(zip(_scan_ids(traced.inlined), _scan_ids(traced.as_called), strict=True))
  regions = (dataclasses.replace(region, equation_id=ids[region.scan_id]) for region in decisions.regions)
  jaxpr = apply_inside(marked_jaxpr(traced, mark), PolicyDecisions(tuple(regions)), traced.policy)
  return lambda *inputs: jax.core.eval_jaxpr(jaxpr, (), *inputs)


def _policy_of(region: Region, policy: Callable | None) -> Callable:
  """What a region that says a policy saves, and what the user's does."""
  assert region.policy is not None
  return user_policy.besides(policy_of(region.policy), policy)


def _scan_ids(jaxpr: core.Jaxpr) -> list[int]:
  """In the order of the equations, which opening calls up keeps."""
  return [info.id for info in tag_jaxpr(jaxpr)[1] if info.primitive == "scan"]


def evaluator(
  jaxpr: core.Jaxpr,
  decisions: PolicyDecisions,
  policy: Callable | None = None,
  prevent_cse: bool = True,
  alike: dict[Hashable, Callable] | None = None,
) -> Callable[..., list[Any]]:
  """Evaluates a jaxpr in the segments of the top region, whose checkpoints keep what `policy` saves, too."""
  top = decisions.top
  if top is None or decisions.home:
    return lambda *inputs: jax.core.eval_jaxpr(jaxpr, (), *inputs)
  region = _Evaluator(jaxpr, top, _Checkpoints(decisions.digest(), policy), prevent_cse, alike)
  return lambda *inputs: region.evaluate(inputs)


def apply_inside(
  jaxpr: core.Jaxpr, decisions: PolicyDecisions, policy: Callable | None = None, prevent_cse: bool = True
) -> core.Jaxpr:
  """The jaxpr with the decisions carried out for all but its top: scan bodies, nested ones included, and what stands in
  one of its calls (`PolicyDecisions.home`), which `prevent_cse` is for.
  """
  regions = {region.scan_id: region for region in decisions.scan_bodies}
  home = {decisions.home: decisions.top} if decisions.home and decisions.top else {}
  if not regions and not home:
    return jaxpr
  applied = _InsideRewriter(regions, home, _Checkpoints(decisions.digest(), policy), prevent_cse)
  jaxpr = applied.transform(jaxpr)
  if regions or home:
    raise PlanMismatchError(f"the plan names parts {sorted({*regions, *home})} that this function does not have")
  return jaxpr


@dataclasses.dataclass(frozen=True, eq=False)
class _Checkpoints:
  """What all checkpoints of one rewrite share.

  Attributes:
    digest: of the decisions; a part of the names given to saved values.
    policy: the user's, or None.
  """

  digest: str
  policy: Callable | None

  def is_offloaded(self, equation: core.JaxprEqn) -> bool:
    """Whether the user's policy offloads what the equation makes: there it stays, whatever else is saved."""
    return self.policy is not None and user_policy.is_offloaded(user_policy.answer_of(equation, self.policy))

  def saving(self, saved: Sequence[str], offloaded: Sequence[str] = ()) -> Callable | None:
    """The policy that saves and offloads these names besides what the user's does; what the user's offloads stays
    so.
    """
    if not saved and not offloaded:
      return self.policy
    return user_policy.besides(user_policy.over_names(saved, offloaded), self.policy)


class _InsideRewriter:
  """Walks a jaxpr in the order in which `tag_jaxpr` numbers its equations."""

  def __init__(self, regions: dict[int, Region], home: dict[int, Region], checkpoints: _Checkpoints, prevent_cse: bool):
    self._regions, self._home = regions, home
    self._checkpoints = checkpoints
    self._prevent_cse = prevent_cse
    self._next_id = 0

  def transform(self, jaxpr: core.Jaxpr) -> core.Jaxpr:
    home = self._home.pop(self._next_id, None) if jaxpr.eqns else None
    num_left = len(self._regions) + len(self._home)
    equations = [self._equation(equation, jaxpr.invars) for equation in jaxpr.eqns]
    if len(self._regions) + len(self._home) < num_left:  # what JAX has seen as it is, it differentiates once
      jaxpr = compat.rebuild(jaxpr, equations)
    return jaxpr if home is None else self._body(jaxpr, home, self._prevent_cse)

  def _equation(self, equation: core.JaxprEqn, inputs: Sequence[core.Var]) -> core.JaxprEqn:
    region = self._regions.pop(self._next_id, None)
    self._next_id += 1
    if region is None:
      return compat.map_sub_jaxprs(equation, self.transform, lambda rule: rule)
    if equation.primitive.name != "scan":
      raise PlanMismatchError(
        f"the plan wants a scan as equation {region.equation_id}, the function has {equation.primitive.name}"
      )
    # The loop itself keeps XLA from merging a recompute with the forward pass, if it stays a loop and the
    # recompute is one piece.
    if region.group_size > 1:
      return self._in_groups(equation, region)
    is_loop = equation.params["length"] > 1 and equation.params["unroll"] == 1
    num_repeated = sum(is_repeated for _, is_repeated in region.leaves)
    prevent_cse = region.has_barrier or num_repeated > 1 or not is_loop
    rewritten = compat.map_sub_jaxprs(
      equation, lambda body: self._body(self.transform(body), region, prevent_cse, equation), lambda rule: rule
    )
    # As people hand them to a layer, in the order in which they are the model's: XLA packs a loop by the order.
    return compat.with_constants_in_order(rewritten, inputs)

  def _in_groups(self, equation: core.JaxprEqn, region: Region) -> core.JaxprEqn:
    (body,) = compat.sub_jaxprs(equation)
    plain = self.transform(body)
    # Peeled off, a turn is repeated in the same piece of code as the group.
    prevent_cse = region.has_barrier or region.is_peeled or len(list(region.leaves)) > 1
    wrapped = self._body(plain, region, prevent_cse)
    checkpoint = functools.partial(
      compat.pinned_checkpoint, policy=self._checkpoints.policy, prevent_cse=region.has_barrier
    )
    return groups.in_groups(equation, region.group_size, wrapped, plain if region.is_peeled else None, checkpoint)

  def _body(self, body: core.Jaxpr, region: Region, prevent_cse: bool, scan: core.JaxprEqn | None = None) -> core.Jaxpr:
    checkpoints = self._checkpoints
    if region.policy is not None:
      checkpoints = dataclasses.replace(checkpoints, policy=_policy_of(region, checkpoints.policy))
      region = dataclasses.replace(region, segments=(Segment(0, len(body.eqns), True),), policy=None)
    leaf, is_repeated = next(region.leaves, (Segment(0, 0), False))
    if scan is not None and is_repeated:
      num = key_splits.num_before(body, leaf.stop, compat.scan_carries(scan), scan.params["length"])
      before, (first, *others) = [Segment(0, num)] if num else [], region.segments
      region = dataclasses.replace(region, segments=(*before, _from(num, first), *others))
    segmented = _Evaluator(body, region, checkpoints, prevent_cse)
    return jax.make_jaxpr(lambda *inputs: segmented.evaluate(inputs))(*[var.aval for var in body.invars])


class _Evaluator:
  """Evaluates one region in segments."""

  def __init__(
    self,
    jaxpr: core.Jaxpr,
    region: Region,
    checkpoints: _Checkpoints,
    prevent_cse: bool,
    alike: dict[Hashable, Callable] | None = None,
  ):
    bounds = [0, *(leaf.stop for leaf, _ in region.leaves)]
    if bounds[:-1] != [leaf.start for leaf, _ in region.leaves] or bounds[-1] != len(jaxpr.eqns):
      raise PlanMismatchError(f"the plan's segments end at {bounds[1:]}, the region has {len(jaxpr.eqns)} equations")
    self._jaxpr = jaxpr
    self._region = region
    self._checkpoints = checkpoints
    self._prefix = f"coopjax:{checkpoints.digest}:{'' if region.equation_id is None else region.equation_id}"
    self._prevent_cse = prevent_cse
    self._last_read = {
      **{var: i for i, equation in enumerate(jaxpr.eqns) for var in _variables(equation.invars)},
      **dict.fromkeys(_variables(jaxpr.outvars), len(jaxpr.eqns)),
    }
    # Copies to and from the host must not drift away from the segments that they belong to (`host_copies`).
    is_straight = region.equation_id is None and not region.is_looped
    self._is_paced = is_straight and any(segment.offloaded for segment in region.segments)
    self._alike = None if self._is_paced else alike

  def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
    env = compat.environment(self._jaxpr, inputs)
    for segment in self._region.segments:
      if self._is_paced:
        invars, _ = self._interface(segment)
        env |= zip(invars, jax.lax.optimization_barrier([env[var] for var in invars]), strict=True)
      self._run_segment(segment, env)
    return [_read(env, atom) for atom in self._jaxpr.outvars]

  def _run_segment(self, segment: Segment, env: dict[core.Var, Any]) -> None:
    if self._is_paced and segment.offloaded:
      self._run_offloaded(segment, env)
    elif segment.is_wrapped:
      self._run_wrapped(segment, env)
    else:
      self._run(segment, env)

  def _run(self, segment: Segment, env: dict[core.Var, Any], known: dict[core.Var, Any] | None = None) -> None:
    """Binds the segment's equations, naming the values to keep, and leaves their outputs, or known values, in `env`."""
    for piece in segment.inner:
      self._run_segment(piece, env)
    if segment.inner:
      return
    kept = frozenset((*segment.saved, *segment.offloaded)) if known is None else frozenset[Value]()
    inside: dict[int, dict[str, str]] = {}  # by position, names by place
    for value in filter(is_inside, kept):
      inside.setdefault(value[0], {})[str(value[1])] = self._name(value)
    for position in range(segment.start, segment.stop):
      equation = self._jaxpr.eqns[position]
      named = opened(equation, inside[position].get) if position in inside else equation
      outputs = compat.bind(named, [_read(env, atom) for atom in equation.invars])
      is_ours = not self._checkpoints.is_offloaded(equation)
      for index, (var, out) in enumerate(zip(equation.outvars, outputs, strict=True)):
        is_named = is_ours and (position, index) in kept
        env[var] = checkpoint_name(out, self._name((position, index))) if is_named else out
      host_copies.replace(env, known or {}, equation.outvars)

  def _run_wrapped(self, segment: Segment, env: dict[core.Var, Any]) -> None:
    if (branching := self._in_branches(segment)) is not None:
      outputs = compat.bind(branching, [_read(env, atom) for atom in branching.invars])
      env.update(zip(branching.outvars, outputs, strict=True))
      return
    invars, outvars = self._interface(segment)
    if self._alike is None:
      checkpointed = self._checkpointed(segment, invars, outvars)
    else:
      key = likeness(self._jaxpr, segment, invars, outvars)
      checkpointed = self._alike.get(key) or self._checkpointed(segment, invars, outvars)
      self._alike[key] = checkpointed
    env.update(zip(outvars, checkpointed(*[env[var] for var in invars]), strict=True))

  def _in_branches(self, segment: Segment) -> core.JaxprEqn | None:
    """A branching that is a segment by itself, each branch under a checkpoint: around both, what one is run again for
    would be handed out of it, with as much for the other. None for other segments.
    """
    equations = self._jaxpr.eqns[segment.start : segment.stop]
    if [equation.primitive.name for equation in equations] != ["cond"] or segment.inner or segment.offloaded:
      return None
    names = {str(value[1]): self._name(value) for value in segment.saved if is_inside(value)}
    policy = self._checkpoints.saving(list(names.values()))

    def wrapped(branch: core.Jaxpr) -> core.Jaxpr:
      run = functools.partial(jax.core.eval_jaxpr, branch, ())
      checkpointed = compat.pinned_checkpoint(run, policy=policy, prevent_cse=self._prevent_cse)
      return jax.make_jaxpr(checkpointed)(*[var.aval for var in branch.invars])

    return compat.map_sub_jaxprs(opened(equations[0], names.get), wrapped, lambda rule: rule)

  def _checkpointed(self, segment: Segment, invars: Sequence[core.Var], outvars: Sequence[core.Var]) -> Callable:
    named = {self._variable(value): self._name(value) for value in segment.offloaded if value[0] < segment.start}

    def run(*inputs):
      inner = {
        var: checkpoint_name(value, named[var]) if var in named else value
        for var, value in zip(invars, inputs, strict=True)
      }
      self._run(segment, inner)
      return [inner[var] for var in outvars]

    policy = self._checkpoints.saving(
      *([self._name(value) for value in values] for values in (segment.saved, segment.offloaded))
    )
    return compat.pinned_checkpoint(run, policy=policy, prevent_cse=self._prevent_cse)

  def _run_offloaded(self, segment: Segment, env: dict[core.Var, Any]) -> None:
    invars, outvars = self._interface(segment)
    env.update(
      host_copies.run(
        lambda inner, known: self._run(segment, inner, known),
        {var: env[var] for var in invars},
        outvars,
        kept=[self._variable(value) for value in segment.saved],
        offloaded=[self._variable(value) for value in segment.offloaded],
      )
    )

  def _variable(self, value: Value) -> core.Var:
    position, index = value
    assert isinstance(index, int)  # what has a name of its own is no variable out here
    return self._jaxpr.invars[index] if position < 0 else self._jaxpr.eqns[position].outvars[index]

  def _name(self, value: Value) -> str:
    if is_inside(value):
      return f"{self._prefix}:{value[0]}{value[1]}"
    return value[1] if isinstance(value[1], str) else f"{self._prefix}:{value[0]}.{value[1]}"

  def _interface(self, segment: Segment) -> tuple[list[core.Var], list[core.Var]]:
    """The variables that a segment reads from outside, and those of its own that somebody reads later."""
    equations = self._jaxpr.eqns
    made = {var: None for equation in equations[segment.start : segment.stop] for var in equation.outvars}
    read = {
      atom: None
      for equation in equations[segment.start : segment.stop]
      for atom in _variables(equation.invars)
      if atom not in made
    }
    return list(read), [var for var in made if self._last_read.get(var, -1) >= segment.stop]


def _from(start: int, segment: Segment) -> Segment:
  """The segment without what stands before `start`, which is in its first piece."""
  inner = segment.inner and (_from(start, segment.inner[0]), *segment.inner[1:])
  return dataclasses.replace(segment, start=start, inner=inner)


def _read(env: dict[core.Var, Any], atom: Any) -> Any:
  return atom.val if isinstance(atom, core.Literal) else env[atom]


def _variables(atoms: Sequence[Any]) -> Iterator[core.Var]:
  return (atom for atom in atoms if isinstance(atom, core.Var))
