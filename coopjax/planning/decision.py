"""What a plan decides of single values, and how people read it: equal layers together, and what stands next to it."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence

from coopjax import display
from coopjax.budget import format_bytes
from coopjax.errors import printable
from coopjax.program.scopes import layer_of

COLUMNS = ("decision", "bytes", "each", "to repeat", "op", "value", "type", "layer", "line")
_SPARE = ("value", "each", "type", "to repeat", "op")  # on a narrow terminal


@dataclasses.dataclass(frozen=True)
class Decision:
  """What happens to one value.

  Attributes:
    value: its name where the user gave it one (`jax.ad_checkpoint.checkpoint_name`), else that of the op that makes it,
      and which of its outputs.
    type: dtype and shape.
    source: the user's ``file:line``, or "".
    scope: name-scope path, or "".
    num_bytes: size of its buffer; if the policy engine decided, of what one device holds (the whole array where it is
      not known how devices share it), in all turns of a loop, and all runs of a step's region, that are kept at once.
    decision: "saved", "recomputed" or "offloaded".
    times: how often it is recomputed.
    cost_s: modelled seconds of one run of the op that makes it; if the policy engine decided, of all those runs.
    op: what makes it: an HLO opcode (a fusion's most expensive one), or a jaxpr primitive if the policy engine decided.
    made_of_layer: the layer of the arguments that it is made from, "net.blocks[3]" for one, or "".
  """

  value: str
  type: str
  source: str
  scope: str
  num_bytes: int
  decision: str
  times: int
  cost_s: float
  op: str = ""
  made_of_layer: str = ""

  @property
  def name(self) -> str:
    """The user's, or ""."""
    return "" if self.value.endswith("]") else self.value

  @property
  def layer(self) -> str:
    """The scopes that the user opened down to the first numbered one; or the layer of the arguments."""
    return layer_of(self.scope, self.made_of_layer)


@dataclasses.dataclass(frozen=True)
class Alike:
  """Decisions that differ in the layer alone.

  Attributes:
    first: the first of them.
    layers: theirs, each once, by number; () where the program names none.
    num_values: how many they are.
    num_bytes: of all of them.
    cost_s: modelled seconds to make each of them once more.
  """

  first: Decision
  layers: tuple[str, ...]
  num_values: int
  num_bytes: int
  cost_s: float

  @property
  def where(self) -> str:
    """The layers in a few words: "block_0", "block_0..15 x 16 layers" or "blocks[0..15] x 16 layers"."""
    if len(self.layers) < 2:
      return "".join(self.layers)
    first, last = (re.split(r"(\d+)", layer) for layer in (self.layers[0], self.layers[-1]))
    at = next(i for i, (one, other) in enumerate(zip(first, last)) if one != other)
    if first[at + 1 :] == last[at + 1 :]:  # they differ in one number
      first, last = first[: at + 1], last[at:]
    return f"{''.join(first)}..{''.join(last)} x {len(self.layers)} layers"

  @property
  def seconds(self) -> float:
    """Modelled, of all that the plan repeats of them; 0 for what is saved."""
    return self.cost_s * self.first.times

  def row(self) -> tuple[str, ...]:
    """The cells under ``COLUMNS``."""
    first, how = self.first, self.first.decision + (f" {self.first.times}x" if self.first.times > 1 else "")
    each = f"{self.num_values} x {format_bytes(first.num_bytes)}" if self.num_values > 1 else ""
    value = first.value if first.name or self.num_values == 1 else f"{first.value} .."
    return (
      how,
      format_bytes(self.num_bytes),
      each,
      _duration(self.cost_s),
      first.op,
      value,
      first.type,
      self.where,
      first.source,
    )


def grouped(decisions: Iterable[Decision]) -> list[Alike]:
  """The decisions, those that differ in the layer alone taken together; the most bytes first."""
  members: dict[tuple, list[Decision]] = collections.defaultdict(list)
  for each in decisions:
    any_layer = re.sub(r"\d+", "#", each.layer)
    members[each.decision, each.times, each.type, each.op, each.source, any_layer, each.name].append(each)
  alike = [
    Alike(
      group[0],
      tuple(sorted({each.layer for each in group if each.layer}, key=_by_number)),
      len(group),
      sum(each.num_bytes for each in group),
      sum(each.cost_s for each in group),
    )
    for group in members.values()
  ]
  return sorted(alike, key=lambda each: -each.num_bytes)


def table(decisions: Sequence[Decision], top: int, width: int = 0) -> list[str]:
  """The ``top`` largest groups of decisions as lines of text, and the rungs above and below."""
  groups = grouped(decisions)
  if not groups or not top:
    return []
  spare = _SPARE if not any(group.first.name for group in groups) else (*_SPARE[1:], _SPARE[0])
  lines = ["", display.text_table(COLUMNS, [group.row() for group in groups[:top]], width, spare)]
  if len(groups) > top:
    lines.append(f"... and {len(groups) - top} smaller ones")
  return [*lines, *(display.wrapped(line, width) for line in _rungs(groups))]


def unsaved_names(decisions: Iterable[Decision], unused_bytes: int) -> str:
  """Why names of the user's are not saved, in a line; "" where all of them are.

  Args:
    decisions: of the plan.
    unused_bytes: of its budget.
  """
  num_bytes = collections.Counter[str]()
  for each in decisions:
    if each.name and each.decision == "recomputed":
      num_bytes[each.name] += each.num_bytes
  if not num_bytes:
    return ""
  least = min(num_bytes, key=lambda name: (num_bytes[name], name))
  why = (
    f"to keep {least} takes {format_bytes(num_bytes[least])}, and {format_bytes(unused_bytes)} of the budget are unused"
  )
  if num_bytes[least] <= unused_bytes:
    why += "; plans that keep more were predicted, or compiled, to take more than it all told"
  return printable(f"not saved by name: {', '.join(num_bytes)}: {why}")


def _rungs(groups: Sequence[Alike]) -> list[str]:
  """What to give and to get next: of what is repeated, the most seconds a byte; of what is kept, the fewest."""
  repeated = [group for group in groups if group.first.decision == "recomputed" and group.seconds > 0]
  kept = [group for group in groups if group.first.decision == "saved" and group.cost_s > 0]
  lines = []
  if repeated:
    above = max(repeated, key=lambda group: group.seconds / group.num_bytes)
    lines.append(
      f"the rung above, keeping {_named(above)}: up to {format_bytes(above.num_bytes)} more, "
      f"{_duration(above.seconds)} less to compute (predicted)"
    )
  if kept:
    below = min(kept, key=lambda group: group.cost_s / group.num_bytes)
    lines.append(
      f"the rung below, repeating {_named(below)}: up to {format_bytes(below.num_bytes)} less, "
      f"{_duration(below.cost_s)} more to compute (predicted)"
    )
  return ["", *lines] if lines else []


def _named(group: Alike) -> str:
  place = " of ".join(filter(None, (group.first.name or group.first.op or group.first.value, group.where)))
  return printable(f"{place} ({group.first.source})" if group.first.source else place)


def _by_number(text: str) -> list[tuple[bool, int, str]]:
  return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text)]


def _duration(seconds: float) -> str:
  return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
