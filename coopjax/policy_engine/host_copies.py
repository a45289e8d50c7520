"""A segment of straight-line code whose residuals lie in the host's memory.

`jax.checkpoint` can offload by itself, and in the body of a scan that is what happens (`rewrite`): a step's copies are
tied to the step. In straight-line code nothing ties them. XLA starts the copy out when the copy back wants it, which
is in the backward pass, and nothing is freed (eight-layer perceptron, H100, JAX 0.12.0.1: 552 MiB under checkpoints,
2256 with the checkpoints' inputs offloaded by a policy, 348 the way it is done here). So the segment appears twice:

- It runs once forward, without derivatives. A barrier on its outputs and its copies on the host makes whatever comes
  next wait for the copies, which have the time of the segment to finish.
- It runs again under a checkpoint whose inputs are the copies. The values made from these take the tangents of those
  that they replace (`substitute`), so the derivatives are right, at any order, and the recompute starts at the copies.
  Of this run only the backward pass is alive; nobody reads its forward results, and XLA removes them (outside of a
  `jax.jit` nothing does).

In a region that offloads, every segment has a barrier on its inputs besides. Its transpose is a barrier on their
cotangents. Without it XLA:GPU, which schedules for latency once there are asynchronous copies, puts all weight
gradients at the end and keeps what they read.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr.trace import is_floating

RunFn = Callable[[dict[core.Var, Any], dict[core.Var, Any]], None]


@jax.custom_jvp
def substitute(value: Any, original: Any) -> Any:
  """`value` for what it is, with the derivatives of `original`; the two are equal."""
  del original
  return value


@substitute.defjvp
def _substitute_jvp(primals, tangents):
  return substitute(*primals), tangents[1]


def run(
  segment: RunFn,
  inputs: dict[core.Var, Any],
  outvars: Sequence[core.Var],
  kept: Sequence[core.Var],
  offloaded: Sequence[core.Var],
) -> dict[core.Var, Any]:
  """Runs a segment and offloads for its backward pass.

  Args:
    segment: evaluates it in an environment of its inputs, in which it leaves what it makes; after each equation it
      puts what its second argument has for an output in that output's place.
    inputs: by variable.
    outvars: what is read later.
    kept: made in the segment, saved on the device.
    offloaded: inputs, or made in the segment.

  Returns:
    The values of `outvars`.
  """
  env = {var: jax.lax.stop_gradient(value) for var, value in inputs.items()}
  segment(env, {})
  outs, hosts = jax.lax.optimization_barrier(
    ([env[var] for var in outvars], [jax.device_put(env[var], jax.memory.Space.Host) for var in offloaded])
  )

  def again(inputs, kept_values, hosts):
    inner = dict(zip(variables, inputs, strict=True))
    known = dict(zip(kept, kept_values, strict=True))
    known |= {var: jax.device_put(host, jax.memory.Space.Device) for var, host in zip(offloaded, hosts, strict=True)}
    inner |= {var: _substituted(known[var], value) for var, value in inner.items() if var in known}
    segment(inner, known)
    return [inner[var] for var in outvars]

  variables = list(inputs)
  # What is on the host must not be held on the device by the checkpoint's barrier; of it only tangents are wanted.
  in_barrier = [var not in offloaded for var in variables]
  checkpointed = compat.pinned_checkpoint(again, policy=None, prevent_cse=(in_barrier, True, True), is_classic=True)
  differentiable = checkpointed([inputs[var] for var in variables], [env[var] for var in kept], hosts)
  return {var: _substituted(out, value) for var, out, value in zip(outvars, outs, differentiable, strict=True)}


def replace(env: dict[core.Var, Any], known: dict[core.Var, Any], outvars: Sequence[core.Var]) -> None:
  """What a segment does after each equation: puts known values in place of the equation's outputs."""
  for var in outvars:
    if var in known:
      env[var] = _substituted(known[var], env[var])


def _substituted(value: Any, original: Any) -> Any:
  return substitute(value, original) if is_floating(jax.typeof(original)) else value
