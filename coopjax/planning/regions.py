"""Remat regions: functions that are carried out as the step around them directs, or else as is chosen for each alone.

JAX keeps traces of functions that are jitted or scanned. The directions that a step is traced under are a user context
of JAX's (`coopjax.contexts`), which is a part of the keys of those caches. For the same reason equal calls of a region
get equal decisions: one trace may stand for several calls (a jit's, a scan's) and several traces for one, so a number
given to a call while the step is planned need not be the one it has when the plan is carried out.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from coopjax import compat, contexts
from coopjax.errors import OrderedEffectError, PlanMismatchError, RematNoEffectWarning, warn
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.placement import Spread
from coopjax.jaxpr.trace import TracedFn, is_floating
from coopjax.jaxpr.traced_once import trace_once
from coopjax.planning.choice import Choice
from coopjax.policy_engine.shards import Observed

_REGION = re.compile(r"\bcoopregion(\d+)(?:_(\d+))?\b")
_RESULT = re.compile(r"coopregion(\d+)_(\d+) has (\d+)")
_KEPT_DIGESTS = 4096
_PYTHON = (bool, int, float, complex, np.ndarray, np.generic)  # what operations run one by one make arrays of

EXISTING = ("replace", "keep", "at_least")

FlatFn = Callable[..., Sequence[Any]]
Call = tuple[int, str | None]  # a region, by its place among the step's, and the number of one trace of it


def region(
  fn: Callable,
  choose: Callable[[TracedFn], Choice],
  *,
  policy: Callable | None = None,
  static_argnums: int | Sequence[int] = (),
  static_argnames: str | Sequence[str] = (),
  prevent_cse: bool | Sequence[bool] = True,
  is_plain_when_eager: bool = False,
  is_filtered: bool = False,
) -> Callable:
  """The function as a remat region.

  Args:
    fn: a function of pytrees.
    choose: how to carry it out where no step around it says so; asked at each call that is traced.
    policy: as for `coopjax.remat`.
    static_argnums: same.
    static_argnames: same.
    prevent_cse: same.
    is_plain_when_eager: leaves calls alone that run operation by operation and keep nothing for a backward pass.
    is_filtered: all arguments and results that are no arrays are static, as in Equinox.
  """
  static = {"static_argnums": static_argnums, "static_argnames": static_argnames, "is_filtered": is_filtered}
  prevents_cse = prevent_cse if isinstance(prevent_cse, bool) else any(prevent_cse)

  @functools.wraps(fn)
  def rematerialized(*args, **kwargs):
    with inside_region():
      traced, leaves = trace_once(fn, args, kwargs, policy=policy, **static)
    is_eager = not is_planned() and compat.is_eager()
    if is_eager:
      leaves = [_as_array(leaf) for leaf in leaves]
    if (flat_fn := directed(traced, prevents_cse)) is None:
      if traced.ordered_effect:
        flat_fn = _in_order(traced)
      elif is_plain_when_eager and is_eager and not compat.has_backward_outside():
        flat_fn = traced.evaluate
      else:
        flat_fn = choose(traced).here(traced, prevents_cse)
    return traced.call(leaves, _with_arrays(flat_fn) if is_eager else flat_fn)

  return rematerialized


def _as_array(leaf: Any) -> Any:
  """A number or an array of NumPy as JAX's operations take it, which an operation would do, and none may follow."""
  is_foreign = isinstance(leaf, _PYTHON) and getattr(leaf, "dtype", None) != jax.dtypes.float0
  return jnp.asarray(leaf) if is_foreign else leaf


def _with_arrays(flat_fn: FlatFn) -> FlatFn:
  """The function, for whose results the same goes: constants of it, and arguments that it hands on."""
  return lambda *inputs: [_as_array(output) for output in flat_fn(*inputs)]


def _in_order(traced: TracedFn) -> FlatFn:
  """A function with ordered effects, under a `jax.checkpoint` that keeps JAX from running them twice."""
  checkpointed = traced.once("in order", lambda: jax.checkpoint(traced.evaluate))

  def flat_fn(*inputs):
    try:
      return checkpointed(*inputs)
    except NotImplementedError as error:
      try:
        traced.refuse_ordered_effects()
      except OrderedEffectError as refusal:
        raise refusal from error
      raise

  return flat_fn


def check_function(fn: Any) -> None:
  """Raises TypeError for what is no function."""
  if not callable(fn):
    raise TypeError(f"remat takes a function, and then keywords: {fn!r} is none")


