"""FLOPs and seconds of jaxpr equations: what recomputing one costs.

The unit of FLOPs is a floating-point operation that the machine can't hide behind memory traffic. Elementwise work is
counted per output element, because XLA fuses its recompute into whatever reads it; data movement that fuses away
counts nothing, and bytes between devices count as what a device would compute while they are on the link. Only ratios
matter to the planner; reports show the sum as FLOPs.

Everywhere the same way: a count is that of all devices together. Arrays outside of a `shard_map` are whole, so their
ops are the work of all devices; the body of a `shard_map`, whose arrays are one device's, counts as often as there are
devices that do different work. Inside a function that itself stands in a `shard_map`, all is one device's.
`op_work` knows what one op does, `bodies` what stands inside of one.
"""

from jax.extend import core

from coopjax.jaxpr import op_work
from coopjax.jaxpr.bodies import bodies_of
from coopjax.program.cost import FLOPS_PER_LINK_BYTE, Roofline

_TRANSCENDENTAL_FLOPS = 8.0
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
  return work.flops + _TRANSCENDENTAL_FLOPS * work.transcendentals + flops_per_link_byte * work.link_bytes


def jaxpr_flops(jaxpr: core.Jaxpr, flops_per_link_byte: float = FLOPS_PER_LINK_BYTE) -> float:
  """FLOPs of one evaluation of a jaxpr, as `equation_flops` counts."""
  return sum(equation_flops(equation, flops_per_link_byte) for equation in jaxpr.eqns)


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
