"""Layers and lines of the users' own, whatever library the layers are from."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

import coopjax
from coopjax.program import layers
from coopjax.program.step_program import PARAMETER
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


@pytest.mark.parametrize(
  "made, differentiated, first",
  [
    (Equinox, lambda loss: eqx.filter_jit(eqx.filter_grad(loss)), "dynamic_nodonate['first'][0:2]"),
    (NNX, lambda loss: nnx.jit(nnx.grad(loss)), "args[0].states[0][0:2]"),
  ],
)
def test_layers_are_told_under_the_jits_of_libraries_which_pass_a_list_of_leaves(made, differentiated, first):
  compiled = differentiated(lambda net, x: jnp.mean(net(x) ** 2)).lower(made(), jnp.ones((256, 32))).compile()
  profile = coopjax.inspect(compiled)  # the library's own `Compiled`
  found = {group.key for group in profile.grouped(profile.at_peak(), "layer")}
  assert {first, first.replace("0:2", "2:4")} <= found


def told(*paths, types=None):
  return layers.layers_of_arguments(paths, types or ["f32[8]"] * len(paths))


def test_a_layer_is_its_arguments_path_to_the_first_number():
  assert told("net.blocks[12].up.layers[0].weight") == ["net.blocks[12]"]
  assert told("v['params']['Block_3']['Dense_0']", "v['params']['Head']") == ["v['params']['Block_3']", ""]
  assert told("x") == [""] and told("weights[0]", "weights[1]") == ["weights[0]", "weights[1]"]


def test_the_number_of_a_layer_has_equals_beside_it():
  assert told("args[0]['blocks'][0]['w']", "args[0]['blocks'][1]['w']", "args[1]") == [
    "args[0]['blocks'][0]",
    "args[0]['blocks'][1]",
    "",
  ]


def test_what_repeats_in_a_list_of_leaves_is_a_layer():
  place, block = "args[0].states[0][{}]".format, ["f32[8,8]", "f32[8]", "f32[8,8]", "f32[8]", "f32[8,32]"]
  types = ["f32[99,8]", *block * 3, "f32[8]", "f32[8,99]"]  # an embedding, three layers, a norm and a head
  expected = [place("1:6")] * 5 + [place("6:11")] * 5 + [place("11:16")] * 5
  numbers = range(len(types))
  assert told(*map(place, numbers), types=types) == [place(0), *expected, place(16), place(17)]
  left = [number for number in numbers if number != 7]  # JAX leaves out what a program does not read
  assert told(*map(place, left), types=[types[number] for number in left]).count(place("6:11")) == 4
  keys = ["x[1]", "x[2000000000]", "x['3']", "x['8000000000']"]
  assert told(*keys) == keys
  assert told(*map(place, range(4)), types=["f32[2]", "f32[4]", "f32[8]", "f32[16]"]) == list(map(place, range(4)))


def test_arguments_that_are_not_the_programs_tell_nothing():
  program = programs.forward_backward(4)
  num_given = sum(
    kind == PARAMETER and producer < 0 for kind, producer in zip(program.value_kind, program.value_producer)
  )
  assert not any(layers.layers_of_ops(program, ["net.blocks[0]"] * (num_given + 1)))
