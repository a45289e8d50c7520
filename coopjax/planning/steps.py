"""Whole training steps: one budget for all that a step holds, divided between the remat regions inside it.

A step is compiled as it is, optimizer, donation, gradient accumulation and all, and its regions (functions under
`coopjax.remat`, blocks under `coopjax.linen.remat` and `coopjax.nnx.remat`) are told from outside what to do, in place
of their own budgets. The HLO engine comes first: all regions carry one mark, and the hook plans the very module that
runs, so a total holds by construction. What it can't reach (residuals stacked by a loop), or repeats much for, the
policy engine divides (`jaxpr.division`) with the HLO engine at work under its checkpoints, a few compiles of the whole
step at most; what the two repeat together decides.

JAX keeps traces of functions that are jitted or scanned. The directions that a step is traced under are a user context
of JAX's (`jax.make_user_context`), which is a part of the keys of those caches. For the same reason equal calls of a region get
equal decisions: one trace may stand for several calls (a jit's, a scan's) and several traces for one, so a number given
to a call while the step is planned need not be the one it has when the plan is carried out.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from coopjax import compat
from coopjax.planning.choice import Choice, one_by_one
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.errors import PlanMismatchError, RematNoEffectWarning
from coopjax.jaxpr import non_arrays
from coopjax.policy_engine.division import Member
from coopjax.jaxpr.placement import Spread, path_name
from coopjax.jaxpr.trace import TracedFn, explained
from coopjax.xla.targets import Target

_REGION = re.compile(r"\bcoopregion(\d+)(?:_(\d+))?\b")
_directions = jax.make_user_context(None)
_met: set[str] = set()  # digests of directions that some region has followed

FlatFn = Callable[..., Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Directions:
  """What the regions of a step do; hashed by content, since JAX keeps what it traced under them.

  Attributes:
    step: the step's name.
    choices: by fingerprint, in the order in which the step meets the regions.
    spread: of the arguments that they were made for; None while they are being made.
    digest: of the choices.
  """

  step: str = dataclasses.field(compare=False)
  choices: tuple[tuple[str, Choice], ...] = dataclasses.field(compare=False)
  spread: Spread | None = dataclasses.field(default=None, compare=False)
  digest: str = dataclasses.field(init=False)

  def __post_init__(self):
    object.__setattr__(self, "digest", hashlib.sha256(repr(self.choices).encode()).hexdigest())

  def flat_fn(self, traced: TracedFn) -> FlatFn:
    """A region, carried out."""
    fingerprint = fingerprint_of(traced)
    for index, (known, choice) in enumerate(self.choices):
      if known == fingerprint:
        _met.add(self.digest)
        return _scoped(choice.here(traced.name).flat_fn(traced), f"coopregion{index}")
    raise PlanMismatchError(
      f"the plan of {self.step} has no remat region {traced.name} with fingerprint {fingerprint}, as the step has it "
      "now: the plan was made for another step, for other shapes or dtypes, or with other versions of its libraries")


class _Collector:
  """Notes the regions that a step meets, and leaves them as they are; one for each trace.

  Attributes:
    regions: by fingerprint, in the order in which the step meets them.
  """

  def __init__(self):
    self.regions: dict[str, TracedFn] = {}
    self._num_calls = 0

  def flat_fn(self, traced: TracedFn) -> FlatFn:
    fingerprint = fingerprint_of(traced)
    self.regions.setdefault(fingerprint, dataclasses.replace(traced, consts=()))  # no tracer outlives its trace
    self._num_calls += 1
    return _scoped(traced.evaluate, f"coopregion{list(self.regions).index(fingerprint)}_{self._num_calls}")


class _Inside:
  """For regions inside a region: they are a part of it."""

  def flat_fn(self, traced: TracedFn) -> FlatFn:
    return traced.evaluate


_INSIDE = _Inside()  # one, so that functions jitted inside regions are traced once


def inside_region() -> contextlib.AbstractContextManager:
  """For the time that a region is traced: what a planned step wants is asked of the outermost region."""
  if _directions.value is None:
    return one_by_one(True) if compat.is_eager() else contextlib.nullcontext()
  return _directions(_INSIDE)


def is_planned() -> bool:
  """Whether a step that says what its regions do is being traced or run."""
  return _directions.value is not None


def directed(traced: TracedFn) -> FlatFn | None:
  """What the step that is being traced wants of a region, as a function of its flat inputs; None outside of such steps.

  Raises:
    PlanMismatchError: a plan is being carried out that does not know the region.
  """
  return None if _directions.value is None else _directions.value.flat_fn(traced)


def _scoped(flat_fn: FlatFn, name: str) -> FlatFn:
  """The function under a name scope, which stands in the metadata of all its instructions."""
  def scoped(*inputs):
    with jax.named_scope(name):
      return flat_fn(*inputs)

  return scoped


def region_of(scope: str) -> int | None:
  """The region, by its place among the step's, that an instruction's name scopes put it in."""
  found = _REGION.search(scope)
  return int(found[1]) if found else None


class DirectedStep:
  """A jitted step whose regions follow directions: called, traced or lowered like the step itself."""

  def __init__(self, fn: Callable, directions: Directions):
    functools.update_wrapper(self, fn)
    self._fn = fn
    self._directions = directions

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return _followed(self._fn, self._directions)(*args, **kwargs)

  def __getattr__(self, name: str) -> Any:
    attribute = getattr(self._fn, name)
    return _followed(attribute, self._directions) if callable(attribute) else attribute


def follow(fn: Callable, directions: Directions) -> Callable:
  """The step with directions carried out inside; a jitted one stays jitted, with its options.

  A step that turns out to have none of the regions is warned of.
  """
  return DirectedStep(fn, directions) if is_jitted(fn) else functools.wraps(fn)(_followed(fn, directions))


def _followed(fn: Callable, directions: Directions) -> Callable:
  def followed(*args, **kwargs):
    directions.spread.check(directions.step, (args, kwargs))
    with _directions(directions):
      result = fn(*args, **kwargs)
    if directions.digest not in _met:
      warnings.warn(f"the plan of {directions.step} has no effect: none of its remat regions was met",
                    RematNoEffectWarning, stacklevel=2)
    return result

  return followed


def is_jitted(fn: Callable) -> bool:
  """Whether a function comes with its own jit: of JAX or of Flax NNX."""
  return hasattr(fn, "trace") and hasattr(fn, "lower")


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
  """A training step with its arguments, and the regions inside.

  Attributes:
    name: of the function.
    jitted: the function, with a jit of its own or of ours.
    args: of the function.
    kwargs: same.
    members: the regions.
  """

  name: str
  jitted: Callable
  args: Sequence[Any]
  kwargs: dict[str, Any]
  members: tuple[Member, ...]

  @property
  def fingerprint(self) -> str:
    """A hash of the regions and how often they run, the same in every process."""
    text = repr([(member.key, member.num_runs, member.num_kept) for member in self.members])
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  @property
  def key(self) -> str:
    """A hash of all that is compiled, the same in every process: optimizer, donation and shardings included.

    Arguments that say how they are sharded count with that, too: their plan says so.
    """
    text = self.program((Choice(),) * len(self.members)).lower().as_text() + repr(self.spread(num_devices=1))
    return f"{self.name} {self.fingerprint} {hashlib.sha256(text.encode()).hexdigest()[:16]}"

  def largest_arguments(self, top: int = 3) -> tuple[tuple[int, str, str], ...]:
    """``(bytes, type, path)`` of the largest arguments, one device's share of those that say how they are sharded."""
    found = []
    for path, value in jax.tree_util.tree_flatten_with_path((self.args, self.kwargs))[0]:
      if hasattr(value, "shape") and hasattr(value, "dtype"):
        sharding = getattr(value, "sharding", None)
        shape = value.shape if sharding is None else sharding.shard_shape(value.shape)
        found.append((math.prod(shape) * value.dtype.itemsize, f"{value.dtype.name}{list(shape)}", path_name(path)))
    return tuple(sorted(found, key=lambda entry: -entry[0])[:top])

  def program(self, choices: Sequence[Choice]) -> "Program":
    """The step with a choice per region."""
    keys = [member.key for member in self.members]
    return Program(self, Directions(self.name, tuple(zip(keys, choices, strict=True))))

  def spread(self, num_devices: int) -> Spread:
    """Of its arguments, in a program that runs on so many devices."""
    return Spread.of((self.args, self.kwargs), num_devices)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """A step under directions, with its arguments in it: what is compiled."""

  step: Step
  directions: Directions

  @property
  def __name__(self) -> str:
    return self.step.name

  def lower(self) -> jax.stages.Lowered:
    """The step lowered with its own donation, shardings and options."""
    with _directions(self.directions):
      lowered = self.step.jitted.lower(*self.step.args, **self.step.kwargs)
    return getattr(lowered, "lowered", lowered)  # of Flax, around JAX's


