"""What type checkers are told of the four remats: their keywords, and that what they wrap keeps its signature.

The keywords stand once more in ``api``, ``linen``, ``nnx`` and ``equinox``, with their defaults, where people read
them; tests/house/test_types.py compares.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Required, TypedDict

from coopjax.budget import BudgetLike

if TYPE_CHECKING:
  from coopjax.planning.remat_plan import RematPlan


class RematKeywords(TypedDict, total=False):
  """Of :func:`coopjax.remat`."""

  budget: BudgetLike | None
  planner: str
  engine: str
  policy: Callable[..., Any] | None
  static_argnums: int | Sequence[int]
  static_argnames: str | Sequence[str]
  target: str | None
  effort: str
  time_limit_s: float | None
  on_infeasible: str
  prevent_cse: bool | Sequence[bool]
  plan: "RematPlan | None"


class EquinoxKeywords(TypedDict, total=False):
  """Of :func:`coopjax.equinox.remat`."""

  budget: Required[BudgetLike]
  planner: str
  engine: str
  policy: Callable[..., Any] | None
  target: str | None
  effort: str
  time_limit_s: float | None
  on_infeasible: str
  prevent_cse: bool | Sequence[bool]


class BlockKeywords(TypedDict, total=False):
  """Of :func:`coopjax.nnx.remat`."""

  budget: Required[BudgetLike]
  static_argnums: int | Sequence[int]
  static_argnames: str | Sequence[str]
  engine: str
  planner: str
  effort: str
  time_limit_s: float | None


class LinenKeywords(BlockKeywords, total=False):
  """Of :func:`coopjax.linen.remat`; the filters are Flax's."""

  variables: Any
  rngs: Any
  methods: str | Sequence[str] | None


class Decorator(Protocol):
  """What a remat without a function returns."""

  def __call__[**P, R](self, fn: Callable[P, R], /) -> Callable[P, R]: ...


class LinenDecorator(Protocol):
  """The same for Linen: of a class it makes a class."""

  def __call__[F: Callable[..., Any]](self, target: F, /) -> F: ...
