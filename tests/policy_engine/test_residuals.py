"""What JAX would keep for the backward pass, where to cut it, and what to save."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.cuts import bytes_between, cut
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.residuals import forward_graph
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.save_curves import save_curve
from tests.support import models
from tests.support.policy_models import decoder


def mlp_graph(depth=4, width=8, batch=16):
  loss, weights, x = models.mlp(depth, width, batch)
  traced = trace(loss, (weights, x))
  return forward_graph(traced.jaxpr, traced.is_differentiable)


def test_residuals_of_an_mlp():
  # dot, tanh per layer; then square, sum, divide. Each tanh keeps its output (16 x 8 floats = 512 bytes), which
  # also serves the next dot; 1 - y^2 is made from it where it is read.
  graph = mlp_graph()
  assert graph.residual_bytes().tolist() == [0, 512] * 4 + [0, 0, 0]
  # Layers 1 and 2 repeated from layer 0's output: two dots of 2*16*8*8 and two tanh of 8*16*8 FLOPs. That the rule of
  # tanh also makes 1 - y^2 is no repeat: the backward pass makes it in place of the forward pass.
  assert repeated_flops(graph, 2, 6) == 2 * 2048 + 2 * 1024
  # Keeping the first dot's output spares that dot alone: tanh reads its own result.
  saved = graph.named.index((2, 0))
  assert repeated_flops(graph, 2, 6, [saved]) == 2048 + 2 * 1024


def gated(weights, x):
  for weight in weights:
    x = x + (jax.nn.gelu(x @ weight) * jax.nn.silu(x)) @ weight.T
  return jnp.mean(x**2)


def scanned(weights, x):
  def turn(x, weight):
    y = jax.lax.scan(lambda y, _: (jnp.tanh(y @ weight) ** 3, None), x, length=2)[0]
    return x + jax.nn.softmax(y), None

  return jnp.mean(jax.lax.scan(turn, x, jnp.stack(weights))[0])


@pytest.mark.parametrize("loss", [gated, scanned])
def test_what_a_checkpoint_repeats_is_what_is_traced_beyond_the_plain_gradient(loss):
  _, weights, x = models.mlp(4, 16, 32)
  traced = differentiable(trace(loss, (weights, x)))

  def flops(flat_fn):
    fn, avals = fn_and_gradient(traced, flat_fn)
    return cost.jaxpr_flops(compat.dce(jax.make_jaxpr(fn)(*avals)))

  plain = flops(traced.evaluate)
  found = [candidate for candidate in Candidates(traced, False).found if candidate.flops]
  found = sorted(found, key=lambda candidate: candidate.flops)[:: max(len(found) // 8, 1)]
  assert len(found) > 3
  for candidate in found:
    assert candidate.flops == pytest.approx(flops(rewrite(traced, candidate.decisions)) - plain, rel=0.01)


def repeated_flops(graph, start, stop, saved=()):
  """The obvious version: walk back from the residuals, stop at what is saved or comes from outside."""
  inside = lambda value: start <= graph.value_position[value] < stop and value not in saved
  needed = set(filter(inside, graph.residuals))
  flops = 0.0
  for position in reversed(range(start, stop)):
    for op in reversed(graph.ops[position]):
      if needed & set(op.outputs):
        flops += op.flops
        needed |= set(filter(inside, op.inputs))
  return flops


def random_graph(rng, num):
  """A region whose position i makes value i; crossing values and residual bytes at random."""
  sizes = tuple(int(s) for s in rng.integers(1, 9, num))
  crossing = np.array([(i, int(rng.integers(i + 1, num)), sizes[i]) for i in range(num - 1)])
  residuals = frozenset(int(i) for i in np.flatnonzero(rng.random(num) < 0.7))
  return ForwardGraph(
    ops=((),) * num,
    primitives=tuple(map(str, range(num))),  # none is like another
    value_bytes=sizes,
    value_root=tuple(range(num)),
    value_position=tuple(range(num)),
    named=(None,) * num,
    makers={},
    carried={},
    first_read=tuple(range(num)),
    residuals=residuals,
    kept_roots=residuals,
    crossing=crossing,
    cotangents=crossing,
    flops=(1.0,) * num,
  )


@pytest.mark.parametrize("seed", range(20))
def test_cut_finds_the_fewest_bytes_between_segments(seed):
  graph = random_graph(np.random.default_rng(seed), 9)
  alone = frozenset({4}) if seed % 2 else frozenset()
  residuals = graph.residual_bytes()

  def largest(bounds):
    return max(residuals[a:b].sum() for a, b in itertools.pairwise(bounds))

  every = [(0, *inner, 9) for k in range(9) for inner in itertools.combinations(range(1, 9), k)]
  every = [bounds for bounds in every if all({p, p + 1} <= set(bounds) for p in alone)]
  found = cut(graph, alone)
  assert found
  for bounds in found:
    assert bounds in every
    best = min(bytes_between(graph, other).sum() for other in every if largest(other) <= largest(bounds))
    assert bytes_between(graph, bounds).sum() == best


def test_save_curve_spares_what_it_says_and_ends_with_nothing_repeated():
  loss, params, ids = decoder(depth=2)
  traced = trace(loss, (params, ids))
  graph = forward_graph(traced.jaxpr, traced.is_differentiable)
  curve = save_curve(graph, 0, graph.num_positions)
  assert curve[0].saved == () and curve[0].flops == repeated_flops(graph, 0, graph.num_positions)
  assert not curve[-1].is_wrapped and curve[-1].flops == 0
  for a, b in itertools.pairwise(curve):
    assert a.saved_bytes < b.saved_bytes and a.flops > b.flops
  for point in curve[:-1]:
    saved = [graph.named.index(value) for value in point.saved]
    assert repeated_flops(graph, 0, graph.num_positions, saved) == pytest.approx(point.flops)
    assert sum(graph.value_bytes[value] for value in saved) == point.saved_bytes
