"""The one number a user gives: how many bytes a step may take on one device."""

import contextlib
import dataclasses
import math
import numbers
import re
from typing import TYPE_CHECKING, Any, SupportsIndex

from coopjax.errors import InvalidBudgetError

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", start=1)} | {"KB": 1000}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*")
type BudgetLike = Budget | str | float | SupportsIndex  # what users write; `Budget.parse` says what it means
_ASK = (
  'a budget is bytes (int), a size ("6GiB", "500 MB"), a share of the un-rematerialized temporary memory in (0, 1] '
  'or in percent ("25%"), or "fits" for what the device has'
)


@dataclasses.dataclass(frozen=True)
class Budget:
  """A limit on memory, of one of four kinds; make one with :meth:`parse` or :meth:`total`.

  Attributes:
    limit_bytes: bytes allowed, or None for a share. The constructor takes a size or a share here, too.
    share: share of the un-rematerialized temporary memory of the program it is applied to, or None.
    is_total: whether ``limit_bytes`` bounds arguments + outputs + temporaries - aliased instead of
      temporaries alone.
    fits: whether it is a total that the device sets: its memory less a reserve for what XLA does not count
      (`coopjax.xla.device_budget`). What is asked of a device has the bytes.
    offload: whether values may be kept in the host's memory between the forward and the backward pass, where that
      costs less time than recomputing them; or a size: so, at most that many bytes for each device. GPU and TPU only.

  Example:
    >>> Budget.parse("1.5 KiB").limit_bytes
    1536
    >>> Budget.parse(0.25).resolve(temp_bytes=1000)
    250
    >>> Budget.total("1 MB").resolve(temp_bytes=0, resident_bytes=400_000)
    600000
    >>> print(Budget("6GiB", offload=True))
    6.00 GiB with host offload
    >>> print(Budget("6GiB", offload="40GiB"))
    6.00 GiB with host offload of at most 40.00 GiB
  """

  limit_bytes: int | None = None
  share: float | None = None
  is_total: bool = False
  offload: bool | int = False
  fits: bool = False

  if TYPE_CHECKING:  # the dataclass's own, which takes what `limit_bytes` is made from

    def __init__(
      self,
      limit_bytes: str | float | SupportsIndex | None = None,
      share: float | None = None,
      is_total: bool = False,
      offload: str | SupportsIndex = False,
      fits: bool = False,
    ) -> None: ...

  def __post_init__(self):
    if self.limit_bytes is not None and type(self.limit_bytes) is not int:
      parsed = Budget.parse(self.limit_bytes)
      object.__setattr__(self, "limit_bytes", parsed.limit_bytes)
      object.__setattr__(self, "share", parsed.share)
      if parsed.fits:
        object.__setattr__(self, "is_total", True)
        object.__setattr__(self, "fits", True)
    if type(self.offload) is not bool:
      object.__setattr__(self, "offload", _parse_offload(self.offload))

  @classmethod
  def parse(cls, budget: Any, *, offload: str | SupportsIndex = False) -> "Budget":
    """Reads a budget as users write it.

    Args:
      budget: bytes (int), a size string with a binary or decimal unit, a share as a float in (0, 1] or as a string
        ("25%"), "fits", or a Budget.
      offload: as the attribute; a Budget that offloads goes on doing so.

    Raises:
      InvalidBudgetError: anything else; the message shows the value and what is accepted.
    """
    if offload:
      parsed = cls.parse(budget)
      return dataclasses.replace(parsed, offload=parsed.offload or True if offload is True else offload)
    if isinstance(budget, Budget):
      budget._check()
      return budget
    if isinstance(budget, str) and budget.strip().lower() == "fits":
      return cls(is_total=True, fits=True)
    if isinstance(budget, str):
      return cls(share=_parse_share(budget)) if budget.rstrip().endswith("%") else cls(limit_bytes=_parse_size(budget))
    if isinstance(budget, numbers.Integral) and not isinstance(budget, bool):
      if budget <= 0:
        raise InvalidBudgetError(f"budget={budget} bytes: a budget must be positive; {_ASK}")
      return cls(limit_bytes=int(budget))
    if isinstance(budget, numbers.Real) and not isinstance(budget, bool):
      if budget <= 0 or not budget <= 1:  # nan is neither
        raise InvalidBudgetError(f"budget={budget}: a float is a share and must lie in (0, 1]; {_ASK}")
      return cls(share=float(budget))
    raise InvalidBudgetError(f"budget={budget!r} ({type(budget).__name__}): {_ASK}, or a Budget")

  @classmethod
  def total(cls, budget: int | str, *, offload: str | SupportsIndex = False) -> "Budget":
    """A limit on arguments + outputs + temporaries - aliased bytes; give ``plan`` the whole step with it."""
    parsed = cls.parse(budget, offload=offload)
    if parsed.fits:
      return parsed
    if parsed.limit_bytes is None:
      raise InvalidBudgetError(f"Budget.total({budget!r}): a total is bytes or a size, not a share")
    return dataclasses.replace(parsed, is_total=True)

  def _check(self) -> None:
    """Raises InvalidBudgetError for what the constructor takes and no program can be held to."""
    if self.fits and self.is_total and self.limit_bytes is None and self.share is None:
      return
    if self.fits or (self.limit_bytes is None) == (self.share is None):
      raise InvalidBudgetError(f"Budget(limit_bytes={self.limit_bytes}, share={self.share}): one of the two; {_ASK}")
    if self.share is not None and (self.is_total or not 0 < self.share <= 1):
      raise InvalidBudgetError(
        f"Budget(share={self.share}, is_total={self.is_total}): a share lies in (0, 1], and is of "
        f"the temporaries, not of a total; {_ASK}"
      )
    if self.limit_bytes is not None and self.limit_bytes < 0:
      raise InvalidBudgetError(f"Budget({self.limit_bytes}): a budget must not be negative; {_ASK}")

  @property
  def host_bytes(self) -> float:
    """Of each device, the most that may be kept in the host's memory."""
    return math.inf if isinstance(self.offload, bool) else self.offload

  def in_words(self, allowed_bytes: int) -> str:
    """It, for a program to which it leaves so many bytes of temporaries (see :meth:`resolve`); a share with them."""
    return str(self) if self.share is None else f"{format_bytes(allowed_bytes)}, {self}"

  def taken(self, temp_bytes: int, allowed_bytes: int) -> str:
    """What such a program takes with so many temporaries, in words: as the budget counts it."""
    told, resident_bytes = f"{format_bytes(temp_bytes)} of temporaries", self.counted_bytes(allowed_bytes)
    if not self.is_total:
      return told
    total, resident = format_bytes(temp_bytes + resident_bytes), format_bytes(resident_bytes)
    return f"{total} in total, {told} and {resident} of arguments and outputs"

  def counted_bytes(self, allowed_bytes: int) -> int:
    """What it counts besides the temporaries of such a program: arguments + outputs - aliased bytes, of a total."""
    if not self.is_total:
      return 0
    assert self.limit_bytes is not None  # a total is bytes, not a share
    return self.limit_bytes - allowed_bytes

  def resolve(self, temp_bytes: int, resident_bytes: int = 0) -> int:
    """Bytes of temporary memory that this budget leaves a program.

    Args:
      temp_bytes: un-rematerialized temporary bytes of the program.
      resident_bytes: arguments + outputs - aliased bytes of the program, used by totals.

    Returns:
      Temporary bytes allowed, zero or negative if a total is already spent on what is resident.
    """
    if self.share is not None:
      return int(self.share * temp_bytes)
    assert self.limit_bytes is not None  # one of the two is given, see `_check`
    return self.limit_bytes - (resident_bytes if self.is_total else 0)

  def __str__(self) -> str:
    offload = " with host offload" if self.offload else ""
    offload += f" of at most {format_bytes(self.host_bytes)}" if self.host_bytes < math.inf else ""
    if self.fits:
      return f"what fits the device{offload}"
    if self.share is not None:
      return f"{self.share:.4g} of the un-rematerialized temporaries{offload}"
    assert self.limit_bytes is not None
    return format_bytes(self.limit_bytes) + (" in total" if self.is_total else "") + offload


