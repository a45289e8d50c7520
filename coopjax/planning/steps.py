"""Whole training steps: one budget for all that a step holds, divided between the remat regions inside it.

A step is compiled as it is, optimizer, donation, gradient accumulation and all, and its regions (functions under
`coopjax.remat`, blocks under `coopjax.linen.remat` and `coopjax.nnx.remat`) are told from outside what to do, in place
of their own budgets. The HLO engine comes first: all regions carry one mark, and the hook plans the very module that
runs, so a total holds by construction. What it can't reach (residuals stacked by a loop), or repeats much for, the
policy engine divides (`policy_engine.division`) with the HLO engine at work under its checkpoints, a few compiles of
the whole step at most; what the two repeat together decides.
"""

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.extend.core import primitives

from coopjax import compat, contexts
from coopjax.budget import format_bytes
from coopjax.jaxpr import cost, non_arrays
from coopjax.jaxpr.fingerprint import fingerprint_of_step
from coopjax.jaxpr.placement import Spread, path_name
from coopjax.jaxpr.tags import marked
from coopjax.jaxpr.trace import TracedFn, explained, is_floating
from coopjax.planning import differentiated, regions, resident
from coopjax.planning import existing as existing_checkpoints
from coopjax.planning.choice import Choice
from coopjax.policy_engine.rungs import Member
from coopjax.policy_engine.shards import Observed
from coopjax.xla.targets import Target


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
  """A training step with its arguments, and the regions inside.

  Attributes:
    name: of the function.
    jitted: the function, with a jit of its own or of ours.
    args: of the function.
    kwargs: same.
    members: the regions.
    existing: as for `regions.Directions`.
    of_gradients: same.
    traced: the step as it is, results of its regions named.
  """

  name: str
  jitted: jax.stages.Wrapped
  args: Sequence[Any]
  kwargs: dict[str, Any]
  members: tuple[Member, ...]
  traced: jax.stages.Traced
  existing: str = "replace"
  of_gradients: bool = False

  @property
  def jaxpr(self) -> core.Jaxpr:
    """Of the step."""
    return self.traced.jaxpr

  def each(self, choice: Choice) -> tuple[Choice, ...]:
    """One choice for all regions; for a step that has none, for the step."""
    return (choice,) * max(len(self.members), 1)

  @property
  def has_regions(self) -> bool:
    """Whether it has some that are differentiated: others have nothing to repeat."""
    return any(member.num_runs for member in self.members)

  @property
  def is_all_checkpoints(self) -> bool:
    """Whether it has regions, all of them under the user's own `jax.checkpoint`."""
    return bool(self.members) and all(member.policy is not None for member in self.members)

  @functools.cached_property
  def forward_flops(self) -> float:
    """Of all runs of its regions, on all devices."""
    return sum(m.num_runs * m.num_examples * cost.jaxpr_flops(m.traced.inlined) for m in self.members)

  @functools.cached_property
  def fingerprint(self) -> str:
    """A hash of the regions and how often they run, the same in every process; of the whole step if it has none."""
    if not self.members:
      return fingerprint_of_step(self.jaxpr)
    text = repr([(member.key, member.num_runs, member.num_kept, member.num_examples) for member in self.members])
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  @property
  def key(self) -> str:
    """A hash of all that is compiled, and of what may become of its checkpoints, the same in every process: optimizer,
    donation and shardings included.

    Arguments that say how they are sharded count with that, too: their plan says so.
    """
    text = self.program(self.each(Choice())).lower().as_text() + repr(self.spread(num_devices=1))
    return f"{self.name} {self.existing} {self.fingerprint} {hashlib.sha256(text.encode()).hexdigest()[:16]}"

  @functools.cached_property
  def arguments(self) -> tuple[resident.Argument, ...]:
    """Its arrays, the largest first."""
    leaves = jax.tree_util.tree_flatten_with_path((self.args, self.kwargs))[0]
    named = ((path_name(path), leaf) for path, leaf in leaves)
    return resident.arguments_of(named, resident.roles_of(self.jaxpr, _is_backward))

  def program(self, choices: Sequence[Choice | Observed]) -> "Program":
    """The step with a choice per region, or with what watches it; without regions, with one for all of it."""
    if not self.members:
      (choice,) = choices
      return Program(self, regions.Directions(self.name, (), existing="keep"), getattr(choice, "mark", None))
    keys = [member.key for member in self.members]
    named = tuple(zip(keys, choices, strict=True))
    is_traced = choices == self.each(Choice()) and not _may_read_names(self.jaxpr)
    directions = regions.Directions(self.name, named, existing=self.existing, of_gradients=self.of_gradients)
    return Program(self, directions, is_traced=is_traced)

  def spread(self, num_devices: int) -> Spread:
    """Of its arguments, in a program that runs on so many devices."""
    return Spread.of((self.args, self.kwargs), num_devices)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """A step under directions, or with one mark on all of it, with its arguments in it: what is compiled.

  Attributes:
    step: the step.
    directions: of its regions.
    mark: on all of it.
    is_traced: it is what the step was traced as.
  """

  step: Step
  directions: regions.Directions
  mark: str | None = None
  is_traced: bool = False

  @property
  def __name__(self) -> str:
    return self.step.name

  def lower(self) -> jax.stages.Lowered:
    """The step lowered with its own donation, shardings and options."""
    return self._lowered

  @functools.cached_property
  def _lowered(self) -> jax.stages.Lowered:
    with contexts.directions(self.directions), marked(self.mark):
      return self._traced.lower()

  def flops(self, num_parts: int) -> dict[int | None, float]:
    """Of one device, by region, and None for what stands in none; what nothing reads, XLA drops, and does not count.

    Args:
      num_parts: as for `cost.device_flops`.
    """
    with contexts.directions(self.directions), marked(self.mark):
      jaxpr = self._traced.jaxpr
    return cost.device_flops(compat.dce(jaxpr), regions.region_of, num_parts)

  @property
  def _traced(self) -> jax.stages.Traced:
    """Anew, unless it is what the step was traced as."""
    step = self.step
    return step.traced if self.is_traced else _traced(step.jitted, step.args, step.kwargs)


