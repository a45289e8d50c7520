"""Steps whose layers stand under the user's own `jax.checkpoint`, as people write them: scanned, named, with optax."""

import functools

import jax
import optax

import coopjax
from coopjax import compat
from coopjax.jaxpr import cost
from tests.support import hand_rungs
from tests.support.checks import temp_bytes

OPTIMIZER = optax.sgd(0.1, momentum=0.9)
BUDGET = 4_600_000  # 11.2 MB without checkpoints, 3.9 with nothing saved, 5.6 with all names


def make_step(policy=None, wrap=jax.checkpoint, prevent_cse=False):
  """A jitted step with donated state over a scanned decoder with names; `wrap=None` for one without checkpoints."""
  layer = hand_rungs.layer if wrap is None else wrap(hand_rungs.layer, policy=policy, prevent_cse=prevent_cse)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def train_step(params, state, x):
    loss, grads = jax.value_and_grad(lambda params: hand_rungs.loss(params, x, layer))(params)
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

  return train_step


def arguments():
  """Fresh ones: a step donates its state."""
  stacks, x = hand_rungs.arguments(num_scans=1)
  return stacks, OPTIMIZER.init(stacks), x


def bytes_of(step, *args):
  quick = {"xla_backend_optimization_level": 0}  # of the code, which is not run: buffers are the same
  return temp_bytes(step.lower(*(args or arguments())).compile(compiler_options=quick))


def flops_of(step, *args):
  return cost.jaxpr_flops(compat.dce(jax.make_jaxpr(step)(*(args or arguments())).jaxpr))


@functools.cache
def planned(**keywords):
  """Of a step whose policy saves nothing."""
  return coopjax.plan(make_step(), *arguments(), **{"budget": BUDGET, "engine": "policy", **keywords})


@functools.cache
def plain_flops():
  return flops_of(make_step(wrap=None))


def saving(*names):
  return jax.checkpoint_policies.save_only_these_names(*names)
