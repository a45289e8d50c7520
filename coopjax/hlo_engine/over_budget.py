"""Programs over their budget: what there is to say of them, and the plan of all of a program in place of a part's."""

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from coopjax import compat, errors
from coopjax.budget import Budget, format_bytes
from coopjax.errors import BudgetExceededWarning, BudgetInfeasibleError, InvalidProgramError, log
from coopjax.hlo_engine.infeasible import why_infeasible
from coopjax.hlo_engine.mark import Mark, Whole

_log = logging.getLogger("coopjax.hook")
_FORWARD = re.compile(rb"(?<!transpose\()jvp\(")  # in the names of instructions
_NO_LIMIT = 1 << 62  # bytes: what is held is held whatever the program takes


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
    unaided_bytes: before the HLO engine did anything; 0 where it was not asked.
  """

  message: str
  budget_bytes: int
  smallest_bytes: int
  counted_bytes: int = 0
  op: str = ""
  largest: tuple[tuple[int, str, str], ...] = ()
  is_refused: bool = False
  unaided_bytes: int = 0

  def error(self) -> BudgetInfeasibleError:
    return BudgetInfeasibleError(
      self.message,
      budget_bytes=self.budget_bytes + self.counted_bytes,
      smallest_bytes=self.smallest_bytes + self.counted_bytes,
      op=self.op,
      largest=tuple(map(tuple, self.largest)),
    )


class Repeated(NamedTuple):
  """What the HLO engine did to a program that it has to repeat much in.

  Attributes:
    budget_bytes: allowed temporaries.
    unaided_bytes: those of the program as it came.
    flops: repeated.
  """

  budget_bytes: int
  unaided_bytes: int
  flops: float


class Inside(Protocol):
  """A function with a mark, inside of any number of programs: what it knows of them when they are compiled.

  Attributes:
    request: what is asked of the function.
    is_left: the function is left as it is, which takes no more alone with its gradient.
    most_flops: that the HLO engine repeats in a program without other ways being looked for; infinite where there are
      none.
  """

  @property
  def request(self) -> Hashable: ...
  @property
  def is_left(self) -> bool: ...
  @property
  def most_flops(self) -> float: ...
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

  def in_another_way(self, program: compat.ProgramToCompile, found: Excess | Repeated) -> jax.stages.Lowered | None:
    """The program, lowered, with the function carried out in another way, by which it may hold its budget, or repeats
    less; None where there is more in it to decide on, or no such way.
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
  for_less = functions[0].in_another_way(program, refused)
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


def warn(message: str, category: type[Warning] = BudgetExceededWarning) -> None:
  """Warns of a program; where warnings are errors, which would fail the compile, the log is told."""
  try:
    errors.warn(message, category)
  except category:
    log(_log, logging.WARNING, message)


def has_both_passes(module_bytes: bytes) -> bool:
  """Whether a module has a function together with its gradient: alone, either is held to nothing in bytes."""
  return _FORWARD.search(module_bytes) is not None and b"transpose(jvp(" in module_bytes


def limit_of(held: Collection[Mark], resident_bytes: int) -> tuple[Budget, int, bool]:
  """What a program is held to, the temporaries that this leaves it, and whether more are an error."""
  budgets = ((each.budget, each.budget.resolve(0, resident_bytes), each.refuses) for each in held if each.budget)
  return min(budgets, key=lambda limit: limit[1:])


def limit_of_share(
  held: Mapping[Mark, Whole], program: compat.ProgramToCompile, executable: Any, inside: Mapping[str, Inside]
) -> tuple[Budget, int, bool] | None:
  """As `limit_of`, for what holds a program to a share of what it takes without remats; None where nothing is held.

  Where it is within the share of what a function in it takes alone, nothing is asked of what is around. Else it is
  compiled without remats, as far as its buffers are known.
  """
  temp_bytes, results_bytes = compat.temp_bytes_of(executable), compat.results_bytes_of(executable)
  least_bytes = min(whole.at_least(results_bytes, program.num_devices) for whole in held.values())
  share = min(whole.share for whole in held.values())
  if temp_bytes <= share * least_bytes:
    return Budget(share=share), _NO_LIMIT, False
  if not has_both_passes(compat.module_bytes_of(executable)):
    return None
  asked = {
    mark: whole for mark, whole in held.items() if mark.key not in inside or inside[mark.key].is_differentiated(program)
  }
  if not asked:
    return None
  share = min(whole.share for whole in asked.values())
  known = (each.unaided_bytes(program, temp_bytes / share) for each in inside.values())
  unaided_bytes = next((num_bytes for num_bytes in known if num_bytes is not None), None)
  budget = Budget(share=share)
  if unaided_bytes is None:
    warn(_unknown(program.name, temp_bytes, budget))
    return None
  return budget, budget.resolve(unaided_bytes), any(mark.refuses for mark in asked)


def excess_of(
  name: str, module_bytes: bytes, temp_bytes: int, budget: Budget, budget_bytes: int, refuses: bool
) -> Excess | None:
  """What there is to say of a program that the policy engine alone has planned and that is over its budget, by what it
  takes and its `limit_of`; None where it has not both passes, and so is held to nothing.
  """
  if not has_both_passes(module_bytes):
    return None
  message = (
    f"the program {name} takes {budget.taken(temp_bytes, budget_bytes)}, over its budget of "
    f"{budget.in_words(budget_bytes)}: it is not the program that the policy engine planned (there is more in it than "
    "a function and its gradient, a step was jitted after it was planned, with donation or shardings, or a GPU's "
    "kernels were chosen anew). coopjax.plan(step, *arguments, budget=...).apply(step) plans the whole step, jitted as "
    "it will run"
  )
  excess = Excess(message, budget_bytes, temp_bytes, budget.counted_bytes(budget_bytes), is_refused=refuses)
  try:
    error = why_infeasible(module_bytes, message, budget_bytes=budget_bytes, smallest_bytes=temp_bytes)
  except InvalidProgramError:  # XLA:TPU has instructions of its own
    return excess
  return excess._replace(message=str(error), op=error.op, largest=error.largest)


def _unknown(name: str, temp_bytes: int, budget: Budget) -> str:
  """What to say of a program that may be over its share."""
  return (
    f"the program {name} takes {format_bytes(temp_bytes)} of temporaries, which may be over its budget of {budget}: "
    "what it takes without its remats is not known here (traces around are a part of it, or it was traced under other "
    "settings of JAX). coopjax.plan(step, *arguments, budget=...) tells, and plans the whole step"
  )