def find_step(
  fn: Callable,
  args: Sequence[Any],
  kwargs: dict[str, Any],
  target: Target | None = None,
  existing: str = "replace",
  *,
  of_gradients: bool = False,
) -> Step | None:
  """The function as a step, if it takes gradients, of remat regions or without any; else None. What has no regions and
  returns one number is a loss, whatever it takes.

  Args:
    fn: with a jit of its own, or without.
    args: `jax.ShapeDtypeStruct` will do.
    kwargs: same.
    target: what the step is for, None for the default backend.
    existing: as for `regions.Directions`.
    of_gradients: same.
  """
  existing_checkpoints.watch()
  if of_gradients:
    differentiated.watch()
  if target is not None and not target.is_running:
    args, kwargs = _moved(target, (tuple(args), kwargs))
  if regions.is_jitted(fn):
    jitted = fn
  else:
    args, kwargs = non_arrays.hidden((tuple(args), kwargs))
    jitted = jax.jit(non_arrays.of_hidden(fn))
  collector = regions.Collector(existing, of_gradients=of_gradients)
  with contexts.directions(collector), explained(getattr(fn, "__name__", type(fn).__name__)):
    traced = _traced(jitted, args, kwargs)
  runs = _Runs(traced.jaxpr)
  if not runs.has_gradient:
    return None
  name = getattr(fn, "__name__", type(fn).__name__)

  members = tuple(
    runs.member(i, fingerprint, region, collector.policies.get(fingerprint))
    for i, (fingerprint, region) in enumerate(collector.regions.items())
  )
  if not members and _is_one_number(traced.jaxpr):
    return None
  return Step(name, jitted, args, kwargs, members, traced, existing, of_gradients)


