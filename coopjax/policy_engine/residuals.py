"""What the backward pass keeps of a region: its forward graph, with residuals, as JAX differentiates it.

A region is the top of a jaxpr or the body of a scan; a position is an index into its equations. The graph is read off
the jaxpr of ``jax.vjp``, whose outputs are exactly the residuals, so custom derivative rules, nested loops and
existing checkpoints are seen as they are. Every output of every equation is named on the way, which tells the value
that a policy can save (after the name) from the one a derivative rule holds on to (before it): saving the output of
``tanh`` by name does not spare recomputing it, because the rule of ``tanh`` reads its own result.

Sizes are JAX's, less what XLA certainly fuses away; the planner scales by what it has measured.
"""

import dataclasses
import re
from collections.abc import Sequence

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import primitives

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import is_floating
from coopjax.jaxpr.user_policy import is_nameable
from coopjax.policy_engine.decisions import Value
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


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardOp:
  """One equation of the differentiated forward pass.

  Attributes:
    inputs: ids of values made inside the region.
    outputs: ids of values.
    flops: cost of running it again.
  """

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  flops: float


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardGraph:
  """The forward pass of a region, differentiated.

  Attributes:
    ops: per position, the ops that its equation became, in order.
    value_bytes: per value id; a view has the id of its own and the bytes of what it views.
    value_root: per value id, the value whose buffer it is, -1 for a view of an input or a constant.
    value_position: per value id, the position that made it.
    named: per value id, the value that a policy saves under this id; None for all others.
    residuals: ids of the values made here that the backward pass reads.
    kept_roots: the residuals' buffers, without those that a fused, cheap op makes from others of them.
    crossing: ``(position that makes it, last position that reads it, bytes)`` of every value read by another
      position; the region's outputs are not counted, they exist anyway.
    flops: per position.
  """

  ops: tuple[tuple[ForwardOp, ...], ...]
  value_bytes: tuple[int, ...]
  value_root: tuple[int, ...]
  value_position: tuple[int, ...]
  named: tuple[Value | None, ...]
  residuals: frozenset[int]
  kept_roots: frozenset[int]
  crossing: tuple[tuple[int, int, int], ...]
  flops: tuple[float, ...]

  @property
  def num_positions(self) -> int:
    return len(self.ops)

  def name_of(self, value: int) -> Value:
    """What a policy saves under the id of a value that has a name."""
    name = self.named[value]
    assert name is not None, f"a policy can't save value {value}, which has no name"
    return name

  def residual_bytes(self) -> np.ndarray:
    """Bytes of residual buffers by the position that makes them."""
    per_position = np.zeros(self.num_positions, np.int64)
    for root in self.kept_roots:
      per_position[self.value_position[root]] += self.value_bytes[root]
    return per_position

  def crossed_bytes(self) -> np.ndarray:
    """Bytes that are made before each boundary between positions and read behind it, int64 ``[num_positions + 1]``."""
    crossed = np.zeros(self.num_positions + 1, np.int64)
    for made, read, num_bytes in self.crossing:
      crossed[made + 1] += num_bytes
      crossed[read + 1] -= num_bytes  # a cut at `read` is still crossed, one behind it is not
    return np.cumsum(crossed)

  def signature(self, start: int, stop: int) -> tuple:
    """Equal for segments that are the same up to a shift: their save curves are, too."""
    ops = [op for position in range(start, stop) for op in self.ops[position]]
    values = [value for op in ops for value in op.outputs]
    local = {value: i for i, value in enumerate(values)}
    return (
      tuple((op.flops, tuple(local.get(value, -1) for value in op.inputs), len(op.outputs)) for op in ops),
      tuple(
        (
          self.value_bytes[value],
          local.get(self.value_root[value], -1),
          value in self.residuals,
          value in self.kept_roots,
          None if (name := self.named[value]) is None else (name[0] - start, name[1]),
        )
        for value in values
      ),
    )


