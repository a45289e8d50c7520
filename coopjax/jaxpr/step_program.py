"""A jaxpr as a StepProgram: what a step does, planned before anybody compiles it.

Nothing is allocated and nothing is compiled: trace with `jax.ShapeDtypeStruct`s. The bytes are those of the jaxpr's
values. They compare planners, on models far larger than the machine; what a compiled step will take is read off XLA's
scheduled HLO (`coopjax.xla.module`).

How equations become ops:

- Calls (nested jits, custom derivative rules, checkpoints) are opened up, at every depth; then dead code goes.
- An equation with several outputs is one op with several values. An output that nobody reads still takes its bytes
  while the op runs.
- A loop or a conditional is one op. Its workspace is the peak inside one iteration, or branch; its cost is that of its
  body times the length (a ``while``, whose length is unknown, counts as one iteration), or of its costliest branch.
- Equations that only pass a value on (`stop_gradient`, `name`, `copy`, barriers) are glue: readers read the source.
- JAX's random bits are a function of their key, so a dropout mask may be made twice. What may not: equations with
  effects, collectives, and `rng_uniform`, which has no key. Equations with effects also keep their order.

O(equations + uses), loops counted once.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.fusion import Op, fuse, is_elementwise
from coopjax.jaxpr.inline import inline_calls
from coopjax.program import liveness
from coopjax.program.cost import Roofline
from coopjax.program.step_program import CONSTANT, OUTPUT, PARAMETER, TEMPORARY, StepProgram, csr

# Pass values on, output by output.
_GLUE = frozenset("copy name optimization_barrier stop_gradient".split())
_OUTPUTS = "outputs"  # the op that reads them at the end
_TRANSPOSES = frozenset("rev transpose".split())
_RESHAPES = frozenset("expand_dims reshape squeeze".split())
_RESHAPES_OF_ONE = frozenset("broadcast_in_dim reduce_max reduce_min reduce_prod reduce_sum".split())
_NEVER_REPEATED = frozenset(
  "all_gather all_gather_invariant all_gather_reduced all_to_all pbroadcast pbroadcast_dynamic pgather pmax pmin "
  "ppermute precv psend psum psum_invariant ragged_all_to_all reduce_scatter rng_uniform unreduced_pmax unreduced_pmin "
  "unreduced_psum unreduced_reduce_scatter".split()
)


@dataclasses.dataclass(frozen=True)
class ProgramOptions:
  """How a jaxpr is accounted for.

  Attributes:
    roofline: the target that gives ops their modelled seconds; None: every op costs 1, as in FastSA's evaluation.
    outputs_take_budget: outputs are temporaries that a last op, of cost 0, reads: they count from where they are made
      until the end, and may be given up and made again. That is how FastSA counts gradients (section 2). Otherwise
      they have allocations of their own, outside the budget.
    fold_views: reshapes are glue, and so are broadcasts that only elementwise equations read, which no compiler and
      no eager framework ever stores. Otherwise each is an op with a value as large as its shape says.
    fold_transposes: transposes and reversals are glue too: views for an eager framework, and for XLA most of the time
      part of the product or convolution that reads them.
    fuse_elementwise: elementwise equations join what reads them (`fusion.fuse`).
    share_elementwise: the output of an elementwise op may take over the buffer of an input that it is the last to
      read, as XLA lets it; FastSA's graphs do not.
  """

  roofline: Roofline | None = None
  outputs_take_budget: bool = False
  fold_views: bool = True
  fold_transposes: bool = False
  fuse_elementwise: bool = False
  share_elementwise: bool = False


def step_program(
  closed: core.Jaxpr, options: ProgramOptions = ProgramOptions(), donations: Mapping[int, int] = MappingProxyType({})
) -> StepProgram:
  """The program of a jaxpr, in the jaxpr's order.

  Args:
    closed: of a step: ``jax.make_jaxpr(jax.value_and_grad(loss))(...)``, abstract arguments included. Its inputs become
      parameters, its attached arrays constants.
    options: how costs and bytes are counted.
    donations: by index of an output, the index of the input of the same size whose storage it takes (new weights,
      that of the old). Such outputs take no bytes. An input that is read after the output is made stays what it is.

  Returns:
    The program. `op_kinds` are primitives, `op_sources` the user's lines, `value_types` like "f32[8,128]".

  Example:
    >>> import jax, jax.numpy as jnp
    >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    >>> program = step_program(jax.make_jaxpr(lambda x: jnp.exp(jnp.sin(x)).sum())(x))
    >>> program.op_kinds
    ('sin', 'exp', 'reduce_sum')
  """
  num_constants = len(closed.constvars)
  jaxpr = compat.dce(inline_calls(compat.open_constants(closed)))
  reader = _Reader(jaxpr, options)
  return reader.program(num_constants, {output: num_constants + source for output, source in donations.items()})


def persistent_bytes(program: StepProgram) -> int:
  """Bytes of parameters and constants: alive throughout, outside the budget."""
  return int(program.value_bytes[np.isin(program.value_kind, (PARAMETER, CONSTANT))].sum())


class _Reader:
  """Reads a jaxpr equation by equation. Values are numbered as they come up."""

  def __init__(self, jaxpr: core.Jaxpr, options: ProgramOptions):
    self._jaxpr = jaxpr
    self._options = options
    self._ids: dict[core.Var, int | None] = {}  # None: stands for nothing, as a literal does
    self._avals: list = []
    self._ops: list[Op] = []
    self._last_effect: list[Op] = []
    self._dissolved = _dissolved_broadcasts(jaxpr) if options.fold_views else frozenset()
    for var in jaxpr.invars:
      self._add_value(var)
    for equation in jaxpr.eqns:
      if not self._pass_on(equation):
        self._add_op(equation)

  def program(self, num_constants: int, donations: Mapping[int, int]) -> StepProgram:
    """The program of what was read.

    Args:
      num_constants: leading inputs that are constants.
      donations: by index of an output, the index of the input that it overwrites.
    """
    num_inputs, options = len(self._jaxpr.invars), self._options
    results = [self._source(atom) for atom in self._jaxpr.outvars]
    kept = [value for value in dict.fromkeys(results) if value is not None and value >= num_inputs]
    num_bytes = np.array([cost.num_bytes(aval) for aval in self._avals], np.int64)
    ops = fuse(self._ops, num_bytes, {*range(num_inputs), *kept}) if options.fuse_elementwise else self._ops
    in_place = _overwritable(ops, {results[output]: source for output, source in donations.items()})
    read_last = [value for value in kept if value not in in_place] if options.outputs_take_budget else []
    if read_last:
      ops = [*ops, Op(_OUTPUTS, read_last, [], [], may_repeat=False)]
    value_kinds = np.full(len(self._avals), TEMPORARY, np.uint8)
    value_kinds[:num_inputs] = PARAMETER
    value_kinds[:num_constants] = CONSTANT
    value_kinds[list(in_place) if options.outputs_take_budget else kept] = OUTPUT
    return _assemble(ops, _Values(self._avals, num_bytes, value_kinds, in_place), options)

  def _pass_on(self, equation: core.JaxprEqn) -> bool:
    """Takes a glue equation's outputs for its inputs; False if it is none."""
    is_view = self._options.fold_views and _is_reshape(equation)
    is_view |= self._options.fold_transposes and equation.primitive.name in _TRANSPOSES
    is_literal = equation.primitive.name == "convert_element_type" and self._source(equation.invars[0]) is None
    is_dissolved = any(var in self._dissolved for var in equation.outvars)
    if not (_is_glue(equation) or is_view or is_literal or is_dissolved):
      return False
    for source, var in zip(equation.invars, equation.outvars, strict=True):
      self._ids[var] = self._source(source)
    return True

  def _add_op(self, equation: core.JaxprEqn) -> None:
    inputs = dict.fromkeys(self._source(atom) for atom in equation.invars)
    roofline, source = self._options.roofline, compat.source_line(equation)
    self._ops.append(
      Op(
        kind=equation.primitive.name,
        inputs=[value for value in inputs if value is not None],
        outputs=[self._add_value(var) for var in equation.outvars],
        control=self._last_effect if equation.effects else [],
        flops=cost.equation_flops(equation),
        arithmetic_s=cost.arithmetic_seconds(equation, roofline) if roofline else 0.0,
        workspace_bytes=self._workspace_bytes(equation),
        may_repeat=_may_repeat(equation),
        scope=compat.name_scopes(equation),
        source=f"{source.file}:{source.line}" if source else "",
      )
    )
    if equation.effects:
      self._last_effect = [self._ops[-1]]

  def _source(self, atom: core.Var | core.Literal) -> int | None:
    return self._ids[atom] if isinstance(atom, core.Var) else None

  def _add_value(self, var: core.Var) -> int:
    value = self._ids[var] = len(self._avals)
    self._avals.append(var.aval)
    return value

  def _workspace_bytes(self, equation: core.JaxprEqn) -> int:
    """The peak inside a loop or branch.

    A loop makes its results and its slices of the inputs anew in each iteration; a branch makes its results where the
    conditional's stand. Of a `shard_map`, that of all devices.
    """
    is_branch = equation.primitive.name == "cond"
    options = dataclasses.replace(self._options, roofline=None, outputs_take_budget=not is_branch)
    bodies = [_Reader(jaxpr, options).program(0, {}) for jaxpr in compat.sub_jaxprs(equation)]
    peaks = [int(liveness.live_bytes(body, body.schedule).max(initial=0)) for body in bodies]
    num_shards = compat.num_shards(equation) if equation.primitive.name == "shard_map" else 1
    return num_shards * max(peaks, default=0) + sum(cost.num_bytes(var.aval) for var in compat.scan_slices(equation))