def _parse_offload(offload: Any) -> int:
  """Bytes that may be kept in the host's memory."""
  num_bytes: Any = offload
  if isinstance(offload, str):
    with contextlib.suppress(InvalidBudgetError):
      num_bytes = _parse_size(offload)
  if not isinstance(num_bytes, numbers.Integral) or num_bytes <= 1:  # 1 is True to some
    raise InvalidBudgetError(f'offload={offload!r}: True, False, or the most that may go to the host ("40GiB", bytes)')
  return int(num_bytes)


def _parse_share(text: str) -> float:
  try:
    share = float(text.rstrip()[:-1]) / 100
  except ValueError:
    share = math.nan
  if not 0 < share <= 1:
    raise InvalidBudgetError(f'budget="{text}": a share is above 0% and at most 100%; {_ASK}')
  return share


def _parse_size(text: str) -> int:
  match = _SIZE.fullmatch(text)
  if not match or match[2] not in _UNITS:
    units = ", ".join(unit for unit in _UNITS if unit)
    raise InvalidBudgetError(f'budget="{text}" is not a size: a number and one of {units}; {_ASK}')
  size = float(match[1]) * _UNITS[match[2]]
  if size < 1:
    raise InvalidBudgetError(f'budget="{text}": a budget must be at least one byte; {_ASK}')
  return math.floor(size)


def format_bytes(num_bytes: float) -> str:
  """``num_bytes`` with a binary unit, three digits: ``format_bytes(1536) == "1.50 KiB"``."""
  for unit in ("B", "KiB", "MiB", "GiB"):
    if abs(num_bytes) < 1024:
      break
    num_bytes /= 1024
  else:
    unit = "TiB"
  return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.2f} {unit}"
