"""The mark that a program carries to the HLO engine: what is asked of it, as the text of a frontend attribute."""

import dataclasses
import hashlib
import re

from coopjax import __version__
from coopjax.budget import Budget

_TEXT = re.compile(rb"coopjax-mark\([^()]*\)")


@dataclasses.dataclass(frozen=True)
class Mark:
  """What a mark, or `coopjax.enable`, asks of the hook.

  Attributes:
    budget: limit on the module's temporary memory; a share is of the module's own un-rematerialized temporaries. None
      asks for a better order alone: nothing is recomputed.
    planner: name of a planner.
    time_limit_s: seconds that planning one module may take.
    key: identifies program and request, so that compilation caches tell them apart.
    target: whose speeds give ops their modelled seconds (`coopjax.xla.targets`); a CPU's by default.
  """

  budget: Budget | None
  planner: str = "auto"
  time_limit_s: float = 10.0
  key: str = ""
  target: str = "cpu"

  def to_text(self) -> str:
    """The value of a frontend attribute; a function of the mark alone, so caches may key on it."""
    assert self.budget is not None  # what asks for an order alone is not written into a program
    limit = f"share={self.budget.share!r}" if self.budget.share is not None else f"bytes={self.budget.limit_bytes}"
    total = ";total" if self.budget.is_total else ""
    target = "" if self.target == "cpu" else f";target={self.target}"
    return f"coopjax-mark({limit}{total};planner={self.planner};limit={self.time_limit_s!r};key={self.key}{target})"

  @classmethod
  def from_text(cls, text: str) -> "Mark":
    """Reads what :meth:`to_text` wrote."""
    parts = (field.partition("=") for field in text[len("coopjax-mark(") : -1].split(";"))
    fields = {name: value for name, _, value in parts}
    share, limit_bytes = fields.get("share"), fields.get("bytes")
    budget = Budget(int(limit_bytes) if limit_bytes else None, float(share) if share else None, "total" in fields)
    return cls(budget, fields["planner"], float(fields["limit"]), fields["key"], fields.get("target", "cpu"))


def mark_of(fingerprint: str, budget: Budget, planner: str, time_limit_s: float, target: str) -> str:
  """The mark of a traced program: the same for the same program, request and coopjax, in every process.

  Compilation caches key on it, so an executable that another version of coopjax planned is not taken for this one's.
  """
  text = f"{__version__} {fingerprint} {budget} {planner} {time_limit_s} {target}"
  key = hashlib.sha256(text.encode()).hexdigest()[:16]
  return Mark(budget, planner, time_limit_s, key, target).to_text()


def marks_in(module_bytes: bytes) -> set[Mark]:
  """The marks that a serialized module carries, each once."""
  return {Mark.from_text(match.decode()) for match in set(_TEXT.findall(module_bytes))}
