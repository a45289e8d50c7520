"""What decisions mean value by value, for people."""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import EquationInfo, tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Value
from coopjax.policy_engine.residuals import graph_of
from coopjax.policy_engine.save_curves import SavingRegion
from coopjax.policy_engine.shards import WHOLE, Shards
from coopjax.program.layers import LayersInTurn, layers_of_arguments

RESHAPES = ("name", "reshape", "squeeze", "expand_dims")  # one buffer, under another name or shape


@dataclasses.dataclass(frozen=True)
class ValueDecision:
  """What happens to one value between the forward and the backward pass.

  Attributes:
    equation_id: the equation that makes it.
    index: which of its outputs.
    type: "float32[8,128]".
    source: where the user wrote it, "model.py:12 (block)".
    num_bytes: that one device holds, in JAX's layout; of all steps for a value inside a scan.
    flops: of one device, to make it again from its inputs; of all steps.
    decision: "saved", "recomputed" or "offloaded".
    op: the primitive that makes it.
    scope: the user's name scopes and the primitive, "block_3/dot_general" for one.
    name: that the user gave it (`checkpoint_name`), or "".
    made_of_layer: the layer of the arguments that it is made from, or "".
  """

  equation_id: int
  index: int
  type: str
  source: str
  num_bytes: int
  flops: float
  decision: str
  op: str
  scope: str
  name: str
  made_of_layer: str


def describe(
  traced: TracedFn, decisions: PolicyDecisions, shards: Mapping[int | None, Shards] | None = None
) -> tuple[ValueDecision, ...]:
  """The decisions value by value, largest first: all values made by work that is repeated, or in loops may be.

  A value that is kept under a name of the user's is the one that bears it, with the op that makes it.

  Args:
    traced: the function.
    decisions: for it.
    shards: how devices share its values, from `shards_of`; without, they are taken to be whole on each.
  """
  _, table = tag_jaxpr(traced.inlined)
  layers = _layers(traced, table)
  at_top = {} if decisions.home or shards is None else shards  # in a `shard_map`, arrays are one device's
  found = []
  for region in decisions.regions:
    equations = equations_of(table, decisions, region)
    on_device = at_top.get(equations[0].parent_id, WHOLE)
    steps, parent_id = 1, equations[0].parent_id
    while parent_id is not None:
      steps *= table[parent_id].equation.params.get("length", 1)
      parent_id = table[parent_id].parent_id
    kept = {value: "saved" for leaf, _ in region.leaves for value in leaf.saved}
    kept |= {value: "offloaded" for leaf, _ in region.leaves for value in leaf.offloaded}
    bearers, names = _bearers(equations)
    kept = {bearers.get(value, value): how for value, how in kept.items()}
    repeated = _repeated(traced, decisions, region)
    for position in sorted({*repeated, *(position for position, _ in kept if position >= 0)}):
      info = equations[position]
      found += _value_decisions(info, position, steps, on_device, _kept_at(position, kept), names, layers[info.id])
    found += [
      _carry_decision(table[region.scan_id], int(index), steps, on_device) for position, index in kept if position < 0
    ]
  return tuple(sorted(found, key=lambda decision: -decision.num_bytes))


def layers_of_inputs(traced: TracedFn) -> list[str]:
  """The layer of each input of `traced.jaxpr`, as far as its name tells it; else ""."""
  return layers_of_arguments(traced.in_names, [str((aval.dtype, aval.shape)) for aval in traced.in_avals])


def equations_of(table: Sequence[EquationInfo], decisions: PolicyDecisions, region: Region) -> Sequence[EquationInfo]:
  """Of one region of the decisions, by position; `table` is of the whole function, from `tag_jaxpr`."""
  first_id = decisions.home if region.equation_id is None else region.equation_id + 1
  beside = (info for info in table[first_id:] if info.parent_id == table[first_id].parent_id)
  return list(itertools.islice(beside, region.segments[-1].stop))


