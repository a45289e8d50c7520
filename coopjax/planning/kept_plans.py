"""Finished plans kept on disk: where the same program is planned again, one compile measures what was found before.

What is kept is the plan as JSON, under its program, its request and everything else that it depends on (`cache.Key`).
Only plans that hold their budget are. A kept plan is compiled like a new one; if that does not hold the budget any more
(a planner within a time limit need not find the same twice), the program is planned anew.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

from coopjax import compat
from coopjax.planning import cache
from coopjax.budget import Budget
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.memory_profile import MemoryProfile
from coopjax.planning.remat_plan import RematPlan
from coopjax.hlo_engine.mark import mark_of
from coopjax.planning.request import Request
from coopjax.hlo_engine import hook
from coopjax.xla import targets


def kept_or_made(program: str | None, request: Request, make: Callable[[], RematPlan],
                 measure: Callable[[RematPlan], MemoryProfile]) -> RematPlan:
  """The plan kept for a program and a request, measured again; else a new one.

  Args:
    program: identifies it, in every process; None for one whose plans are not kept.
    request: what is asked.
    make: plans it.
    measure: compiles it with a plan carried out.
  """
  if program is None:
    return make()
  start, key = time.perf_counter(), cache.Key(program, f"plan {request!r}", cache.environment())
  if plan := cache.load(key, _parse):
    planning_s = time.perf_counter() - start
    plan = dataclasses.replace(plan, measured=measure(plan), planning_s=planning_s)
    if plan.fits:
      return plan
  plan = make()
  if plan.fits and plan.engine != "none":
    cache.store(key, json.loads(plan.to_json()))
  return plan


def origin_of(*functions: TracedFn) -> str:
  """A hash of what a plan tells of traced functions besides their programs: names and source lines."""
  told = [(fn.name, [info.source for info in tag_jaxpr(fn.jaxpr)[1]]) for fn in functions]
  return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _parse(fields: dict[str, Any]) -> RematPlan:
  return RematPlan.from_json(json.dumps(fields))


def mark(plan: RematPlan, budget: Budget) -> str | None:
  """The mark for the HLO engine's part in a plan, where it is compiled for what it was planned for."""
  if "hlo" not in plan.engine:
    return None
  target = targets.running() if plan.target is None else targets.resolve(plan.target)
  hook.install(compat.hook_platform(target.platform))
  return mark_of(plan.fingerprint, budget, plan.planner, plan.time_limit_s, target.name)
