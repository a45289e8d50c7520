"""The layer of what no name scope tells it of: by the arguments that it is made from.

Flax Linen opens a scope for every module; Equinox, NNX and plain functions open none, but the paths of their
parameters have the layer's number ("net.blocks[3].up.weight"). An op belongs to the layer of the parameters that it
reads. One that reads none belongs to a layer of its operands: in the forward pass to the last of them, in the backward
pass, which goes the other way, to the first.
"""

import re
from collections.abc import Sequence

from coopjax.program.step_program import PARAMETER, StepProgram

_LAYER = re.compile(r".*?\d+['\"]?\]?")
_BACKWARD = "transpose("


def layer_of_argument(path: str) -> str:
  """An argument's path down to its first number, "net.blocks[3]" for one; "" where it has none."""
  match = _LAYER.match(path)
  return match[0] if match else ""


def layers_of_ops(program: StepProgram, arguments: Sequence[str]) -> list[str]:
  """The layer of each op, "" where it can't be told.

  Args:
    program: of an entry computation.
    arguments: paths of its parameters, in the program's order.
  """
  layers, values = [""] * program.num_ops, [""] * len(program.value_kind)
  parameters = [value for value, kind in enumerate(program.value_kind) if kind == PARAMETER]
  given = [value for value in parameters if program.value_producer[value] < 0]
  if len(given) != len(arguments):  # tuples among them: which is which is not known
    return layers
  for value, path in zip(given, arguments, strict=True):
    values[value] = layer_of_argument(path)
  order: dict[str, int] = {}
  for op in map(int, program.schedule):
    inputs = [int(value) for value in program.inputs(op)]
    read = {values[value] for value in inputs if program.value_producer[value] < 0 and values[value]}
    found = sorted(
      read or {values[value] for value in inputs if values[value]},
      key=lambda layer: order.setdefault(layer, len(order)),
    )
    if found:
      layers[op] = found[0] if _BACKWARD in program.op_scopes[op] else found[-1]
      for value in program.outputs(op):
        values[value] = layers[op]
  return layers
