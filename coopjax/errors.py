"""Errors and warnings, each with what was asked, what is reachable and what to try."""


class CoopjaxError(Exception):
  """Base of every error that coopjax raises."""


class InvalidBudgetError(CoopjaxError, ValueError):
  """A budget that is not a positive number of bytes, a size string or a share in (0, 1]."""


class InvalidProgramError(CoopjaxError, ValueError):
  """A StepProgram with a cycle, a negative size, an unknown id or another fault."""


class InvalidPlanError(CoopjaxError, ValueError):
  """A plan that breaks data order, live bytes or pinned values, or a plan file that can't be read."""


class NotDifferentiableError(CoopjaxError, TypeError):
  """A function with no floating-point argument: it has no gradient, so nothing to rematerialize."""


class OrderedEffectError(CoopjaxError, NotImplementedError):
  """A function whose input or output happens in an order with others (``io_callback(ordered=True)``)."""


class BudgetInfeasibleError(CoopjaxError):
  """No plan reaches the budget.

  Attributes:
    budget_bytes: what was asked.
    smallest_bytes: the smallest reachable found.
    op: the op that forces it.
    largest: the three largest values live there, ``(bytes, type, source line)`` each.
  """

  def __init__(self, message: str, *, budget_bytes: int, smallest_bytes: int, op: str, largest: tuple):
    super().__init__(message)
    self.budget_bytes = budget_bytes
    self.smallest_bytes = smallest_bytes
    self.op = op
    self.largest = largest


class PlanMismatchError(CoopjaxError):
  """A plan applied to a program that it was not made for."""


class RematNoEffectWarning(UserWarning):
  """A remat that changed nothing in the compiled program; the message names the cause."""


class BudgetExceededWarning(UserWarning):
  """A best-effort plan, or a program compiled in place, that stays above its budget."""