@dataclasses.dataclass(frozen=True)
class _Values:
  """By value: type, bytes and kind; `in_place` gives the input that an output overwrites."""

  avals: list
  num_bytes: np.ndarray
  kinds: np.ndarray
  in_place: dict[int, int]


def _assemble(ops: Sequence[Op], values: _Values, options: ProgramOptions) -> StepProgram:
  """Numbers what is left of ops and values after fusion, and lays them out as arrays."""
  made = {value: op for op, each in enumerate(ops) for value in each.outputs}
  old = [value for value in range(len(values.avals)) if values.kinds[value] in (PARAMETER, CONSTANT) or value in made]
  new = {value: index for index, value in enumerate(old)}
  op_ids = {op: index for index, op in enumerate(ops)}
  in_place = np.full(len(old), -1, np.int32)
  for value, source in values.in_place.items():
    in_place[new[value]] = new[source]
  is_output = values.kinds == OUTPUT
  shares = [
    (op_ids[op], new[given], new[taker])
    for op in ops
    if options.share_elementwise
    for given, taker in _shareable(op, values)
  ]
  return StepProgram(
    op_inputs=csr([[new[value] for value in op.inputs] for op in ops]),
    op_outputs=csr([[new[value] for value in op.outputs] for op in ops]),
    op_control=csr([[op_ids[before] for before in op.control] for op in ops]),
    op_cost_s=np.array([_cost(op, values.num_bytes, options.roofline) for op in ops], np.float64),
    op_flops=np.array([op.flops for op in ops], np.float64),
    op_workspace_bytes=np.array([op.workspace_bytes for op in ops], np.int64),
    op_can_recompute=np.array([op.may_repeat and not is_output[op.outputs].any() for op in ops], bool),
    value_bytes=values.num_bytes[old],
    value_producer=np.array([made.get(value, -1) for value in old], np.int32),
    value_kind=values.kinds[old],
    value_in_place_of=in_place,
    may_share=np.array(shares, np.int32).reshape(-1, 3),
    schedule=np.arange(len(ops), dtype=np.int32),
    op_names=tuple(f"{op.kind}.{i}" for i, op in enumerate(ops)),
    op_kinds=tuple(op.kind for op in ops),
    op_scopes=tuple(op.scope for op in ops),
    op_sources=tuple(op.source for op in ops),
    value_types=tuple(compat.short_type(values.avals[value]) for value in old),
  )


