"""What the backward pass keeps of a region: its forward graph, with residuals, as JAX differentiates it.

A region is the top of a jaxpr or the body of a scan; a position is an index into its equations. The graph is read off
the jaxpr of ``jax.vjp``, whose outputs are exactly the residuals, so custom derivative rules, nested loops and
existing checkpoints are seen as they are. Every output of every equation is named on the way, which tells the value
that a policy can save (after the name) from the one a derivative rule holds on to (before it): saving the output of
``tanh`` by name does not spare recomputing it, because the rule of ``tanh`` reads its own result.

Sizes are JAX's, less what XLA certainly fuses away; the planner scales by what it has measured.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jax.extend import core
from jax.extend.core import primitives

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import Once, TracedFn, is_floating
from coopjax.jaxpr.user_policy import is_nameable
from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.forward_graph import ForwardGraph, ForwardOp
from coopjax.policy_engine.homes import Home
from coopjax.policy_engine.inside import is_inside, joined, opened, parsed
from coopjax.policy_engine.shards import WHOLE, Shards

_POSITION = re.compile(r"coopjax_position(\d+)")
# The output is the input's buffer, or XLA fuses it into every reader at no cost.
_VIEWS = frozenset("name reshape squeeze expand_dims broadcast_in_dim reduce_precision copy iota".split())

# XLA repeats these inside every fusion that reads them rather than keep the result, if it has their inputs.
_CHEAP = (
  frozenset(
    "abs add add_any and clamp convert_element_type div eq floor ge gt integer_pow is_finite le lt max min mul ne neg "
    "not one_minus_square or round select_n sign square stop_gradient sub xor".split()
  )
  | _VIEWS
)

_MAX_CHAIN = 2  # cheap ops in a row that XLA repeats rather than keep their result


def forward_graph(jaxpr: core.Jaxpr, is_differentiable: Sequence[bool], shards: Shards = WHOLE) -> ForwardGraph:
  """Differentiates a region and reads off its forward graph.

  Args:
    jaxpr: the region; no attached constants.
    is_differentiable: per input, whether a gradient is taken.
    shards: how devices share its values.
  """
  forward = _differentiated(jaxpr, is_differentiable)
  crossing, has_cotangent = _crossing(jaxpr, is_differentiable, shards)
  return _GraphBuilder(jaxpr, shards).build(forward, crossing, crossing[has_cotangent])


def differentiated_in(jaxpr: core.Jaxpr, is_differentiable: Sequence[bool]) -> set[core.Var]:
  """The variables of a region that have a tangent, as far as primitives tell: what depends on an input that does."""
  found = {var for var, ok in zip(jaxpr.invars, is_differentiable, strict=True) if ok}
  for equation in jaxpr.eqns:
    if equation.primitive.name != "stop_gradient" and not found.isdisjoint(
      atom for atom in equation.invars if isinstance(atom, core.Var)
    ):
      found.update(var for var in equation.outvars if is_floating(var.aval))
  return found


def graph_of(traced: TracedFn, home: Home | None = None, once: Once | None = None) -> ForwardGraph:
  """The forward graph of a region of a function, its top if none is given, on all devices together; read off once."""

  def read_off() -> ForwardGraph:
    with (home or traced).scope.entered():
      if home is not None:
        return forward_graph(home.jaxpr, home.is_differentiable)
      jaxpr, _ = tag_jaxpr(traced.inlined)
      return forward_graph(jaxpr, traced.is_differentiable)

  return (once or traced.once)((graph_of, home and home.equation_id), read_off)


def _differentiated(jaxpr: core.Jaxpr, is_differentiable: Sequence[bool]) -> core.Jaxpr:
  """The jaxpr from the region's inputs to its residuals."""
  wrt = [i for i, ok in enumerate(is_differentiable) if ok]

  def residuals(*inputs):
    def of_floating(*floating):
      merged = list(inputs)
      for i, value in zip(wrt, floating, strict=True):
        merged[i] = value
      return [out for out in _evaluate_named(jaxpr, merged) if is_floating(out)]

    return jax.vjp(of_floating, *[inputs[i] for i in wrt])[1]

  return jax.make_jaxpr(residuals)(*[var.aval for var in jaxpr.invars])


def _evaluate_named(jaxpr: core.Jaxpr, inputs: Sequence[object]) -> list[object]:
  """Evaluates a jaxpr with its position as a name scope around, and a name on each output of, every equation, also of
  those inside of loops and branches.
  """
  env = compat.environment(jaxpr, inputs)
  read = lambda atom: atom.val if isinstance(atom, core.Literal) else env[atom]
  for position, equation in enumerate(jaxpr.eqns):
    with jax.named_scope(f"coopjax_position{position}"):
      inside = opened(equation, lambda place, position=position: f"{position}{place}")
      outputs = compat.bind(inside, [read(atom) for atom in equation.invars])
      for index, (var, out) in enumerate(zip(equation.outvars, outputs, strict=True)):
        if is_nameable(var):
          out = primitives.name_p.bind(out, name=f"{position}.{index}")
        env[var] = out
  return [read(atom) for atom in jaxpr.outvars]


