"""The mark that a program carries to the HLO engine: what is asked of it, as the text of a frontend attribute."""

import dataclasses
import hashlib
import re

from coopjax import __version__
from coopjax.budget import Budget

_TEXT = re.compile(rb"coopjax-(?:mark|over)\([^()]*\)")
_MARK, _OVER = b"coopjax-mark(", b"coopjax-over("  # of one length: in a module, one can take the other's place
# On programs that the policy engine alone has planned: with what they are held to, or for processes to agree on alone.
CHOICE = "coopjax-choice()"
_BUDGET = re.compile(rb"coopjax-(?:mark|over|choice)\((?:bytes=(\d+)(;total)?|share=([\d.]+));")
_CHOICE, _HELD = b"coopjax-choice(", re.compile(rb"coopjax-choice\([^()]+\)")


@dataclasses.dataclass(frozen=True)
class Whole:
  """What a share is of where the hook does not see that: the program around a function, without what remats do in it.

  Attributes:
    share: of its temporaries.
    temp_bytes: of the function with its gradient, compiled alone as it is; 0 where that says nothing of the program.
    output_bytes: of the same.
    is_of_all: both are of all devices together.
  """

  share: float
  temp_bytes: int = 0
  output_bytes: int = 0
  is_of_all: bool = False

  def at_least(self, results_bytes: int, num_devices: int) -> int:
    """Temporaries that the program takes in any case.

    Results lend their memory to temporaries until they are there: those of the function, and any that the program has
    beyond them.

    Args:
      results_bytes: of the program on one device, without those that lie where arguments lay.
      num_devices: that it runs on.
    """
    num_parts = num_devices if self.is_of_all else 1
    lent_bytes = max(num_parts * results_bytes - self.output_bytes, 0)
    return max(self.temp_bytes - lent_bytes, 0) // num_parts

  def to_text(self) -> str:
    return f"{self.share!r},{self.temp_bytes},{self.output_bytes},{int(self.is_of_all)}"

  @classmethod
  def from_text(cls, text: str) -> "Whole":
    share, temp_bytes, output_bytes, is_of_all = text.split(",")
    return cls(float(share), int(temp_bytes), int(output_bytes), is_of_all == "1")


@dataclasses.dataclass(frozen=True)
class Mark:
  """What a mark, or `coopjax.enable`, asks of the hook.

  Attributes:
    budget: limit on the module's temporary memory; a share is of the module's own un-rematerialized temporaries. None
      asks for a better order alone: nothing is recomputed.
    planner: name of a planner.
    effort: how much planning one module may take, one of `coopjax.planners.effort.EFFORTS`.
    time_limit_s: a fuse: seconds after which planning ends with what it has; None for none.
    key: identifies program and request, so that compilation caches tell them apart.
    target: whose speeds give ops their modelled seconds (`coopjax.xla.targets`); a CPU's by default.
    refuses: whether a program that stays over the budget is an error, not a warning.
    whole: what the compiled program is held to besides, where the budget is of a part of it.
  """

  budget: Budget | None
  planner: str = "auto"
  effort: str = "normal"
  time_limit_s: float | None = None
  key: str = ""
  target: str = "cpu"
  refuses: bool = False
  whole: Whole | None = None

  def to_text(self) -> str:
    """The value of a frontend attribute; a function of the mark alone, so caches may key on it."""
    assert self.budget is not None  # what asks for an order alone is not written into a program
    limit = f"share={self.budget.share!r}" if self.budget.share is not None else f"bytes={self.budget.limit_bytes}"
    total = ";total" if self.budget.is_total else ""
    target = "" if self.target == "cpu" else f";target={self.target}"
    fuse = "" if self.time_limit_s is None else f";fuse={self.time_limit_s!r}"
    refuses = ";refuses" if self.refuses else ""
    asked = f"planner={self.planner};effort={self.effort}{fuse}{refuses}"
    whole = "" if self.whole is None else f";whole={self.whole.to_text()}"
    return f"coopjax-mark({limit}{total};{asked};key={self.key}{target}{whole})"

  def to_choice(self) -> str:
    """As :meth:`to_text`, for a program that the HLO engine leaves alone: once it is compiled, it is held to this."""
    return self.to_text().replace(_MARK.decode(), _CHOICE.decode(), 1)

  @classmethod
  def from_text(cls, text: str) -> "Mark":
    """Reads what :meth:`to_text` or :meth:`to_choice` wrote."""
    parts = (field.partition("=") for field in text[text.index("(") + 1 : -1].split(";"))
    fields = {name: value for name, _, value in parts}
    share, limit_bytes = fields.get("share"), fields.get("bytes")
    budget = Budget(int(limit_bytes) if limit_bytes else None, float(share) if share else None, "total" in fields)
    fuse_s = float(fields["fuse"]) if "fuse" in fields else None
    target, refuses = fields.get("target", "cpu"), "refuses" in fields
    whole = Whole.from_text(fields["whole"]) if "whole" in fields else None
    return cls(budget, fields["planner"], fields["effort"], fuse_s, fields["key"], target, refuses, whole)


def keyed(mark: Mark, *program: str) -> Mark:
  """A mark with the key of its request and of what it is of: the same in every process.

  Compilation caches key on it, so an executable that another version of coopjax planned is not taken for this one's.
  """
  text = f"{__version__} {dataclasses.replace(mark, key='')} {' '.join(program)}"
  return dataclasses.replace(mark, key=hashlib.sha256(text.encode()).hexdigest()[:16])


def marks_in(module_bytes: bytes) -> set[Mark]:
  """The marks that a serialized module carries, each once."""
  return {Mark.from_text(match.decode()) for match in set(_TEXT.findall(module_bytes))}


def held_in(program: bytes) -> set[Mark]:
  """What a program, in any form, is held to once it is compiled: where the policy engine has planned, alone or not."""
  held = {Mark.from_text(match.decode()) for match in set(_HELD.findall(program))}
  return held | {mark for mark in marks_in(program) if mark.whole is not None}


def asked_in(program: bytes) -> str:
  """The budgets that a program, in any form, asks for or is held to, in words; whichever version wrote its marks."""
  return " and ".join(
    sorted(
      str(Budget(share=float(share)) if share else Budget(int(num_bytes), is_total=bool(total)))
      for num_bytes, total, share in set(_BUDGET.findall(program))
    )
  )


def is_marked(program: bytes) -> bool:
  """Whether a program, in any form, carries a mark."""
  return _MARK in program


def is_chosen(program: bytes) -> bool:
  """Whether it carries `CHOICE`, or what it is held to in its place."""
  return _CHOICE in program


def over_budget(module_bytes: bytes) -> bytes:
  """The module with marks that say, wherever the compiled program comes from, that it is over its budget."""
  return module_bytes.replace(_MARK, _OVER)


def is_over_budget(module_bytes: bytes) -> bool:
  """Whether marks say so."""
  return _OVER in module_bytes
