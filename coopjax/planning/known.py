"""What was made of functions in this process, whatever they were planned for: under the same checkpoints, one takes the
same.
"""

import dataclasses

import jax.core

from coopjax.budget import Budget
from coopjax.jaxpr.trace import TracedFn
from coopjax.planning.kept import program_key
from coopjax.planning.made_once import Results
from coopjax.planning.request import Request

_of_functions = Results(16)  # modules among it


def known_of(traced: TracedFn, request: Request) -> Results:
  """What was made of a function, for requests that differ in their budgets alone. Of constants, what XLA makes depends
  on what they are.
  """
  if not all(isinstance(const, jax.core.Tracer) for const in traced.consts):
    return Results()
  whatever = dataclasses.replace(request, budget=Budget(share=1.0), on_infeasible="error", tells_least=True, after=None)
  return _of_functions.once((program_key(traced), whatever), Results)
