"""How a traced function is carried out."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core

from coopjax import compat, contexts
from coopjax.errors import CoopjaxError, NotDifferentiableError, RematNoEffectWarning, warn
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import CHOICE, Mark, Whole
from coopjax.jaxpr.tags import marked_fn
from coopjax.jaxpr.trace import TracedFn
from coopjax.memory_profile import MemoryProfile
from coopjax.policy_engine import rewrite
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.policy_plan import PolicyPlan
from coopjax.policy_engine.shards import Shards


@dataclasses.dataclass(frozen=True)
class Alone:
  """A function as it is carried out, together with its gradient and with nothing else in a program.

  Attributes:
    unaided_bytes: temporaries, without what the HLO engine does.
    flops: repeated under checkpoints, modelled.
    hlo_flops: repeated by the HLO engine.
  """

  unaided_bytes: int
  flops: float
  hlo_flops: float


@dataclasses.dataclass(frozen=True)
class Choice:
  """How a traced function is carried out: under a mark for the HLO engine, rewritten, both, or as it is.

  Attributes:
    mark: for the HLO engine.
    decisions: of the policy engine.
    held: what its program is held to once it is compiled, where no HLO engine sees to that.
    alone: what that comes to where an engine was asked for the function alone.
  """

  mark: str | None = None
  decisions: PolicyDecisions | None = None
  held: str | None = None
  alone: Alone | None = None

  @property
  def engine(self) -> str:
    """The engines at work: "hlo", "policy", "policy+hlo" or "none"."""
    return "+".join(name for name, used in (("policy", self.decisions), ("hlo", self.mark)) if used) or "none"

  @property
  def is_cut(self) -> bool:
    """Whether the policy engine cuts it at the top, where XLA must not merge a piece with what was run before."""
    top = self.decisions and self.decisions.top
    return top is not None and len(list(top.leaves)) > 1

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> "Choice":
    """The inverse of `dataclasses.asdict`, whether or not it went through JSON."""
    mark, decisions, held, alone = (fields[name] for name in ("mark", "decisions", "held", "alone"))
    if not (isinstance(mark, str | None) and isinstance(held, str | None)):
      raise TypeError(f"marks are text, not {mark!r} and {held!r}")
    decided = None if decisions is None else PolicyDecisions.from_json(decisions)
    return cls(mark, decided, held, None if alone is None else Alone(**alone))

  @property
  def asked(self) -> Mark | None:
    """What its program asks of the HLO engine, or is held to without it."""
    text = self.mark or self.held
    return None if text is None else Mark.from_text(text)

  def asking(self, mark: Mark) -> "Choice":
    """It, with another mark in the place of what it asks."""
    if self.mark is not None:
      return dataclasses.replace(self, mark=mark.to_text())
    return dataclasses.replace(self, held=mark.to_choice())

  def held_to(self, whole: Callable[[Whole], Whole | None]) -> "Choice":
    """It, where its program is held to a share, with that changed; to none where that is changed to None."""
    if (mark := self.asked) is None or mark.whole is None:
      return self
    changed = whole(mark.whole)
    if changed is None and self.mark is None:
      return dataclasses.replace(self, held=None)
    return self.asking(dataclasses.replace(mark, whole=changed))

  def flat_fn(self, traced: TracedFn, prevent_cse: bool = True) -> Callable[..., list[Any]]:
    """The function carried out this way, in place of ``traced.evaluate``; `prevent_cse` as for `jax.checkpoint`."""
    if self.held is not None:
      hook.watch()
    mark = self.mark or self.held
    if self.decisions is not None:
      return rewrite.rewrite(traced, self.decisions, mark or _noted(traced), prevent_cse=prevent_cse)
    return marked_fn(traced, mark)

  def here(self, traced: TracedFn, prevent_cse: bool = True) -> Callable[..., list[Any]]:
    """As `flat_fn`, for a call that is made now.

    Where operations run one by one, no mark asks anything of them: under a gradient, all is repeated, as under
    `jax.checkpoint`. Warns where forward and backward pass are two programs, so that the HLO engine can't recompute
    across them.
    """
    is_one_by_one = contexts.one_by_one.value or compat.is_eager()
    if self.mark is not None and compat.has_backward_outside():
      if is_one_by_one:
        return traced.once("all repeated", lambda: jax.checkpoint(traced.evaluate, policy=traced.policy))
      what = f"the remat of {traced.name}"
      warn(
        f"{what if self.decisions is None else f"the HLO engine's part in {what}"} has no effect: the gradient is "
        "taken outside of the jax.jit or the loop that it stands in, so the backward pass is not compiled together "
        "with what it needs of the forward pass. Put jax.jit around the function that takes the gradient",
        RematNoEffectWarning,
      )
    choice = dataclasses.replace(self, mark=None, held=None) if is_one_by_one else self
    return traced.once((choice, prevent_cse), lambda: choice._carried_out(traced, prevent_cse))

  def _carried_out(self, traced: TracedFn, prevent_cse: bool) -> Callable[..., list[Any]]:
    """For any number of calls: what is rewritten is traced once, not at each of them."""
    flat_fn = self.flat_fn(traced, prevent_cse)
    if self.decisions is None:
      return flat_fn
    rewritten = jax.make_jaxpr(flat_fn)(*[var.aval for var in traced.jaxpr.invars])
    return lambda *inputs: jax.core.eval_jaxpr(rewritten, rewritten.consts, *inputs)


@dataclasses.dataclass(frozen=True)
class Chosen:
  """A choice together with what the planning module showed.

  Attributes:
    choice: how the function is carried out.
    outcome: of the HLO engine on the planning module, if it was at work.
    policy_plan: of the policy engine, if it was at work.
    is_certain: False where only the compile of the user's own program shows whether it fits.
    before: memory without a plan, where that was compiled beside the module.
    measured: memory with the plan, where that was compiled.
    shards: how devices share the function's values, where the policy engine asked.
  """

  choice: Choice
  outcome: hook.Outcome | None = None
  policy_plan: PolicyPlan[PolicyDecisions] | None = None
  is_certain: bool = True
  before: MemoryProfile | None = None
  measured: MemoryProfile | None = None
  shards: Mapping[int | None, Shards] = dataclasses.field(default_factory=dict)

  @property
  def temp_bytes(self) -> int:
    """Of what was compiled last, at an accelerator."""
    compiled = self.measured or self.before
    assert compiled is not None  # at an accelerator, the program without a plan at least
    return compiled.temp_bytes

  @property
  def alone(self) -> Alone | None:
    """Of the choice, where an engine was asked."""
    if (found := self.policy_plan) is not None:
      return Alone(found.unaided_bytes, found.recompute_flops - found.hlo_flops, found.hlo_flops)
    if self.choice.mark is None or self.outcome is None:
      return None
    return Alone(self.outcome.baseline.temp_bytes, 0.0, self.outcome.recompute_flops)

  @property
  def holds_budget(self) -> bool:
    """The planning module fits; False where only a warning let a larger one pass, or nothing needed to be done."""
    if not self.is_certain:
      return False
    if self.policy_plan is not None:
      return self.policy_plan.is_feasible
    return self.outcome is not None and self.outcome.fits and self.outcome.module_bytes is not None


def _noted(traced: TracedFn) -> str | None:
  """What tells that the processes of a job have to agree on a program without a mark, if they have to."""
  if not traced.placement.processes:
    return None
  hook.watch()
  return CHOICE


def left_as_it_is(name: str, error: Exception, door: str) -> Choice:
  """The choice for what can't be planned: as it is, with the reason, where there is one to give.

  What JAX or XLA can't do with a function alone, they may do where it is called.

  Args:
    name: of the function.
    error: that planning ended with; one of ours, but for a missing gradient, is about what was asked, and is raised.
    door: what was put around it.
  """
  if isinstance(error, NotDifferentiableError):
    if compat.num_gradients():
      warn(f"{door} has no effect: {error}", RematNoEffectWarning)
  elif isinstance(error, CoopjaxError):
    raise error
  else:
    cause = f"{name} could not be planned: {type(error).__name__}: {error}".partition("\n")[0]
    warn(f"{door} has no effect: {cause}", RematNoEffectWarning)
  return Choice()
