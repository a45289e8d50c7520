"""What lies on a device while a step runs whatever is recomputed: its arguments and results, and what makes them less.

The parts that arguments play show in the trace. What the gradient reads, and the step gives back, are parameters; what
it does not read, and is given back, is the optimizer's state. Bytes are one device's, of the arrays alone: what a
compiler pads, and the piece that is on its way from the host, come on top.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend import core

from coopjax import compat
from coopjax.budget import format_bytes
from coopjax.jaxpr.inline import inline_jits
from coopjax.memory_profile import MemoryProfile

type Role = Literal["parameter", "state", "other"]
SHOWN = 3  # arguments
_WORTH_TELLING = 0.01  # of what is there
_HOST = "pinned_host"


@dataclasses.dataclass(frozen=True)
class Argument:
  """An array that a step takes.

  Attributes:
    num_bytes: one device's, where it says how it is sharded.
    type: dtype and shape of that.
    path: in the step's arguments.
    role: what it is to the step.
    itemsize: bytes of an element.
    axes: of the mesh, that it is split over, with their sizes.
    whole_on: axes that it is not split over and could be, with their sizes.
    is_on_host: it lies in the host's memory.
  """

  num_bytes: int
  type: str
  path: str
  role: Role
  itemsize: int
  axes: tuple[tuple[str, int], ...] = ()
  whole_on: tuple[tuple[str, int], ...] = ()
  is_on_host: bool = False

  def entry(self) -> tuple[int, str, str]:
    """As errors list what is large."""
    return self.num_bytes, self.type, self.path


def roles_of(jaxpr: core.Jaxpr, is_backward: Callable[[core.JaxprEqn], bool]) -> tuple[Role, ...]:
  """The role of each input of a step."""
  jaxpr = inline_jits(jaxpr)
  read: set[Any] = set()
  for equation in reversed(jaxpr.eqns):
    if any(var in read for var in equation.outvars) or _is_of_gradient(equation, is_backward):
      read.update(atom for atom in equation.invars if isinstance(atom, core.Var))
  results = collections.Counter(str(atom.aval) for atom in jaxpr.outvars)
  roles: list[Role] = []
  for var in jaxpr.invars:
    aval: Any = var.aval
    is_kept = aval.shape and jnp.issubdtype(aval.dtype, jnp.inexact) and results[str(aval)] > 0
    results[str(aval)] -= bool(is_kept)
    roles.append(("parameter" if var in read else "state") if is_kept else "other")
  return tuple(roles)


def _is_of_gradient(equation: core.JaxprEqn, is_backward: Callable[[core.JaxprEqn], bool]) -> bool:
  inside = (each for jaxpr in compat.sub_jaxprs(equation) for each in jaxpr.eqns)
  is_forward = "jvp(" in compat.name_scopes(equation)
  return is_forward or is_backward(equation) or any(_is_of_gradient(each, is_backward) for each in inside)


def arguments_of(named: Iterable[tuple[str, Any]], roles: Sequence[Role] = ()) -> tuple[Argument, ...]:
  """The arrays among a program's arguments, the largest first; where they are not one for each role, none is known.

  Args:
    named: the arguments, or their types, each with its path.
    roles: of the arrays.
  """
  arrays = [(path, leaf) for path, leaf in named if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
  if len(arrays) != len(roles):
    roles = ("other",) * len(arrays)
  found = [_argument(path, leaf, role) for (path, leaf), role in zip(arrays, roles, strict=True)]
  return tuple(sorted(found, key=lambda argument: -argument.num_bytes))


def _argument(path: str, leaf: Any, role: Role) -> Argument:
  sharding = getattr(leaf, "sharding", None)
  shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
  split, whole = (), ()
  if isinstance(sharding, jax.sharding.NamedSharding):
    sizes = {axis: size for axis, size in sharding.mesh.shape.items() if size > 1}
    named = {axis for entry in sharding.spec if entry for axis in ((entry,) if isinstance(entry, str) else entry)}
    split = tuple((axis, size) for axis, size in sizes.items() if axis in named)
    whole = tuple(
      (axis, size) for axis, size in sizes.items() if axis not in named and any(dim % size == 0 for dim in shape)
    )
  return Argument(
    math.prod(shape) * leaf.dtype.itemsize,
    f"{leaf.dtype.name}{list(shape)}",
    path,
    role,
    leaf.dtype.itemsize,
    split,
    whole,
    getattr(sharding, "memory_kind", None) == _HOST,
  )


def told(
  arguments: Sequence[Argument],
  ways: Iterable[tuple[int, str]],
  left_bytes: int,
  missing_bytes: int,
  resident_bytes: int,
) -> list[str]:
  """Lines for an error: by how much arguments and results exceed a total, the largest, and what would make them less.

  Args:
    arguments: of the program.
    ways: from `ways_out`.
    left_bytes: of the budget for temporaries: none, or below zero.
    missing_bytes: of the budget for arguments, results and the least temporaries that are known.
    resident_bytes: arguments and results.
  """
  how_far = f"exceed it by {format_bytes(-left_bytes)}" if left_bytes else "take all of it"
  lines = [f"arguments and outputs alone {how_far}{'; the largest arguments are:' if arguments else ''}"]
  lines += [f"  {format_bytes(each.num_bytes):>10}  {each.type} {each.path}" for each in arguments[:SHOWN]]
  ways = [way for way in ways if way[0] >= _WORTH_TELLING * resident_bytes]
  if ways:
    lines.append(
      f"what would make them less, on each device ({format_bytes(missing_bytes)} are missing, with the least "
      "temporaries reached):"
    )
    lines += [
      f"  {format_bytes(gain):>10}  {what}{', which is enough' if gain >= missing_bytes else ''}" for gain, what in ways
    ]
  return lines


def ways_out(arguments: Sequence[Argument], profile: MemoryProfile, platform: str) -> Iterator[tuple[int, str]]:
  """What would leave less on a device: the bytes that each way gives by itself, and the way in words."""
  here = [argument for argument in arguments if not argument.is_on_host]
  parameters, state = ([each for each in here if each.role == role] for role in ("parameter", "state"))
  results_bytes = profile.output_bytes - profile.alias_bytes
  kept_bytes = _total(parameters) + _total(state)
  twice = 2 if results_bytes >= kept_bytes > 0 else 1  # not donated, so that a new one comes beside each
  if twice == 2:
    yield kept_bytes, "parameters and the optimizer's state donated (donate_argnums)"
  if platform != "cpu":  # whose memory is the host's
    yield twice * _total(state), "the optimizer's state in the host's memory (coopjax.offload_state)"
    yield (
      twice * _total(parameters),
      "parameters in pinned_host, brought in by jax.device_put(layer, jax.memory.Space.Device) where layers are read",
    )
  for role, what in ((state, "the optimizer's state"), (parameters, "parameters")):
    yield twice * sum(each.num_bytes // 2 for each in role if each.itemsize == 4), f"{what} in bfloat16 for float32"
  yield from _by_shards([*parameters, *state], twice)


def _by_shards(arguments: Sequence[Argument], twice: int) -> Iterator[tuple[int, str]]:
  axes = dict(axis for each in arguments for axis in (*each.axes, *each.whole_on))
  for name, size in axes.items():
    whole = (each.num_bytes - each.num_bytes // size for each in arguments if (name, size) in each.whole_on)
    yield twice * sum(whole), f"what is whole on axis {name!r} split over its {size} devices"
    split = (each.num_bytes // 2 for each in arguments if (name, size) in each.axes)
    yield twice * sum(split), f"{2 * size} devices on axis {name!r} in place of {size}"
  if not axes:
    yield twice * _total(arguments) // 2, "parameters and the optimizer's state split over two devices"


def _total(arguments: Iterable[Argument]) -> int:
  return sum(argument.num_bytes for argument in arguments)