def _repeated(traced: TracedFn, decisions: PolicyDecisions, region: Region) -> set[int]:
  """Positions in a region that the backward pass runs again; inside of loops and calls, or deeper, all that it may."""
  within = [leaf for leaf, is_repeated in region.leaves if is_repeated]
  is_inside = region.equation_id is not None or bool(decisions.home)
  if is_inside or any(segment.inner for segment in region.segments):
    return {position for leaf in within for position in range(leaf.start, leaf.stop)}
  graph = graph_of(traced)
  found = set[int]()
  for leaf in within:
    found |= SavingRegion(graph, leaf.start, leaf.stop).repeated_at((*leaf.saved, *leaf.offloaded))
  return found


def _bearers(equations: Sequence[EquationInfo]) -> tuple[dict[Value, Value], dict[Any, str]]:
  """From results of `checkpoint_name` to the values that are named, behind changes of shape; and names by variable."""
  made = {
    var: (position, index) for position, info in enumerate(equations) for index, var in enumerate(info.equation.outvars)
  }
  bearers: dict[Value, Value] = {}
  names: dict[Any, str] = {}
  for position, info in enumerate(equations):
    var = info.equation.invars[0] if info.primitive == "name" else None
    while var in made:
      at = bearers[position, 0] = made[var]
      names[var] = info.equation.params["name"]
      maker = equations[at[0]]
      var = maker.equation.invars[0] if maker.primitive in RESHAPES else None
  return bearers, names


def _kept_at(position: int, kept: dict[Value, str]) -> collections.defaultdict[int, str]:
  """What happens to outputs of an equation; all go the way of what is named inside."""
  at = {index: how for (p, index), how in kept.items() if p == position}
  inside = next((how for index, how in at.items() if isinstance(index, str)), None)
  return collections.defaultdict(
    lambda: inside or "recomputed", {i: how for i, how in at.items() if isinstance(i, int)}
  )


def _value_decisions(
  info: EquationInfo,
  position: int,
  steps: int,
  on_device: Shards,
  kept: collections.defaultdict[int, str],
  names: dict[Any, str],
  layer: str,
) -> list[ValueDecision]:
  flops = cost.equation_flops(info.equation)
  return [
    ValueDecision(
      info.id,
      index,
      var.aval.str_short(),
      _source(info),
      steps * on_device.num_bytes(var.aval, position),
      steps * flops / on_device.of_work,
      kept[index],
      info.primitive,
      _scope(info),
      names.get(var, ""),
      layer,
    )
    for index, var in enumerate(info.equation.outvars)
    if (flops or index in kept) and not isinstance(var, core.DropVar)
  ]


def _carry_decision(scan: EquationInfo, index: int, steps: int, on_device: Shards) -> ValueDecision:
  """Of what is carried into each step; `index` counts inputs of the body, the outputs of a scan begin with carries."""
  (body,) = compat.sub_jaxprs(scan.equation)
  var = body.invars[index]
  return ValueDecision(
    scan.id,
    list(compat.scan_carries(scan.equation)).index(var),
    var.aval.str_short(),
    _source(scan),
    steps * on_device.num_bytes(var.aval, -1),
    0.0,
    "offloaded",
    scan.primitive,
    _scope(scan),
    "",
    "",
  )


def _layers(traced: TracedFn, table: Sequence[EquationInfo]) -> list[str]:
  """Per equation of the table, the layer of the arguments that it is made from, or ""."""
  in_turn = LayersInTurn(dict(zip(traced.inlined.invars, layers_of_inputs(traced), strict=True)))
  layers = []
  for info in table:  # parents first, and what a body holds behind its equation
    inputs, equation = [var for var in info.equation.invars if isinstance(var, core.Var)], info.equation
    layers.append(in_turn.tell(inputs, equation.outvars))
    for body in compat.sub_jaxprs(equation):
      if len(body.invars) == len(equation.invars):
        pairs = zip(body.invars, equation.invars, strict=True)
        in_turn.enter((inside, outside) for inside, outside in pairs if isinstance(outside, core.Var))
  return layers


def _scope(info: EquationInfo) -> str:
  return f"{compat.name_scopes(info.equation)}/{info.primitive}".removeprefix("/")


def _source(info: EquationInfo) -> str:
  return "" if info.source is None else f"{info.source.file}:{info.source.line} ({info.source.function})"