def find_step(fn: Callable, args: Sequence[Any], kwargs: dict[str, Any], target: Target | None = None) -> Step | None:
  """The function as a step, if it takes gradients of remat regions; else None.

  Args:
    fn: with a jit of its own, or without.
    args: `jax.ShapeDtypeStruct` will do.
    kwargs: same.
    target: what the step is for, None for the default backend.
  """
  if target is not None and not target.is_running:
    args, kwargs = _moved(target, (tuple(args), kwargs))
  jitted = fn
  if not is_jitted(fn):
    args, kwargs = non_arrays.hidden((tuple(args), kwargs))
    jitted = jax.jit(_of_hidden(fn))
  collector, runs = _Collector(), _Runs()
  with _directions(collector), explained(getattr(fn, "__name__", type(fn).__name__)):
    traced = jitted.trace(*args, **kwargs)
    runs.visit(getattr(traced, "traced", traced).jaxpr, 1, 1)  # of Flax, around JAX's
  if not collector.regions or not runs.has_gradient:
    return None

  members = tuple(Member(fingerprint, traced, max(runs.total[i], 1), max(runs.kept[i], 1))
                  for i, (fingerprint, traced) in enumerate(collector.regions.items()))
  return Step(getattr(fn, "__name__", type(fn).__name__), jitted, args, kwargs, members)


