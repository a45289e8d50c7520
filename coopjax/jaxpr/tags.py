"""Tags that lead from a compiled instruction back to the jaxpr equation and the source line it came from.

Every equation, those inside scans, branches, nested jits, checkpoints and custom derivative rules included, gets a
name scope ``coop<id>``. XLA keeps name scopes as ``op_name`` metadata, through differentiation and fusion:
``jit(f)/jvp(coop12)/tanh`` forward, ``jit(f)/transpose(jvp(coop12))/mul`` backward. A mark, if given, is set as XLA
metadata on the same equations; it arrives as the frontend attribute ``coopjax`` of forward and backward
instructions, which is how the HLO engine recognizes the programs it may touch. Where the user's policy saves values, a
scope ``coopkept`` on the equations that make them tells the engine not to recompute those.

Tagging rebuilds the jaxpr with other labels and evaluates nothing, so it can't change a number.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import user_policy
from coopjax.jaxpr.trace import TracedFn
from coopjax.program.scopes import KEPT_SCOPE

MARK_ATTRIBUTE = "coopjax"
_MERGED = re.compile(r"(?:^|/)\((.+:.+)\)$")
_TAG = re.compile(r"\bcoop(\d+)\b")


@dataclasses.dataclass(frozen=True)
class Tag:
  """What an ``op_name`` says about the instruction that carries it.

  Attributes:
    equation_id: the innermost tagged equation.
    is_backward: the instruction belongs to the transposed (backward) pass.
    is_recomputed: it repeats forward work under a `jax.checkpoint`.
  """

  equation_id: int
  is_backward: bool
  is_recomputed: bool


@dataclasses.dataclass(frozen=True)
class EquationInfo:
  """One tagged equation.

  Attributes:
    id: its tag.
    primitive: the primitive's name.
    source: where the user wrote it, if JAX recorded that.
    parent_id: the equation whose sub-jaxpr holds it (a scan, say); None at the top.
    equation: as it stands in the jaxpr, untagged.
    is_kept: the user's policy saves an output of it.
  """

  id: int
  primitive: str
  source: compat.SourceLine | None
  parent_id: int | None
  equation: core.JaxprEqn = dataclasses.field(repr=False, compare=False)
  is_kept: bool = False


def parse_tag(op_name: str) -> Tag | None:
  """Reads the tag out of an instruction's ``op_name``; None when it has none.

  Of a name that XLA made from those of many instructions, ``jit(f)/(jvp(coop1)/sum:transpose(jvp(coop2))/sum)``, it is
  the tag of the one that would run last.
  """
  if merged := _MERGED.search(op_name):
    tags = [tag for part in merged[1].split(":") if (tag := parse_tag(part)) is not None]
    return max(
      tags, key=lambda tag: (tag.is_backward, -tag.equation_id if tag.is_backward else tag.equation_id), default=None
    )
  ids = _TAG.findall(op_name)
  if not ids:
    return None
  # Inside are the transformations of what the function does itself: it may take gradients.
  is_backward = op_name.partition("jvp(")[0].endswith("transpose(")
  return Tag(int(ids[-1]), is_backward, "rematted_computation" in op_name)


def tag_jaxpr(
  jaxpr: core.Jaxpr, mark: str | None = None, policy: Callable | None = None
) -> tuple[core.Jaxpr, tuple[EquationInfo, ...]]:
  """The jaxpr with every equation tagged, marked if a mark is given, and kept where a policy saves its outputs.

  Ids count equations in pre-order: a function of the jaxpr alone, the same in every process.

  Returns:
    The tagged jaxpr, and the table from id to equation.
  """
  tagger = _Tagger(mark, policy)
  return tagger.tag(jaxpr, None), tuple(tagger.table)


def tagged_fn(traced: TracedFn, mark: str | None = None) -> Callable[..., list[Any]]:
  """The traced function, tagged, from the flat inputs of its jaxpr to its flat outputs: what is compiled to be looked
  at. It differs by rounding from what the user wrote (see `compat.keep_calls`).
  """
  jaxpr, _ = tag_jaxpr(traced.jaxpr, mark, traced.policy)
  return lambda *inputs: jax.core.eval_jaxpr(jaxpr, (), *inputs)


def marked_fn(traced: TracedFn, mark: str | None) -> Callable[..., list[Any]]:
  """The traced function under a mark alone, with the bits of what the user wrote, however it is transformed.

  Use it like `traced.evaluate`: ``traced.call(leaves, marked_fn(traced, mark))`` in place of the user's function.
  """
  if mark is None:
    return traced.evaluate
  jaxpr = marked_jaxpr(traced, mark)
  return lambda *inputs: jax.core.eval_jaxpr(jaxpr, (), *inputs)


def marked_jaxpr(traced: TracedFn, mark: str | None) -> core.Jaxpr:
  """The traced function with its calls as they are, under a mark alone, if there is one."""
  return traced.as_called if mark is None else _Marker({MARK_ATTRIBUTE: mark}, traced.policy).mark(traced.as_called)


def marked(mark: str | None) -> contextlib.AbstractContextManager:
  """For the time that a whole step is traced or lowered: all of its equations carry the mark."""
  return contextlib.nullcontext() if mark is None else compat.with_metadata({MARK_ATTRIBUTE: mark})


class _Tagger:
  def __init__(self, mark: str | None, policy: Callable | None):
    self._metadata: dict[str, str | None] = {} if mark is None else {MARK_ATTRIBUTE: mark}
    self._policy = policy
    self.table: list[EquationInfo] = []

  def tag(self, jaxpr: core.Jaxpr, parent_id: int | None, call: core.JaxprEqn | None = None) -> core.Jaxpr:
    """Tags every equation; `call` is the nested jit, if any, that the jaxpr is the body of."""
    kept = user_policy.kept_values(jaxpr, self._policy) if self._policy else set()
    return compat.rebuild(
      jaxpr,
      [
        self._tag_equation(equation, parent_id, call, is_kept=not kept.isdisjoint(equation.outvars))
        for equation in jaxpr.eqns
      ],
    )

  def _tag_equation(
    self, equation: core.JaxprEqn, parent_id: int | None, call: core.JaxprEqn | None, is_kept: bool
  ) -> core.JaxprEqn:
    if call is not None:
      equation = compat.at_call_site(call, equation)
    call = equation if compat.is_plain_jit(equation) else call
    equation_id = len(self.table)
    source = compat.source_line(equation)
    self.table.append(EquationInfo(equation_id, equation.primitive.name, source, parent_id, equation, is_kept))
    # Equations of a rule run under the tag of the call that owns it, and have its mark: JAX keeps them with another's.
    own_metadata: dict[str, str | None] = {MARK_ATTRIBUTE: compat.metadata_of(equation, MARK_ATTRIBUTE)}
    in_rule = _Marker(self._metadata or own_metadata).mark
    equation = compat.map_sub_jaxprs(equation, lambda inner: self.tag(inner, equation_id, call), in_rule)
    scopes = (f"coop{equation_id}", KEPT_SCOPE) if is_kept else (f"coop{equation_id}",)
    return compat.relabel(equation, scopes, self._metadata)


class _Marker:
  """Sets the mark on every equation, and the scope of what a policy keeps; tags nothing.

  What `jax.numpy` calls again and again stays one jaxpr, which JAX differentiates once.
  """

  def __init__(self, metadata: dict[str, str | None], policy: Callable | None = None):
    self._metadata, self._policy = metadata, policy
    self._opened: dict[tuple[int, tuple[int, ...]], tuple[core.Jaxpr, core.Jaxpr]] = {}

  def mark(self, jaxpr: core.Jaxpr, call: core.JaxprEqn | None = None, kept_outputs: Sequence[int] = ()) -> core.Jaxpr:
    """The jaxpr, marked.

    Args:
      jaxpr: any.
      call: the nested jit, if any, that it is the body of.
      kept_outputs: those that the policy keeps outside.
    """
    kept = user_policy.kept_values(jaxpr, self._policy) if self._policy else set()
    kept.update(var for var in (jaxpr.outvars[i] for i in kept_outputs) if isinstance(var, core.Var))
    return compat.rebuild(jaxpr, [self._equation(equation, call, kept) for equation in jaxpr.eqns])

  def _equation(self, equation: core.JaxprEqn, call: core.JaxprEqn | None, kept: set[core.Var]) -> core.JaxprEqn:
    outputs = tuple(i for i, var in enumerate(equation.outvars) if var in kept)
    if compat.is_opened_by_jax(equation):  # its lines are those of the call, and what makes its outputs stands inside
      equation = compat.map_sub_jaxprs(equation, lambda inner: self._mark_opened(inner, outputs), lambda rule: rule)
      return compat.relabel(equation, (), self._metadata)
    if call is not None:
      equation = compat.at_call_site(call, equation)
    call = equation if compat.is_plain_jit(equation) else call
    in_rule = _Marker(self._metadata).mark
    equation = compat.map_sub_jaxprs(equation, lambda inner: self.mark(inner, call), in_rule)
    return compat.relabel(equation, (KEPT_SCOPE,) if outputs else (), self._metadata)

  def _mark_opened(self, body: core.Jaxpr, kept_outputs: tuple[int, ...]) -> core.Jaxpr:
    key = (id(body), kept_outputs)
    if key not in self._opened:
      self._opened[key] = body, self.mark(body, None, kept_outputs)  # the number stands for it as long as it is kept
    return self._opened[key][1]