def check_prevent_cse(prevent_cse: Any) -> None:
  """Raises TypeError for what is neither a bool nor one for each argument."""
  each = prevent_cse if isinstance(prevent_cse, (tuple, list)) else (prevent_cse,)
  if not all(isinstance(one, bool) for one in each):
    raise TypeError(f"prevent_cse={prevent_cse!r}: a bool, or one for each argument")


def check_existing(existing: Any) -> None:
  """Raises ValueError for what says nothing of existing checkpoints."""
  if existing not in EXISTING:
    raise ValueError(f"existing={existing!r}: one of {', '.join(EXISTING)}")


class _Met:
  """Digests of the directions that some region has followed, those used latest; safe under threads.

  They are the process's, as JAX's caches are: under directions that a trace is kept for, no region is met again.
  """

  def __init__(self):
    self._digests: collections.OrderedDict[str, None] = collections.OrderedDict()
    self._lock = threading.Lock()

  def note(self, digest: str) -> None:
    with self._lock:
      self._digests[digest] = None
      self._digests.move_to_end(digest)
      while len(self._digests) > _KEPT_DIGESTS:
        self._digests.popitem(last=False)

  def __contains__(self, digest: str) -> bool:
    with self._lock:
      if is_met := digest in self._digests:
        self._digests.move_to_end(digest)
      return is_met


_met = _Met()


@dataclasses.dataclass(frozen=True)
class Directions:
  """What the regions of a step do; hashed by content, since JAX keeps what it traced under them.

  Attributes:
    step: the step's name.
    choices: by fingerprint, in the order in which the step meets the regions: a `Choice` each or, while what people do
      by hand is measured or the partitioner watched, what has its `flat_fn`.
    spread: of the arguments that they were made for; None while they are being made.
    existing: what becomes of the user's `jax.checkpoint`s, one of `EXISTING`.
    of_gradients: functions that are differentiated are regions, too (`coopjax.planning.differentiated`).
    is_standing: they are for all programs of the process, so regions that nobody differentiates are left alone.
    digest: of the choices.
  """

  step: str = dataclasses.field(compare=False)
  choices: tuple[tuple[str, Choice | Observed], ...] = dataclasses.field(compare=False)
  spread: Spread | None = dataclasses.field(default=None, compare=False)
  existing: str = "replace"
  of_gradients: bool = False
  is_standing: bool = False
  digest: str = dataclasses.field(init=False)

  def __post_init__(self):
    object.__setattr__(self, "digest", hashlib.sha256(repr((self.choices, self.existing)).encode()).hexdigest())

  def flat_fn(self, traced: TracedFn, prevent_cse: bool, policy: Callable | None = None) -> FlatFn | None:
    """A region, carried out; None for one that is left alone."""
    if self.is_standing and not compat.num_gradients():
      return None
    traced.refuse_ordered_effects()
    fingerprint = fingerprint_of(traced)
    for index, (known, choice) in enumerate(self.choices):
      if known == fingerprint:
        _met.note(self.digest)
        with compat.plain_checkpoints():
          # A finished plan's choices are for a call that is made now; before that, all is compiled.
          if isinstance(choice, Choice):
            flat_fn = (choice.flat_fn if self.spread is None else choice.here)(traced, prevent_cse or choice.is_cut)
          else:
            flat_fn = choice.flat_fn(traced)
        return _scoped(flat_fn, f"coopregion{index}")
    raise PlanMismatchError(
      f"the plan of {self.step} has no remat region {traced.name} with fingerprint {fingerprint}, as the step has it "
      "now: the plan was made for another step, for other shapes or dtypes, or with other versions of its libraries"
    )


class Collector:
  """Notes the regions that a step meets, and leaves them as they are, their results named; one for each trace.

  Args:
    existing: as for `Directions`.
    of_gradients: same.

  Attributes:
    regions: by fingerprint, in the order in which the step meets them.
    policies: of those that are a `jax.checkpoint` of the user's.
  """

  def __init__(self, existing: str = "replace", *, of_gradients: bool = False):
    self.existing, self.of_gradients = existing, of_gradients
    self.regions: dict[str, TracedFn] = {}
    self.policies: dict[str, Callable] = {}
    self._num_calls = 0

  def flat_fn(self, traced: TracedFn, prevent_cse: bool, policy: Callable | None = None) -> FlatFn:
    traced.refuse_ordered_effects()
    fingerprint = fingerprint_of(traced)
    flags = traced.is_differentiable
    if known := self.regions.get(fingerprint):  # a first layer's inputs need no gradient, those of the next do
      flags = tuple(map(max, flags, known.is_differentiable))
    # No tracer outlives its trace.
    self.regions[fingerprint] = dataclasses.replace(traced, consts=(), is_differentiable=flags)
    self._num_calls += 1
    if policy is not None:
      self.policies[fingerprint] = policy
    scope = f"coopregion{list(self.regions).index(fingerprint)}_{self._num_calls}"
    return _scoped(lambda *inputs: _noted(traced.evaluate(*inputs), scope), scope)