def _of_hidden(fn: Callable) -> Callable:
  """The function for arguments and results whose leaves that are no arrays are hidden."""
  @functools.wraps(fn)
  def of_hidden(*args, **kwargs):
    args, kwargs = non_arrays.shown((args, kwargs))
    return non_arrays.hidden(fn(*args, **kwargs))

  return of_hidden


def _moved(target: Target, tree: Any) -> Any:
  """Arguments as abstract values on the target's devices; static ones stay as they are."""
  leaves, in_tree = jax.tree.flatten(tree)
  shardings = target.moved([getattr(leaf, "sharding", None) for leaf in leaves])
  return jax.tree.unflatten(in_tree, [
    jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=getattr(leaf, "weak_type", False))
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else leaf
    for leaf, sharding in zip(leaves, shardings, strict=True)])


class _Runs:
  """How often a step runs its regions.

  Attributes:
    total: per region, runs of the forward pass; a `while` counts as one turn.
    kept: per region, how many are kept at once: not those of different turns of a loop that holds the gradient.
    has_gradient: the step takes one.
  """

  def __init__(self):
    self.total, self.kept = collections.Counter(), collections.Counter()
    self.has_gradient = False

  def visit(self, jaxpr: core.Jaxpr, num_runs: int, num_kept: int) -> None:
    """Counts what stands in a jaxpr that itself runs, and is kept, this often."""
    calls = set()
    for equation in jaxpr.eqns:
      if _is_backward(equation):
        self.has_gradient = True
      elif found := _REGION.search(compat.name_scopes(equation)):
        calls.add(found.groups())
      else:
        length = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in compat.sub_jaxprs(equation):
          self.visit(inner, num_runs * length, num_kept * (1 if _holds_backward(inner) else length))
    for region, _ in calls:
      self.total[int(region)] += num_runs
      self.kept[int(region)] += num_kept


def _is_backward(equation: core.JaxprEqn) -> bool:
  return "transpose(" in compat.name_scopes(equation)


def _holds_backward(jaxpr: core.Jaxpr) -> bool:
  return any(_is_backward(equation) or any(map(_holds_backward, compat.sub_jaxprs(equation)))
             for equation in jaxpr.eqns)
