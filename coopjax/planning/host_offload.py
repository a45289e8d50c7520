"""Where host offload is possible: what a budget that allows it asks of backend and engine."""

import dataclasses

from coopjax.budget import Budget
from coopjax.errors import HostOffloadError, HostOffloadWarning, warn
from coopjax.jaxpr import user_policy
from coopjax.jaxpr.trace import TracedFn
from coopjax.policy_engine.offload import HostLink
from coopjax.xla import targets
from coopjax.xla.targets import Target

_REACHED = 0.5  # of its speed at its best, that a device reaches in training; its link to the host reaches nearly all
_ON_CPU = "a CPU's temporaries lie in the host's memory as it is, so there is nowhere to offload them to"
_IN_HLO = "engine='hlo' recomputes instructions and knows nothing of the host's memory; use 'policy' or 'auto'"


def admit(budget: Budget, engine: str, platform: str) -> tuple[Budget, str]:
  """The budget and the engine that carry a request out.

  Where the budget allows offload, "auto" is the policy engine; on a CPU it warns, and nothing is offloaded.

  Raises:
    HostOffloadError: the engine was named and can't offload, or the platform can't.
  """
  if not budget.offload:
    return budget, engine
  if engine == "hlo":
    raise HostOffloadError(f"budget={budget}: {_IN_HLO}")
  if platform != "cpu":
    return budget, "policy"
  if engine == "policy":
    raise HostOffloadError(f"budget={budget}: {_ON_CPU}; drop offload=True, or plan for a target such as 'gpu:h100'")
  budget = dataclasses.replace(budget, offload=False)
  warn(f"the budget of {budget} is planned without host offload: {_ON_CPU}", HostOffloadWarning)
  return budget, engine


def engine_for(traced: TracedFn, engine: str, platform: str) -> str:
  """The engine for a function whose own policy may offload: the policy engine carries that out, beside the budget.

  Raises:
    HostOffloadError: the policy offloads, and the HLO engine was named.
  """
  if traced.policy is None or platform == "cpu" or not user_policy.offloads(traced.jaxpr, traced.policy):
    return engine
  if engine == "hlo":
    raise HostOffloadError(f"the policy of {traced.name} offloads: {_IN_HLO}")
  return "policy"


def link(budget: Budget, target: Target | None) -> HostLink | None:
  """The way to the host of a target, of the default backend if None; None where the budget allows no offload."""
  if not budget.offload:
    return None
  device = target or targets.running()
  best = device.roofline
  rates = ("flops_per_s", "transcendentals_per_s", "bytes_per_s")
  roofline = dataclasses.replace(best, **{rate: _REACHED * getattr(best, rate) for rate in rates})
  is_for_loops = device.platform == "tpu"
  return HostLink(device.host_bytes_per_s, best.op_overhead_s, roofline, budget.host_bytes, is_for_loops=is_for_loops)