def _is_one_number(jaxpr: core.Jaxpr) -> bool:
  """What it returns is: of a loss that takes gradients itself, of a field or an energy, not of a step."""
  types = [atom.aval for atom in jaxpr.outvars]
  return len(types) == 1 and is_floating(types[0]) and cost.num_elements(types[0]) == 1


def _traced(jitted: jax.stages.Wrapped, args: Sequence[Any], kwargs: Mapping[str, Any]) -> jax.stages.Traced:
  traced = jitted.trace(*args, **kwargs)
  return getattr(traced, "traced", traced)  # of Flax, around JAX's


def _may_read_names(jaxpr: core.Jaxpr) -> bool:
  """Whether a policy of the user's may stand around a region: it may go by the names of results."""
  outside = [equation for equation in jaxpr.eqns if regions.call_of(compat.name_scopes(equation)) is None]
  return any(
    compat.is_checkpoint(equation) or any(map(_may_read_names, compat.sub_jaxprs(equation))) for equation in outside
  )


def _moved(target: Target, tree: Any) -> Any:
  """Arguments as abstract values on the target's devices; static ones stay as they are."""
  leaves, in_tree = jax.tree.flatten(tree)
  shardings = target.moved([getattr(leaf, "sharding", None) for leaf in leaves])
  return jax.tree.unflatten(
    in_tree,
    [
      jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=getattr(leaf, "weak_type", False))
      if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
      else leaf
      for leaf, sharding in zip(leaves, shardings, strict=True)
    ],
  )


def why_no_regions(step: Step) -> str:
  """Of a step without regions that are differentiated, that it has none, and what to do about it."""
  if step.members:
    return f"{step.name} has none that is differentiated: {_what_to_wrap(step.jaxpr)}"
  if step.existing == "keep" and holds_checkpoint(step.jaxpr):
    return f"{step.name} has none but those that existing='keep' leaves alone: existing='replace' has them planned"
  return f"{step.name} has none: {_what_to_wrap(step.jaxpr)}"


def _what_to_wrap(jaxpr: core.Jaxpr) -> str:
  """What to put under a remat, and where: the loop that keeps the most for its gradient."""
  scans = [equation for equation in _equations(jaxpr) if equation.primitive.name == "scan"]
  largest = max(scans, key=_stacked_bytes, default=None)
  if largest is None or not _stacked_bytes(largest):
    return "wrap the function that is differentiated, or each of its layers, in jax.checkpoint or coopjax.remat"
  source, length = compat.source_line(largest), largest.params["length"]
  where = "" if source is None else f" at {source.file}:{source.line} ({source.function})"
  return (
    f"wrap the body of the scan{where} in jax.checkpoint: its {length} turns keep "
    f"{format_bytes(_stacked_bytes(largest))} for the gradient"
  )


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
  for equation in jaxpr.eqns:
    if not _is_backward(equation):
      yield equation
    for inner in compat.sub_jaxprs(equation):
      yield from _equations(inner)


def _stacked_bytes(scan: core.JaxprEqn) -> int:
  num_carries = len(compat.scan_carries(scan))
  return sum(cost.num_bytes(var.aval) for var in scan.outvars[num_carries:])


@dataclasses.dataclass
class _Call:
  """One call of a region, wherever the step has it: a trace may stand for several places.

  Attributes:
    forward: how often the forward pass runs it, and how many of these runs are kept at once: not those of different
      turns of a loop that holds the gradient. A `while` counts as one turn.
    backward: the same of the backward pass.
    is_looped: a loop around runs it which does not hold the gradient.
    num_examples: that it is over, under a `vmap` around.
  """

  forward: tuple[int, int] = (0, 0)
  backward: tuple[int, int] = (0, 0)
  is_looped: bool = False
  num_examples: float = 1.0

  @property
  def runs(self) -> tuple[int, int]:
    """Those that are differentiated: of a teacher, or an evaluation, there is no backward pass. For second derivatives
    there are several of one run.
    """
    return min(self.forward[0], self.backward[0]), min(self.forward[1], self.backward[1])