class _GraphBuilder:
  def __init__(self, jaxpr: core.Jaxpr, shards: Shards):
    self._jaxpr, self._shards = jaxpr, shards
    self._num_shards = 1  # of the `shard_map`s around what is added, whose arrays are one device's
    self._ids: dict[core.Var, int] = {}
    self._bytes: list[int] = []
    self._root: list[int] = []
    self._position: list[int] = []
    self._named: list[Value | None] = []
    self._cheap_inputs: dict[int, tuple[int, ...]] = {}  # of values that XLA makes where they are read
    self._carried: dict[int, int] = {}
    self._maker: dict[int, core.JaxprEqn] = {}
    self._makers: dict[Value, core.JaxprEqn] = {}
    self._primal = set[int]()  # equations, by id

  def build(self, forward: core.Jaxpr, crossing: np.ndarray, cotangents: np.ndarray) -> ForwardGraph:
    self._primal = _primal_equations(forward, set())
    ops: list[list[ForwardOp]] = [[] for _ in self._jaxpr.eqns]
    position = 0
    for equation in forward.eqns:
      if found := _POSITION.search(compat.name_scopes(equation)):
        position = int(found[1])
      ops[position] += self._add_ops(equation, position)
    residuals = frozenset(
      self._ids[atom] for atom in forward.outvars if isinstance(atom, core.Var) and atom in self._ids
    )
    return ForwardGraph(
      ops=tuple(map(tuple, ops)),
      primitives=tuple(equation.primitive.name for equation in self._jaxpr.eqns),
      value_bytes=tuple(self._bytes),
      value_root=tuple(self._root),
      value_position=tuple(self._position),
      named=tuple(self._named),
      makers=self._makers,
      carried=self._carried,
      first_read=self._first_read(ops),
      residuals=residuals,
      kept_roots=self._kept_roots(residuals),
      crossing=crossing,
      cotangents=cotangents,
      flops=tuple(sum(op.flops for op in at) for at in ops),
    )

  def _add_ops(self, equation: core.JaxprEqn, position: int, steps: tuple[int, ...] = ()) -> list[ForwardOp]:
    """The ops of an equation, which the loops around it run so many times each."""
    if equation.primitive.name == "scan":
      return self._add_loop(equation, position, steps)
    if equation.primitive.name == "cond":
      return self._add_branches(equation, position, steps)
    if equation.primitive.name == "shard_map":
      return self._add_shards(equation, position, steps)
    if compat.is_plain_jit(equation):
      return self._add_call(equation, position, steps)
    return [self._add_op(equation, position, steps)]

  def _add_loop(self, equation: core.JaxprEqn, position: int, steps: tuple[int, ...]) -> list[ForwardOp]:
    (body,) = compat.sub_jaxprs(equation)
    carries, inside = compat.scan_carries(equation), (*steps, equation.params["length"])
    outer = dict(zip(body.invars, equation.invars, strict=True))
    self._bind(body.invars, equation.invars)
    ops = []
    for var in carries:
      inputs = self._known([outer[var]])
      ops.append(ForwardOp(inputs, (self._add_value(var, position, inside),), 0.0, 0))
    starts = [self._ids[var] for var in carries]
    for inner in body.eqns:
      ops += self._add_ops(inner, position, inside)
    for start, end in zip(starts, body.outvars[: len(carries)], strict=True):
      if known := self._known([end]):
        self._carried[start] = known[0]
    for i, (var, inner) in enumerate(zip(equation.outvars, body.outvars, strict=True)):
      if isinstance(var, core.DropVar):
        continue
      known = self._known([inner])
      if i >= len(carries) and known:
        self._ids[var] = known[0]  # stacked, as it is counted inside
      else:
        ops.append(ForwardOp(known, (self._add_value(var, position, steps),), 0.0, 0))
    return ops

  def _add_branches(self, equation: core.JaxprEqn, position: int, steps: tuple[int, ...]) -> list[ForwardOp]:
    """What comes out of one branch alone is its value; what of several, a value that is saved if each of them is."""
    ops, made = [], list[Sequence[Any]]()
    for body in compat.sub_jaxprs(equation):
      self._bind(body.invars, equation.invars[1:])
      for inner in body.eqns:
        ops += self._add_ops(inner, position, steps)
      made.append([self._ids.get(atom, -1) if isinstance(atom, core.Var) else -1 for atom in body.outvars])
    in_all = sum(op.flops for op in ops)
    share = self._flops(equation, steps) / in_all if in_all else 0.0
    ops = [dataclasses.replace(op, flops=op.flops * share) for op in ops]
    for var, sources in zip(equation.outvars, zip(*made, strict=True), strict=True):
      if isinstance(var, core.DropVar):
        continue
      known = tuple(dict.fromkeys(value for value in sources if value >= 0 and self._root[value] >= 0))
      if len(known) == 1 and self._bytes[known[0]] == self._num_bytes(var.aval, position, steps):
        self._ids[var] = known[0]
        continue
      names = [name for value in known if (name := self._named[value]) is not None]
      name = joined(names) if known and len(names) == len(known) and all(map(is_inside, names)) else None
      ops.append(ForwardOp(known, (self._add_value(var, position, steps, name),), 0.0, 0))
    return ops

  def _add_call(self, equation: core.JaxprEqn, position: int, steps: tuple[int, ...]) -> list[ForwardOp]:
    (body,) = compat.sub_jaxprs(equation)
    self._bind(body.invars, equation.invars)
    ops = [op for inner in body.eqns for op in self._add_ops(inner, position, steps)]
    for var, inner in zip(equation.outvars, body.outvars, strict=True):
      self._bind([var], [inner])
    return ops

  def _add_shards(self, equation: core.JaxprEqn, position: int, steps: tuple[int, ...]) -> list[ForwardOp]:
    """What all shards do; a value that leaves them cut as it is made is the one inside."""
    (body,) = compat.sub_jaxprs(equation)
    self._bind(body.invars, equation.invars)
    num_shards, self._num_shards = self._num_shards, self._num_shards * compat.num_shards(equation)
    ops = [op for inner in body.eqns for op in self._add_ops(inner, position, steps)]
    num_inside, self._num_shards = self._num_shards, num_shards
    ops = [dataclasses.replace(op, flops=op.flops * num_inside / num_shards) for op in ops]
    for var, inner in zip(equation.outvars, body.outvars, strict=True):
      if isinstance(var, core.DropVar):
        continue
      known = self._known([inner])
      if known and self._bytes[known[0]] == self._num_bytes(var.aval, position, steps):
        self._ids[var] = known[0]
      else:
        ops.append(ForwardOp(known, (self._add_value(var, position, steps),), 0.0, 0))
    return ops

  def _add_op(self, equation: core.JaxprEqn, position: int, steps: tuple[int, ...]) -> ForwardOp:
    inputs, outputs, made_bytes = self._known(equation.invars), [], 0
    is_view = equation.primitive.name in _VIEWS
    for index, var in enumerate(equation.outvars):
      if isinstance(var, core.DropVar):
        continue
      name = self._name_of(equation, position, index)
      if is_view:
        root = self._root[inputs[0]] if inputs else -1
        value = self._add(var, root, self._bytes[root] if root >= 0 else 0, position, name)
      else:
        value = self._add_value(var, position, steps, name)
        made_bytes += self._num_bytes(var.aval, position, ())
      outputs.append(value)
      self._maker[value] = equation
      if name is not None and inputs and inputs[0] in self._maker:
        self._makers[name] = self._maker[inputs[0]]
      if equation.primitive.name in _CHEAP and not steps:
        self._cheap_inputs[value] = inputs
    return ForwardOp(inputs, tuple(outputs), self._flops(equation, steps), made_bytes)

  def _flops(self, equation: core.JaxprEqn, steps: tuple[int, ...]) -> float:
    """Of all steps, on one device; on all devices together where the shards are not known. What a derivative's rule
    alone needs is not repeated: where all else is, the backward pass makes it in place of the forward pass.
    """
    if id(equation) not in self._primal:
      return 0.0
    return cost.equation_flops(equation) * math.prod(steps) / self._shards.of_work

  def _known(self, atoms: Iterable[Any]) -> tuple[int, ...]:
    """The values among atoms that are made inside the region."""
    return tuple(self._ids[atom] for atom in atoms if isinstance(atom, core.Var) and atom in self._ids)

  def _bind(self, inner: Sequence[core.Var], outer: Sequence[Any]) -> None:
    """What the inputs of a body stand for; JAX has one body for all calls that are alike."""
    for var, atom in zip(inner, outer, strict=True):
      known = self._known([atom])
      self._ids.pop(var, None)
      if known:
        self._ids[var] = known[0]

  def _num_bytes(self, aval: Any, position: int, steps: tuple[int, ...]) -> int:
    """Of all steps, on one device; on all devices together where the shards are not known."""
    if self._num_shards > 1:
      return cost.num_bytes(aval) * math.prod(steps) * (self._num_shards if self._shards is WHOLE else 1)
    if not steps or not isinstance(aval, jax.core.ShapedArray):
      return self._shards.num_bytes(aval, position) * math.prod(steps)
    return self._shards.num_bytes(jax.ShapeDtypeStruct((*steps, *aval.shape), aval.dtype), position)

  def _add_value(self, var: core.Var, position: int, steps: tuple[int, ...], name: Value | None = None) -> int:
    return self._add(var, len(self._bytes), self._num_bytes(var.aval, position, steps), position, name)

  def _add(self, var: core.Var, root: int, num_bytes: int, position: int, name: Value | None) -> int:
    """The id of a new value."""
    self._ids[var] = len(self._bytes)
    self._root.append(root)
    self._bytes.append(num_bytes)
    self._position.append(position)
    self._named.append(name)
    return self._ids[var]

  def _first_read(self, ops: Sequence[Sequence[ForwardOp]]) -> tuple[int, ...]:
    first = list(self._position)  # what nobody reads is there for a derivative rule of its own position
    for position in reversed(range(len(ops))):
      for op in ops[position]:
        for value in op.inputs:
          first[value] = position
    return tuple(first)

  def _name_of(self, equation: core.JaxprEqn, position: int, index: int) -> Value | None:
    """What a policy saves under an output of an equation of the differentiated pass."""
    if equation.primitive is not primitives.name_p:
      return None
    name = equation.params["name"]
    is_users = self._jaxpr.eqns[position].primitive is not primitives.name_p
    return _parse_name(name) or ((position, name) if is_users else None)

  def _kept_roots(self, residuals: frozenset[int]) -> frozenset[int]:
    """Residual buffers, each left out if a short chain of cheap ops makes it from those before it."""
    wanted = {self._source(self._root[value]) for value in residuals if self._root[value] >= 0}
    chain = {-1: 0}  # cheap ops between a root and the buffers it is made from
    kept = set()
    for root in sorted({root for root in self._root if root >= 0}):
      inputs = self._cheap_inputs.get(root)
      length = None
      if inputs is not None and all(self._root[value] in chain for value in inputs):
        length = 1 + max((chain[self._root[value]] for value in inputs), default=0)
      if length is not None and length <= _MAX_CHAIN:
        chain[root] = length
      elif root in wanted:
        chain[root] = 0
        kept.add(root)
    return frozenset(kept)

  def _source(self, root: int) -> int:
    """What XLA keeps for a residual that cheap ops make from one other buffer: that buffer, if it is no larger."""
    while root in self._cheap_inputs:
      sources = {self._root[value] for value in self._cheap_inputs[root]} - {-1}
      if len(sources) != 1 or self._bytes[min(sources)] > self._bytes[root]:
        break
      root = min(sources)
    return root