def _overwritable(ops: Sequence[Op], donations: Mapping[int | None, int]) -> dict[int, int]:
  """Of the inputs given for outputs, those that nobody reads after the output is made."""
  made_at = {value: index for index, op in enumerate(ops) for value in op.outputs}
  last_read = {value: index for index, op in enumerate(ops) for value in op.inputs}
  return {
    output: source
    for output, source in donations.items()
    if output in made_at and last_read.get(source, -1) <= made_at[output]
  }


def _shareable(op: Op, values: _Values) -> list[tuple[int, int]]:
  """Pairs of temporaries, an input and the output, that could be one buffer."""
  if not is_elementwise(op.kind) or values.kinds[op.outputs[0]] != TEMPORARY:
    return []
  taker = op.outputs[0]
  return [
    (given, taker)
    for given in op.inputs
    if values.kinds[given] == TEMPORARY and values.num_bytes[given] == values.num_bytes[taker]
  ]


def _cost(op: Op, value_bytes: np.ndarray, roofline: Roofline | None) -> float:
  if op.kind == _OUTPUTS:
    return 0.0
  if roofline is None:
    return 1.0
  moved = cost.moved_bytes(op.kind, int(value_bytes[op.inputs].sum()), int(value_bytes[op.outputs].sum()))
  return roofline.seconds(op.arithmetic_s, moved)


def _may_repeat(equation: core.JaxprEqn) -> bool:
  if equation.effects or equation.primitive.name in _NEVER_REPEATED:
    return False
  return all(_may_repeat(inner) for jaxpr in compat.sub_jaxprs(equation) for inner in jaxpr.eqns)


def _is_glue(equation: core.JaxprEqn) -> bool:
  return equation.primitive.name in _GLUE


def _is_reshape(equation: core.JaxprEqn) -> bool:
  """The output is the input's buffer, differently indexed; over dimensions of size one, so are some sums."""
  name = equation.primitive.name
  if name in _RESHAPES_OF_ONE:
    return cost.num_elements(equation.outvars[0].aval) == cost.num_elements(equation.invars[0].aval)
  return name in _RESHAPES


def _dissolved_broadcasts(jaxpr: core.Jaxpr) -> frozenset[core.Var]:
  """Broadcasts that elementwise equations read, through views maybe, and nobody else."""
  stored = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
  found = set()
  for equation in reversed(jaxpr.eqns):
    is_stored = any(var in stored for var in equation.outvars)
    is_broadcast = equation.primitive.name == "broadcast_in_dim"
    if is_broadcast and not is_stored:
      found.update(equation.outvars)
    passes_on = is_broadcast or _is_glue(equation) or _is_reshape(equation)
    if is_stored if passes_on else not is_elementwise(equation.primitive.name):
      stored.update(atom for atom in equation.invars if isinstance(atom, core.Var))
  return frozenset(found)
