"""Two small steps, compiled once, and what stands in a scheduled module: for tests of every program's hook."""

import functools
import os

import jax

from tests.support import models
from tests.support.checks import compile_step
from tests.support.hlo_proto import Module

GPT = models.gpt(depth=1)
MLP = models.mlp(depth=8, batch=512)  # 128 KiB a layer


def plain(name="gpt"):
  return _plain(name, os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"])  # compiled once for each


@functools.cache
def _plain(name, _):
  return compile_step(*{"gpt": GPT, "mlp": MLP}[name])


def step_of(loss):
  """A jitted function that no cache knows."""
  return jax.jit(lambda *args: jax.value_and_grad(loss)(*args))


def sequence(module_bytes, opcodes_left_out=()):
  """Names of the entry's instructions in the order in which they run."""
  module = Module(module_bytes)
  names = {each.id: each.name for each in module.instructions if each.opcode not in opcodes_left_out}
  return [names[each] for each in module.sequence if each in names]