def _primal_equations(jaxpr: core.Jaxpr, wanted: set[core.Var]) -> set[int]:
  """Ids of the equations that make what has a name (`_evaluate_named`) or is `wanted`; what these read, comes to it."""
  found = set[int]()
  for equation in reversed(jaxpr.eqns):
    if equation.primitive is not primitives.name_p and wanted.isdisjoint(equation.outvars):
      continue
    found.add(id(equation))
    for body in compat.sub_jaxprs(equation):
      is_alike = len(body.outvars) == len(equation.outvars)
      results = zip(body.outvars, equation.outvars if is_alike else body.outvars, strict=True)
      made = {atom for atom, var in results if isinstance(atom, core.Var) and (var in wanted or not is_alike)}
      handed_on = dict(zip(compat.scan_carries(equation), body.outvars)) if equation.primitive.name == "scan" else {}
      while made:  # by this turn, or by the one before
        reached = set(made)
        found |= _primal_equations(body, reached)
        before = {out for var, out in handed_on.items() if var in reached and isinstance(out, core.Var)}
        if before <= made:
          break
        made |= before
    wanted.update(atom for atom in equation.invars if isinstance(atom, core.Var))
  return found


def _parse_name(name: str) -> Value | None:
  if (inside := parsed(name)) is not None:
    return inside
  position, _, index = name.partition(".")
  return (int(position), int(index)) if position.isdigit() and index.isdigit() else None


def _crossing(jaxpr: core.Jaxpr, is_differentiable: Sequence[bool], shards: Shards) -> tuple[np.ndarray, np.ndarray]:
  """`ForwardGraph.crossing`, and which of its rows are of values that have a cotangent."""
  differentiated = differentiated_in(jaxpr, is_differentiable)
  at: dict[core.Var, int] = {}
  last_read: dict[core.Var, int] = {}
  for position, equation in enumerate(jaxpr.eqns):
    last_read.update((atom, position) for atom in equation.invars if isinstance(atom, core.Var) and atom in at)
    at.update(dict.fromkeys(equation.outvars, position))
  rows = [(at[var], read, shards.num_bytes(var.aval, at[var])) for var, read in last_read.items()]
  return np.array(rows, np.int64).reshape(-1, 3), np.array([var in differentiated for var in last_read], bool)
