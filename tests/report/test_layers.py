"""Layers and lines of the users' own, whatever library the layers are from."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

import coopjax
from coopjax.program.step_program import PARAMETER
from coopjax.report import layers
from tests.support import programs


class Equinox(eqx.Module):
  blocks: list

  def __init__(self):
    self.blocks = [eqx.nn.Linear(32, 32, key=jax.random.key(i)) for i in range(3)]

  def __call__(self, x):
    for block in self.blocks:
      x = jnp.tanh(jax.vmap(block)(x))
    return x


class NNX(nnx.Module):
  def __init__(self):
    self.blocks = nnx.List([nnx.Linear(32, 32, rngs=nnx.Rngs(i)) for i in range(3)])

  def __call__(self, x):
    for block in self.blocks:
      x = jnp.tanh(block(x))
    return x


class Linen(linen.Module):
  @linen.compact
  def __call__(self, x):
    for _ in range(3):
      x = jnp.tanh(linen.Dense(32)(x))
    return x


def equinox_case(x):
  return (lambda net, x: net(x)), Equinox()


def nnx_case(x):
  graph, params = nnx.split(NNX())
  return (lambda net, x: nnx.merge(graph, net)(x)), params


def linen_case(x):
  return Linen().apply, Linen().init(jax.random.key(0), x)


@pytest.mark.parametrize(
  "case, layer, argument",
  [
    (equinox_case, "net.blocks[{}]", "net.blocks[0].weight"),
    (nnx_case, "net['blocks'][{}]", "net['blocks'][0]['kernel'].value"),
    (linen_case, "net['params']['Dense_{}']", "net['params']['Dense_0']['kernel']"),
  ],
)
def test_layers_lines_and_arguments_are_the_users(case, layer, argument):
  x = jnp.ones((256, 32))
  apply, params = case(x)

  def loss(net, x):
    return jnp.mean(apply(net, x) ** 2)

  profile = coopjax.inspect(jax.jit(jax.grad(loss)).lower(params, x).compile())
  found = {group.key for group in profile.grouped(profile.at_peak(), "layer")}
  assert {layer.format(0), layer.format(1)} <= found
  residual = profile.at_peak()[0]
  assert residual.source.startswith(f"{__file__}:") and any(
    frame.startswith(f"{__file__}:") for frame in residual.frames
  )
  assert argument in {buffer.argument for buffer in profile.arguments}


def test_a_layer_is_its_arguments_path_to_the_first_number():
  assert layers.layer_of_argument("net.blocks[12].up.layers[0].weight") == "net.blocks[12]"
  assert layers.layer_of_argument("v['params']['Block_3']['Dense_0']") == "v['params']['Block_3']"
  assert layers.layer_of_argument("x") == ""


def test_arguments_that_are_not_the_programs_tell_nothing():
  program = programs.forward_backward(4)
  num_given = sum(
    kind == PARAMETER and producer < 0 for kind, producer in zip(program.value_kind, program.value_producer)
  )
  assert not any(layers.layers_of_ops(program, ["net.blocks[0]"] * (num_given + 1)))
