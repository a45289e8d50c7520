"""FLOPs and seconds of jaxpr equations: what recomputing one costs.

The unit of FLOPs is a floating-point operation that the machine can't hide behind memory traffic. Elementwise work is
counted per output element, because XLA fuses its recompute into whatever reads it, a transcendental for eight, as
``xla_pass/bridge/cost.h`` does; data movement that fuses away counts nothing, and bytes between devices count as what a
device would compute while they are on the link. Only ratios matter to the planner; reports show the sum as FLOPs.

Everywhere the same way: a count is that of all devices together. Arrays outside of a `shard_map` are whole, so their
ops are the work of all devices; the body of a `shard_map`, whose arrays are one device's, counts as often as there are
devices that do different work. Inside a function that itself stands in a `shard_map`, all is one device's.
`op_work` knows what one op does, `bodies` what stands inside of one. `device_flops` counts what one device does of all.
"""

import collections
from collections.abc import Callable

from jax.extend import core

from coopjax import _core, compat
from coopjax.jaxpr import op_work
from coopjax.jaxpr.bodies import bodies_of
from coopjax.program.cost import FLOPS_PER_LINK_BYTE, Roofline

_LOOKUPS = frozenset("dynamic_slice gather slice".split())

num_elements, num_bytes = op_work.num_elements, op_work.num_bytes


def equation_flops(equation: core.JaxprEqn, flops_per_link_byte: float = FLOPS_PER_LINK_BYTE) -> float:
  """FLOPs of one equation; loops are counted with their length, branches by the costliest.

  Args:
    equation: any equation.
    flops_per_link_byte: what a device computes while it sends a byte to another (`Roofline.flops_per_link_byte`).
  """
  inside = bodies_of(equation)
  if inside.jaxprs:
    return inside.total([jaxpr_flops(jaxpr, flops_per_link_byte) for jaxpr in inside.jaxprs])
  work = op_work.own_work(equation)
  return work.flops + _core.TRANSCENDENTAL_FLOPS * work.transcendentals + flops_per_link_byte * work.link_bytes


def jaxpr_flops(jaxpr: core.Jaxpr, flops_per_link_byte: float = FLOPS_PER_LINK_BYTE) -> float:
  """FLOPs of one evaluation of a jaxpr, as `equation_flops` counts."""
  return sum(equation_flops(equation, flops_per_link_byte) for equation in jaxpr.eqns)


def device_flops[Place](
  jaxpr: core.Jaxpr, place_of: Callable[[str], Place | None], num_parts: int = 1, around: Place | None = None
) -> dict[Place | None, float]:
  """FLOPs of one evaluation on one device, by what an equation's name scopes, or those of one around it, say.

  Args:
    jaxpr: counted as it stands: `compat.dce` drops what nothing reads.
    place_of: from name scopes to a place; None where they tell of none.
    num_parts: that work on whole arrays is cut into.
    around: the place that the jaxpr stands in.
  """
  flops = collections.defaultdict[Place | None, float](float)
  for equation in jaxpr.eqns:
    place = place_of(compat.name_scopes(equation)) if around is None else around
    inside = bodies_of(equation)
    if not inside.jaxprs:
      flops[place] += equation_flops(equation) / num_parts
      continue
    parts_inside = num_parts
    if equation.primitive.name == "shard_map":  # of which each device has its own part already
      inside, parts_inside = inside._replace(times=1), max(num_parts // compat.num_manual_devices(equation), 1)
    each = [device_flops(body, place_of, parts_inside, place) for body in inside.jaxprs]
    for key in set().union(*each):
      flops[key] += inside.total([counted.get(key, 0.0) for counted in each])
  return flops


def arithmetic_seconds(equation: core.JaxprEqn, roofline: Roofline) -> float:
  """Modelled seconds of one equation if memory were infinitely fast; of loops and branches, those of what is inside."""
  inside = bodies_of(equation)
  if inside.jaxprs:
    return inside.total([sum(equation_seconds(each, roofline) for each in jaxpr.eqns) for jaxpr in inside.jaxprs])
  work = op_work.own_work(equation)
  return roofline.arithmetic_seconds(work.flops, work.transcendentals) + work.link_bytes / roofline.link_bytes_per_s


def equation_seconds(equation: core.JaxprEqn, roofline: Roofline) -> float:
  """Modelled seconds of one equation; loops are counted with their length, branches by the costliest."""
  inputs = {id(atom): num_bytes(atom.aval) for atom in equation.invars}
  outputs = sum(num_bytes(var.aval) for var in equation.outvars)
  moved = moved_bytes(equation.primitive.name, sum(inputs.values()), outputs)
  return roofline.seconds(arithmetic_seconds(equation, roofline), moved)


def fused_seconds(equation: core.JaxprEqn, roofline: Roofline) -> float:
  """The least seconds that an equation takes: its arithmetic and, where it reduces or moves, its memory traffic.

  XLA fuses elementwise work into what reads it, where it moves no bytes of its own.
  """
  inside = bodies_of(equation)
  if inside.jaxprs:
    return inside.total([sum(fused_seconds(each, roofline) for each in jaxpr.eqns) for jaxpr in inside.jaxprs])
  arithmetic_s = arithmetic_seconds(equation, roofline)
  if op_work.is_fused(equation):
    return arithmetic_s
  return max(arithmetic_s, equation_seconds(equation, roofline) - roofline.op_overhead_s)


def moved_bytes(name: str, input_bytes: int, output_bytes: int) -> int:
  """Bytes that a primitive reads and writes: of a table it reads what it looks up."""
  return output_bytes + (min(input_bytes, output_bytes) if name in _LOOKUPS else input_bytes)