class _Runs:
  """How often a step runs its regions for a gradient.

  Attributes:
    has_gradient: the step takes one.
  """

  def __init__(self, jaxpr: core.Jaxpr):
    self.has_gradient = False
    self._calls = collections.defaultdict[regions.Call, _Call](_Call)
    self._visit(jaxpr, 1, 1)

  def member(self, region: int, key: str, traced: TracedFn, policy: Callable | None) -> Member:
    """A region, by its place among the step's, with its runs."""
    calls = [call for (at, _), call in self._calls.items() if at == region and call.runs[0]]
    num_runs, num_kept = (sum(call.runs[i] for call in calls) for i in range(2))
    num_examples = sum(call.runs[0] * call.num_examples for call in calls) / max(num_runs, 1)
    is_looped = any(call.is_looped for call in calls)
    return Member(key, traced, num_runs, num_kept, is_looped, policy, num_examples or 1.0)

  def _visit(
    self, jaxpr: core.Jaxpr, num_runs: int, num_kept: int, *, is_looped: bool = False, is_behind: bool = False
  ) -> set[regions.Call]:
    """Counts the calls in a jaxpr that itself runs, and is kept, this often, `is_behind` in the backward pass."""
    forward, behind, backward, in_loops = (set[regions.Call]() for _ in range(4))
    for equation in jaxpr.eqns:
      is_backward = is_behind or _is_backward(equation)
      self.has_gradient |= is_backward
      if result := _named_result(equation):
        call, num_examples = result
        self._calls[call].num_examples = max(num_examples, self._calls[call].num_examples)
        forward.add(call)  # in a backward pass, too, by a rule of the user's
      if call := regions.call_of(scopes := compat.name_scopes(equation)):
        (backward if regions.is_transposed(scopes) else behind if is_backward else forward).add(call)
        continue
      length = equation.params["length"] if equation.primitive.name == "scan" else 1
      for inner in compat.sub_jaxprs(equation):
        is_outside = not is_backward and holds_backward(inner)
        there, kept = length > 1 and not is_outside, num_kept * (1 if is_outside else length)
        found = self._visit(inner, num_runs * length, kept, is_looped=is_looped or there, is_behind=is_backward)
        in_loops |= found if there else set()
    backward |= behind - forward
    # What a loop's gradient has moved out of it is a part of the call inside.
    for call in (forward | backward) - in_loops:
      of_call = self._calls[call]
      if call in forward:
        of_call.forward = of_call.forward[0] + num_runs, of_call.forward[1] + num_kept
      if call in backward:
        of_call.backward = of_call.backward[0] + num_runs, of_call.backward[1] + num_kept
        of_call.is_looped |= is_looped
    return forward | backward | in_loops


def _named_result(equation: core.JaxprEqn) -> tuple[regions.Call, float] | None:
  """The call that an equation names a result of, and the examples that the result is of; None for other equations."""
  primitive, params = compat.as_policies_see(equation)
  if primitive is not primitives.name_p or (found := regions.result_of(params["name"])) is None:
    return None
  call, of_one = found
  return call, cost.num_elements(equation.outvars[0].aval) / max(of_one, 1)


def _is_backward(equation: core.JaxprEqn) -> bool:
  return "transpose(" in compat.name_scopes(equation)


def holds_checkpoint(jaxpr: core.Jaxpr) -> bool:
  """Whether something inside is under a `jax.checkpoint`."""
  return _holds(jaxpr, compat.is_checkpoint)


def holds_backward(jaxpr: core.Jaxpr) -> bool:
  """Whether gradients are taken inside."""
  return _holds(jaxpr, _is_backward)


def holds_backward_loop(jaxpr: core.Jaxpr) -> bool:
  """Whether gradients are taken of loops inside."""
  return _holds(jaxpr, lambda equation: equation.primitive.name == "scan" and _is_backward(equation))


def _holds(jaxpr: core.Jaxpr, is_such: Callable[[core.JaxprEqn], bool]) -> bool:
  return any(
    is_such(equation) or any(_holds(inner, is_such) for inner in compat.sub_jaxprs(equation)) for equation in jaxpr.eqns
  )
