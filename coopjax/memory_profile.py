"""Memory of one compiled program: totals, and every buffer with where it comes from."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np

from coopjax import display
from coopjax.budget import format_bytes
from coopjax.program.scopes import layer_of, user_scopes

_SHOWN = 20  # buffers in a notebook
_HTML_COLUMNS = ("bytes", "kind", "type", "live", "line", "scope", "buffer")
KINDS = ("parameter", "constant", "output", "residual", "temporary")


@dataclasses.dataclass(frozen=True)
class Buffer:
  """A value that has memory.

  Attributes:
    name: the HLO instruction that makes it, and which element of its result: ``"fusion.3"``, ``"while.1[2]"``.
    type: dtype and shape, ``"f32[8,128]"``.
    num_bytes: size, padding included.
    padding_bytes: of it, what the layout adds (tiles and alignment of the backend).
    kind: "parameter", "constant", "output", "residual" (made in the forward pass, last read in the backward pass) or
      "temporary".
    memory: what the allocation that it lies in is for: "parameter", "constant", "output" or "temporary". A temporary
      value may lie in an output's memory that is not used yet; only what lies in "temporary" counts as such.
    allocation: number of the allocation that it lies in.
    offset: where it starts there, in bytes.
    memory_space: 0 the device's main memory; others by backend (1 VMEM on a TPU, 5 the host).
    start: first step at which it is live; -1 where the dump does not say.
    end: first step at which it no longer is.
    op: HLO opcode.
    scope: name-scope path, as in HLO metadata.
    source: ``file:line`` of the innermost frame outside of installed packages, or "".
    frames: all frames, the innermost first, packages' ones included (JAX's own are left out): "train.py:12 (block)".
    made_of_layer: the layer of the arguments that it is made from, "net.blocks[3]" for one, or "".
    cost_s: modelled seconds to make it again where it is read last, with all that has to come back first; nan where it
      can't be.
    cost_rank: 0 for the cheapest byte to bring back, by ``cost_s / num_bytes``; -1 where it can't be.
  """

  name: str
  type: str
  num_bytes: int
  padding_bytes: int = 0
  kind: str = "temporary"
  memory: str = "temporary"
  allocation: int = -1
  offset: int = 0
  memory_space: int = 0
  start: int = -1
  end: int = -1
  op: str = ""
  scope: str = ""
  source: str = ""
  frames: tuple[str, ...] = ()
  made_of_layer: str = ""
  cost_s: float = float("nan")
  cost_rank: int = -1

  @property
  def dtype(self) -> str:
    """Of its elements, "f32" for one."""
    return self.type.partition("[")[0]

  @property
  def module_path(self) -> str:
    """The scopes that the user opened (in Flax, the modules' names) without JAX's own and the primitive's."""
    return "/".join(user_scopes(self.scope))

  @property
  def is_argument(self) -> bool:
    """It is a parameter of the program, not one of a loop's body."""
    return self.op == "parameter" and self.memory != "temporary"

  @property
  def argument(self) -> str:
    """What it is in the user's arguments, "params['dense']['kernel']" for one; "" for what is none of them."""
    return self.scope if self.is_argument else ""

  @property
  def layer(self) -> str:
    """The module path down to its first numbered part, "encoder/block_3" for one; or the layer of its arguments."""
    return layer_of(self.scope, self.made_of_layer)


@dataclasses.dataclass(frozen=True)
class Group:
  """Buffers that have something in common.

  Attributes:
    key: what that is.
    num_bytes: of all of them.
    num_buffers: how many.
    largest: the largest.
  """

  key: str
  num_bytes: int
  num_buffers: int
  largest: Buffer


GROUP_KEYS: dict[str, Callable[[Buffer], str]] = {
  "line": lambda buffer: buffer.source or "(no source line)",
  "frames": lambda buffer: " < ".join(buffer.frames) or "(no source line)",
  "scope": lambda buffer: buffer.module_path or "(no scope)",
  "layer": lambda buffer: buffer.layer or "(no scope)",
  "op": lambda buffer: buffer.op or "(unknown)",
  "dtype": lambda buffer: buffer.dtype,
  "kind": lambda buffer: buffer.kind,
  "argument": lambda buffer: buffer.argument or "(no argument)",
}


@dataclasses.dataclass(frozen=True)
class MemoryProfile:
  """Memory of one program on one device, in bytes.

  Attributes:
    temp_bytes: temporaries: residuals, workspace and fragmentation (``temp_size_in_bytes``).
    argument_bytes: arguments.
    output_bytes: outputs.
    alias_bytes: output bytes that live in donated arguments.
    peak_live_bytes: most temporary bytes live at one step, before packing; 0 where live ranges are not known.
    live_bytes: live temporary bytes at each step of the schedule.
    host_bytes: temporaries in the host's memory: what is offloaded (``host_temp_size_in_bytes``).
    name: of the program.
    buffers: every value that has memory; filled by :func:`coopjax.inspect`.
    is_predicted: the bytes are this project's model of XLA's buffer assignment, because the input holds none.
    modelled_s: seconds of one run, modelled: what the instructions take on the hardware compiled for, one after the
      other; 0 where the program can't be read.
    flops: floating-point operations of one run; 0 where the program can't be read.

  Example:
    >>> import jax, jax.numpy as jnp, coopjax
    >>> compiled = jax.jit(lambda x: jnp.sort(x @ x).sum()).lower(jnp.ones((64, 64))).compile()
    >>> profile = coopjax.inspect(compiled)
    >>> profile.temp_bytes == compiled.memory_analysis().temp_size_in_bytes
    True
    >>> [buffer.type for buffer in profile.at_peak()[:1]]
    ['f32[64,64]']
  """

  temp_bytes: int
  argument_bytes: int = 0
  output_bytes: int = 0
  alias_bytes: int = 0
  peak_live_bytes: int = 0
  live_bytes: tuple[int, ...] = dataclasses.field(default=(), repr=False)
  host_bytes: int = 0
  name: str = ""
  buffers: tuple[Buffer, ...] = dataclasses.field(default=(), repr=False)
  is_predicted: bool = False
  modelled_s: float = 0.0
  flops: float = 0.0

  @property
  def resident_bytes(self) -> int:
    """Arguments + outputs - aliased: what is there before and after the step."""
    return self.argument_bytes + self.output_bytes - self.alias_bytes

  @property
  def total_bytes(self) -> int:
    """Arguments + outputs + temporaries - aliased."""
    return self.resident_bytes + self.temp_bytes

  @property
  def fragmentation(self) -> float:
    """``(heap size - peak live) / heap size`` of the temporaries; negative where XLA reuses output buffers."""
    return (
      (self.temp_bytes - self.peak_live_bytes) / self.temp_bytes if self.temp_bytes and self.peak_live_bytes else 0.0
    )

  @property
  def peak_step(self) -> int:
    """The first step with the most live temporary bytes; -1 where the steps are not known."""
    return int(np.argmax(self.live_bytes)) if self.live_bytes else -1

  def at_peak(self) -> list[Buffer]:
    """The temporaries that are live at the peak, largest first; all of them where live ranges are not known."""
    peak = self.peak_step
    return self.largest(
      [buffer for buffer in self.temporaries if peak < 0 or buffer.start < 0 or buffer.start <= peak < buffer.end]
    )

  @property
  def arguments(self) -> tuple[Buffer, ...]:
    """What the program is called with, largest first."""
    return tuple(self.largest([buffer for buffer in self.buffers if buffer.argument]))

  @functools.cached_property
  def temporaries(self) -> tuple[Buffer, ...]:
    """What lies in temporary memory, the device's main one."""
    return tuple(buffer for buffer in self.buffers if buffer.memory == "temporary" and not buffer.memory_space)

  @staticmethod
  def largest(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The buffers, largest first."""
    return sorted(buffers, key=lambda buffer: (-buffer.num_bytes, buffer.start, buffer.name))

  @staticmethod
  def grouped(buffers: Sequence[Buffer], by: str) -> list[Group]:
    """What buffers come to, by what they have in common.

    Args:
      buffers: ``profile.at_peak()``, say.
      by: one of ``GROUP_KEYS``: "line", "frames", "scope", "layer", "op", "dtype", "kind", "argument".

    Returns:
      The groups, largest first.

    Raises:
      ValueError: `by` is none of these.
    """
    if by not in GROUP_KEYS:
      raise ValueError(f"by={by!r}: one of {', '.join(GROUP_KEYS)}")
    members = collections.defaultdict(list)
    for buffer in buffers:
      members[GROUP_KEYS[by](buffer)].append(buffer)
    groups = [
      Group(key, sum(buffer.num_bytes for buffer in group), len(group), max(group, key=lambda buffer: buffer.num_bytes))
      for key, group in members.items()
    ]
    return sorted(groups, key=lambda group: (-group.num_bytes, group.key))

  @classmethod
  def from_fields(cls, fields: dict[str, Any]) -> "MemoryProfile":
    """The inverse of ``dataclasses.asdict``, after JSON made lists of its tuples."""
    buffers = tuple(Buffer(**{**buffer, "frames": tuple(buffer.get("frames", ()))}) for buffer in fields["buffers"])
    return cls(**{**fields, "live_bytes": tuple(fields["live_bytes"]), "buffers": buffers})

  def to_dict(self) -> dict[str, Any]:
    """All fields and the derived totals, ready for JSON (a cost that is nan becomes None)."""
    fields = dataclasses.asdict(self)
    for buffer in fields["buffers"]:
      buffer["cost_s"] = None if np.isnan(buffer["cost_s"]) else buffer["cost_s"]
    return {
      **fields,
      "live_bytes": list(self.live_bytes),
      "buffers": list(fields["buffers"]),
      "total_bytes": self.total_bytes,
      "resident_bytes": self.resident_bytes,
      "fragmentation": self.fragmentation,
      "peak_step": self.peak_step,
    }

  def to_frame(self) -> Any:
    """A row a buffer, as a ``pandas.DataFrame``."""
    return display.frame(
      [
        {**vars(buffer), "dtype": buffer.dtype, "module_path": buffer.module_path, "layer": buffer.layer}
        for buffer in self.buffers
      ]
    )

  def plot(self, ax: Any = None) -> Any:
    """Live bytes over the schedule, or the totals where they are not known. Returns matplotlib's axes."""
    title = f"{self.name or 'program'}: {format_bytes(self.temp_bytes)} of temporaries"
    if self.live_bytes:
      return display.plot_live_bytes(ax, title, {f"peak {format_bytes(self.peak_live_bytes)}": self.live_bytes})
    return display.plot_totals(
      ax,
      title,
      {
        "arguments": self.argument_bytes,
        "outputs": self.output_bytes,
        "temporaries": self.temp_bytes,
        "aliased": self.alias_bytes,
      },
    )

  def _repr_html_(self) -> str:
    modelled = " (modelled)" if self.is_predicted else ""
    headline = (
      f"{self.name or 'program'}: {format_bytes(self.total_bytes)} in total{modelled}\n"
      f"arguments {format_bytes(self.argument_bytes)} + outputs {format_bytes(self.output_bytes)} + temporaries "
      f"{format_bytes(self.temp_bytes)} - aliased {format_bytes(self.alias_bytes)}"
    )
    peak = self.at_peak()
    rows = [_html_row(buffer) for buffer in peak[:_SHOWN]]
    return display.html_table(headline, _HTML_COLUMNS if rows else (), rows, len(peak) - _SHOWN)


def _html_row(buffer: Buffer) -> tuple[str, ...]:
  live = f"{buffer.start}..{buffer.end - 1}" if buffer.start >= 0 else ""
  return format_bytes(buffer.num_bytes), buffer.kind, buffer.type, live, buffer.source, buffer.module_path, buffer.name


class Totals(TypedDict):
  """The fields of a `MemoryProfile` that a compiler gives."""

  temp_bytes: int
  argument_bytes: int
  output_bytes: int
  alias_bytes: int
  host_bytes: int


def totals_of(sizes: Any) -> Totals:
  """The totals of a profile, from a compiled program's memory analysis or what a buffer assignment says in its
  place.
  """
  return {
    "temp_bytes": sizes.temp_size_in_bytes,
    "argument_bytes": sizes.argument_size_in_bytes,
    "output_bytes": sizes.output_size_in_bytes,
    "alias_bytes": sizes.alias_size_in_bytes,
    "host_bytes": sizes.host_temp_size_in_bytes,
  }