class _Inside:
  """For regions inside a region: they are a part of it."""

  of_gradients = False

  def __init__(self, existing: str):
    self.existing = existing

  def flat_fn(self, traced: TracedFn, prevent_cse: bool, policy: Callable | None = None) -> FlatFn:
    return traced.evaluate


_INSIDE = {existing: _Inside(existing) for existing in EXISTING}  # these, so that jits inside regions are traced once


@contextlib.contextmanager
def inside_region() -> Iterator[None]:
  """For the time that a region is traced: what a planned step wants is asked of the outermost region."""
  with contextlib.ExitStack() as inside:
    if is_planned():
      inside.enter_context(contexts.directions(_INSIDE[contexts.directions.value.existing]))
    else:
      inside.enter_context(contexts.in_region(True))
      if compat.is_eager():
        inside.enter_context(contexts.one_by_one(True))
    yield


def is_planned() -> bool:
  """Whether a step that says what its regions do is being traced or run."""
  return contexts.directions.value is not None


def directed(traced: TracedFn, prevent_cse: bool, policy: Callable | None = None) -> FlatFn | None:
  """What the step that is being traced wants of a region, as a function of its flat inputs; None outside of such steps.

  Args:
    traced: the region.
    prevent_cse: as its user wrote it.
    policy: of a `jax.checkpoint` of the user's; it binds nobody (`TracedFn.policy` does).

  Raises:
    PlanMismatchError: a plan is being carried out that does not know the region.
  """
  return contexts.directions.value.flat_fn(traced, prevent_cse, policy) if is_planned() else None


def _scoped(flat_fn: FlatFn, name: str) -> FlatFn:
  """The function under a name scope, which stands in the metadata of all its instructions."""

  def scoped(*inputs):
    with jax.named_scope(name), compat.plain_checkpoints():
      return flat_fn(*inputs)

  return scoped


def call_of(scope: str) -> Call | None:
  """The region, by its place among the step's, that name scopes put an instruction in, and which call of it."""
  found = _REGION.search(scope)
  return (int(found[1]), found[2]) if found else None


def region_of(scope: str) -> int | None:
  """The region alone."""
  call = call_of(scope)
  return call and call[0]


def is_transposed(scope: str) -> bool:
  """Whether name scopes tell of the backward pass of a region; inside of loops and jits they tell nothing of it."""
  around = scope.partition("coopregion")[0]
  return around.rpartition("jvp(")[0].endswith("transpose(")


def _noted(outputs: Sequence[Any], scope: str) -> list[Any]:
  """The results of a call, each under a name that tells how large it is: under a `vmap` around, it will be larger."""
  return [
    checkpoint_name(output, f"{scope} has {math.prod(aval.shape)}")
    if is_floating(aval := jax.typeof(output)) and all(isinstance(size, int) for size in aval.shape)
    else output
    for output in outputs
  ]


def result_of(name: str) -> tuple[Call, int] | None:
  """The call that a name of `_noted` tells of, and the number of elements that one call's result has."""
  found = _RESULT.fullmatch(name)
  return ((int(found[1]), found[2]), int(found[3])) if found else None


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


def step_under(directions: Directions, fn: Callable) -> Callable:
  """The step with directions carried out inside; a jitted one stays jitted, with its options.

  A step that turns out to have none of the regions is warned of.
  """
  return DirectedStep(fn, directions) if is_jitted(fn) else functools.wraps(fn)(_followed(fn, directions))


def _followed(fn: Callable, directions: Directions) -> Callable:
  def followed(*args, **kwargs):
    assert directions.spread is not None  # a finished plan's
    directions.spread.check(directions.step, (args, kwargs))
    with contexts.directions(directions):
      result = fn(*args, **kwargs)
    if directions.digest not in _met:
      warn(f"the plan of {directions.step} has no effect: none of its remat regions was met", RematNoEffectWarning)
    return result

  return followed


def is_jitted(fn: Callable) -> TypeGuard[jax.stages.Wrapped]:
  """Whether a function comes with its own jit: of JAX or of Flax NNX."""
  return hasattr(fn, "trace") and hasattr(fn, "lower")