def forward_graph(jaxpr: core.Jaxpr, is_differentiable: Sequence[bool], shards: Shards = WHOLE) -> ForwardGraph:
  """Differentiates a region and reads off its forward graph.

  Args:
    jaxpr: the region; no attached constants.
    is_differentiable: per input, whether a gradient is taken.
    shards: how devices share its values.
  """
  forward = _differentiated(jaxpr, is_differentiable)
  return _GraphBuilder(jaxpr, shards).build(forward)


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
  """Evaluates a jaxpr with its position as a name scope around, and a name on each output of, every equation."""
  env = compat.environment(jaxpr, inputs)
  read = lambda atom: atom.val if isinstance(atom, core.Literal) else env[atom]
  for position, equation in enumerate(jaxpr.eqns):
    with jax.named_scope(f"coopjax_position{position}"):
      outputs = compat.bind(equation, [read(atom) for atom in equation.invars])
      for index, (var, out) in enumerate(zip(equation.outvars, outputs, strict=True)):
        if is_nameable(var):
          out = primitives.name_p.bind(out, name=f"{position}.{index}")
        env[var] = out
  return [read(atom) for atom in jaxpr.outvars]


class _GraphBuilder:
  def __init__(self, jaxpr: core.Jaxpr, shards: Shards):
    self._jaxpr, self._shards = jaxpr, shards
    self._ids: dict[core.Var, int] = {}
    self._bytes: list[int] = []
    self._root: list[int] = []
    self._position: list[int] = []
    self._named: list[Value | None] = []
    self._cheap_inputs: dict[int, tuple[int, ...]] = {}  # of values that XLA makes where they are read

  def build(self, forward: core.Jaxpr) -> ForwardGraph:
    ops: list[list[ForwardOp]] = [[] for _ in self._jaxpr.eqns]
    position = 0
    for equation in forward.eqns:
      if found := _POSITION.search(compat.name_scopes(equation)):
        position = int(found[1])
      ops[position].append(self._add_op(equation, position))
    residuals = frozenset(
      self._ids[atom] for atom in forward.outvars if isinstance(atom, core.Var) and atom in self._ids
    )
    return ForwardGraph(
      ops=tuple(map(tuple, ops)),
      value_bytes=tuple(self._bytes),
      value_root=tuple(self._root),
      value_position=tuple(self._position),
      named=tuple(self._named),
      residuals=residuals,
      kept_roots=self._kept_roots(residuals),
      crossing=_crossing(self._jaxpr, self._shards),
      flops=tuple(sum(op.flops for op in at) for at in ops),
    )

  def _add_op(self, equation: core.JaxprEqn, position: int) -> ForwardOp:
    inputs = tuple(self._ids[atom] for atom in equation.invars if isinstance(atom, core.Var) and atom in self._ids)
    outputs = []
    for index, var in enumerate(equation.outvars):
      if isinstance(var, core.DropVar):
        continue
      self._ids[var] = len(self._bytes)
      outputs.append(self._ids[var])
      is_view = equation.primitive.name in _VIEWS
      root = (self._root[inputs[0]] if inputs else -1) if is_view else self._ids[var]
      self._root.append(root)
      own = 0 if is_view else self._shards.num_bytes(var.aval, position)
      self._bytes.append(self._bytes[root] if is_view and root >= 0 else own)
      self._position.append(position)
      self._named.append(self._name_of(equation, position, index))
      if equation.primitive.name in _CHEAP:
        self._cheap_inputs[self._ids[var]] = inputs
    return ForwardOp(inputs, tuple(outputs), cost.equation_flops(equation))

  def _name_of(self, equation: core.JaxprEqn, position: int, index: int) -> Value | None:
    """What a policy saves under an output of an equation of the differentiated pass."""
    if equation.primitive is primitives.name_p:
      name = equation.params["name"]
      is_users = self._jaxpr.eqns[position].primitive is not primitives.name_p
      return _parse_name(name) or ((position, name) if is_users else None)
    if equation.primitive.name != "shard_map":
      return None
    # What leaves a shard under a name of the user's is saved by it, as outside.
    (body,) = compat.sub_jaxprs(equation)
    for inner in body.eqns:
      if inner.primitive is primitives.name_p and inner.outvars[0] is body.outvars[index]:
        return (position, inner.params["name"])
    return None

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


def _parse_name(name: str) -> Value | None:
  position, _, index = name.partition(".")
  return (int(position), int(index)) if position.isdigit() and index.isdigit() else None


def _crossing(jaxpr: core.Jaxpr, shards: Shards) -> tuple[tuple[int, int, int], ...]:
  at = {var: position for position, equation in enumerate(jaxpr.eqns) for var in equation.outvars}
  last_read: dict[core.Var, int] = {}
  for position, equation in enumerate(jaxpr.eqns):
    last_read.update({atom: position for atom in equation.invars if isinstance(atom, core.Var) and atom in at})
  return tuple(
    (at[var], read, shards.num_bytes(var.aval, at[var])) for var, read in last_read.items() if read > at[var]
  )
