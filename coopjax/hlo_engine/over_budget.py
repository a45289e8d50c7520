"""Programs over their budget: what there is to say of them, and the plan of all of a program in place of a part's."""

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from coopjax import compat
from coopjax.budget import format_bytes
from coopjax.errors import BudgetInfeasibleError


class Excess(NamedTuple):
  """What there is to say of a program over its budget.

  Attributes:
    message: with all of it.
    budget_bytes: allowed temporaries.
    smallest_bytes: reached.
    counted_bytes: besides temporaries, in a budget that is a total.
    op: the op that forces it.
    largest: the largest values live there.
    is_refused: it is an error.
  """

  message: str
  budget_bytes: int
  smallest_bytes: int
  counted_bytes: int = 0
  op: str = ""
  largest: tuple[tuple[int, str, str], ...] = ()
  is_refused: bool = False

  def error(self) -> BudgetInfeasibleError:
    return BudgetInfeasibleError(
      self.message,
      budget_bytes=self.budget_bytes + self.counted_bytes,
      smallest_bytes=self.smallest_bytes + self.counted_bytes,
      op=self.op,
      largest=tuple(map(tuple, self.largest)),
    )


class Inside(Protocol):
  """A function with a mark, inside of any number of programs: what it knows of them when they are compiled.

  Attributes:
    request: what is asked of the function.
    is_left: the function is left as it is, which takes no more alone with its gradient.
  """

  @property
  def request(self) -> Hashable: ...
  @property
  def is_left(self) -> bool: ...
  def is_differentiated(self, program: compat.ProgramToCompile) -> bool:
    """Whether the program takes a gradient of the function, as far as is known."""
    ...

  def unaided_bytes(self, program: compat.ProgramToCompile, enough_bytes: float) -> int | None:
    """Temporaries of the program without what remats do in it; None where they are not known.

    Args:
      program: what is compiled.
      enough_bytes: about so many, or more, need not be known any closer.
    """
    ...

  def planned_for_less(self, program: compat.ProgramToCompile, excess: Excess) -> jax.stages.Lowered | None:
    """The program, lowered, with the function planned for as many bytes less as the program is over its budget; None
    where there is more in the program to decide on, or no such plan.
    """
    ...

  def planned_anew(
    self, program: compat.ProgramToCompile, limit_bytes: int | None = None
  ) -> tuple[jax.stages.Lowered, int, int] | None:
    """The program planned as a whole and lowered, what temporaries it may take, and took; None where that can't be.

    Args:
      program: what is compiled.
      limit_bytes: of temporaries, in place of the budget that is asked for.

    Raises:
      BudgetInfeasibleError: no plan of it reaches the budget.
    """
    ...


def planned_anew(
  program: compat.ProgramToCompile,
  functions: Sequence[Inside],
  refused: Excess,
  compile_program: Callable[[compat.ProgramToCompile], Any],
) -> Any:
  """The executable of the program planned as a whole, where the plans of functions in it leave it over its budget.

  Where there is one function, it is planned for less first: its trials are smaller, and what else the program holds is
  known from its compile. What takes more than it did when it was planned (on a GPU, whose kernels are chosen by what
  they take, at every compile) is planned once more, for as much less.

  Args:
    program: as it came.
    functions: in it.
    refused: what there is to say of it.
    compile_program: compiles what takes its place.

  Raises:
    BudgetInfeasibleError: there is none within the budget.
  """
  functions = [each for each in functions if each.is_differentiated(program)]
  if len({each.request for each in functions}) != 1:
    raise refused.error()
  for_less = functions[0].planned_for_less(program, refused)
  if for_less is not None and (other := program.replaced(for_less)) is not None:
    with contextlib.suppress(BudgetInfeasibleError):  # the HLO engine does not bring it within the budget
      executable = compile_program(other)
      if compat.temp_bytes_of(executable) <= refused.budget_bytes:
        return executable
  budget_bytes = limit_bytes = None
  while (planned := _in_place(program, functions[0], limit_bytes)) is not None:
    other, allowed_bytes, planned_bytes = planned
    executable = compile_program(other)
    budget_bytes = allowed_bytes if budget_bytes is None else budget_bytes
    temp_bytes = compat.temp_bytes_of(executable)
    if temp_bytes <= budget_bytes:
      return executable
    message = (
      f"the program {program.name} takes {format_bytes(temp_bytes)} of temporaries, over the "
      f"{format_bytes(budget_bytes)} that its budget leaves them, and took {format_bytes(planned_bytes)} when it was "
      "planned: XLA makes another program of it at every compile, as on a GPU, where it tries kernels out. Ask for less"
    )
    refused = refused._replace(message=message, smallest_bytes=temp_bytes)
    if limit_bytes is not None:
      break
    limit_bytes = budget_bytes * planned_bytes // temp_bytes
  raise refused.error()


def _in_place(
  program: compat.ProgramToCompile, function: Inside, limit_bytes: int | None
) -> tuple[compat.ProgramToCompile, int, int] | None:
  """The program planned as a whole, what temporaries it may take and took; None where that can't be."""
  try:
    planned = function.planned_anew(program, limit_bytes)
  except BudgetInfeasibleError:
    if limit_bytes is None:
      raise
    return None
  if planned is None or (other := program.replaced(planned[0])) is None:
    return None
  return other, *planned[1:]
