"""Checkpoints around checkpoints: the fewest FLOPs for the room there is, and compiled programs that show it."""

import functools
import itertools

import jax
import numpy as np
import pytest

import coopjax
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.policy_engine.by_hand import NESTED
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.nesting import Chain, nestings
from coopjax.policy_engine.rewrite import rewrite
from tests.support import hand_rungs, models
from tests.support.checks import assert_close, num_dots, temp_bytes


def random_chain(rng, num, is_open):
  """Small whole bytes, so that the grid is exact."""
  out = rng.integers(1, 6, num)
  plain = np.full(num, -1)
  if is_open:
    plain[-1] = 5
  if num > 4:
    plain[2] = 1  # side effects
  made = [[int(out[j - 1]) if i < j else 0 for j in range(num + 1)] for i in range(num + 1)]
  forward = rng.integers(1, 9, num).astype(float)
  return Chain(
    tuple(range(0, 3 * num + 1, 3)), np.array(made), rng.integers(3, 12, num), forward, forward, plain, is_open
  )


def trees(start, stop):
  """All ways to run segments [start, stop) in pieces: tuples of segments and, in turn, groups of them."""
  yield from ((piece,) for piece in pieces(start, stop))
  for middle in range(start + 1, stop):
    for first, rest in itertools.product(pieces(start, middle), trees(middle, stop)):
      yield (first, *rest)


def pieces(start, stop):
  """One segment, or the groups of several."""
  if stop == start + 1:
    return [start]
  return [
    (first, *rest)
    for middle in range(start + 1, stop)
    for first, rest in itertools.product(pieces(start, middle), trees(middle, stop))
  ]


def ends(piece):
  return (piece, piece + 1) if isinstance(piece, int) else (ends(piece[0])[0], ends(piece[-1])[1])


def run_backward(chain, tree, plain, is_top=True):
  """Bytes at the peak and FLOPs repeated, by going through it: forward to the last piece, then back, piece by piece."""
  held, flops, peak = [], 0.0, 0
  for piece in tree:
    start, stop = ends(piece)
    if plain[start:stop].any() and not (is_top and isinstance(piece, int)):
      return np.inf, np.inf  # must not be repeated
    held.append(chain.kept_bytes(start, stop))
    if not is_top and piece != tree[-1]:
      flops += chain.forward_flops[start:stop].sum()
  while held:
    held.pop()
    piece = tree[len(held)]
    if isinstance(piece, int):
      own, again = chain.inside_bytes[piece], 0.0 if plain[piece] else chain.repeated_flops[piece]
    else:
      own, again = run_backward(chain, piece, plain, is_top=False)
    flops, peak = flops + again, max(peak, sum(held) + own)
  return peak, flops


@pytest.mark.parametrize("seed", range(12))
def test_no_other_nesting_repeats_less_in_as_many_bytes(seed):
  rng = np.random.default_rng(seed)
  chain = random_chain(rng, 3 + seed % 4, is_open=seed % 3 > 0)
  for is_closed in {False, chain.is_open}:
    plain = chain.plain_bytes >= 0
    plain[-1] &= not is_closed
    every = [run_backward(chain, tree, plain) for tree in trees(0, chain.num_segments)]
    found = [nesting for nesting in nestings(chain) if nesting.is_closed == is_closed]
    for nesting in found:
      assert nesting.flops == min(flops for peak, flops in every if peak <= nesting.peak_bytes)
      assert any(peak == nesting.peak_bytes and flops == nesting.flops for peak, flops in every)
    least = min(peak for peak, flops in every if flops <= 4 * chain.forward_flops.sum())
    flat, _ = run_backward(chain, tuple(range(chain.num_segments)), plain)
    assert min((nesting.peak_bytes for nesting in found), default=flat) == least


def test_no_nesting_repeats_more_than_four_forward_passes():
  num = 40
  out = np.triu(np.ones((num + 1, num + 1)), 1)
  chain = Chain(tuple(range(num + 1)), out, np.ones(num), np.ones(num), np.ones(num), np.full(num, -1), False)
  found = list(nestings(chain))
  assert max(nesting.flops for nesting in found) <= 4 * num
  # With one boundary at a time it would be twenty; with a few it is four.
  assert min(nesting.peak_bytes for nesting in found) <= 8


def test_groups_and_their_pieces_cover_the_region_and_effects_stay_outside():
  chain = random_chain(np.random.default_rng(3), 8, is_open=True)
  found = list(nestings(chain))
  assert found
  for nesting in found:
    leaves = [leaf for segment in nesting.segments for leaf in segment.leaves]
    assert [leaf.start for leaf, _ in leaves] == list(chain.bounds[:-1])
    plain = chain.plain_bytes >= 0
    plain[-1] &= not nesting.is_closed
    assert [is_repeated for _, is_repeated in leaves] == (~plain).tolist()


def test_an_unrolled_model_goes_below_what_one_level_of_segments_takes():
  loss, *arguments = models.mlp(depth=32, width=128, batch=2048)
  traced = differentiable(trace(loss, arguments))
  bare = [one for one in Candidates(traced, False).found if one.is_bare]
  is_flat = lambda one: not any(segment.inner for region in one.decisions.regions for segment in region.segments)
  flat = min(one.estimated_bytes for one in bare if is_flat(one))
  assert min(one.estimated_bytes for one in bare) < 0.5 * flat
  plain = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arguments).compile()
  # 33 activations of 1 MiB as it is, 11 or so in the best segments of one level.
  plan = coopjax.plan(loss, *arguments, budget="7 MiB", engine="policy")
  assert plan.fits and plan.measured.temp_bytes <= 7 * 2**20 < 0.25 * temp_bytes(plain)
  (region,) = plan.policy.regions
  assert any(segment.inner for segment in region.segments)
  assert coopjax.RematPlan.from_json(plan.to_json()) == plan
  fitted = jax.jit(jax.value_and_grad(plan.apply(loss), (0, 1))).lower(*arguments).compile()
  assert temp_bytes(fitted) <= 7 * 2**20
  assert num_dots(fitted) >= num_dots(plain) + 40  # more than once for every layer
  assert_close(fitted(*arguments), plain(*arguments))


def test_groups_of_blocks_as_people_nest_them_are_candidates():
  layers, of = hand_rungs.LAYERS, 2
  (weights,), x = hand_rungs.unrolled_arguments()
  traced = differentiable(trace(hand_rungs.loss, ([weights], x)))
  found = [each for each in Candidates(traced, False).found if NESTED in each.name_sets]
  (halves,) = {each.decisions for each in found if sum(bool(one.inner) for one in each.decisions.top.segments) == of}
  groups = [segment for segment in halves.top.segments if segment.inner]
  assert all(piece.is_wrapped for group in groups for piece in group.inner)
  block = jax.checkpoint(hand_rungs.layer)
  group = jax.checkpoint(lambda x, weights: functools.reduce(block, weights, x))

  def by_hand(stacks, x):
    (stack,) = stacks
    for start in range(0, layers, of):
      x = group(x, stack[start : start + of])
    return jax.numpy.square(x).mean()

  args = [weights], x
  ours, hand = (
    jax.jit(fn).lower(*args).compile() for fn in (gradient(traced, halves), jax.value_and_grad(by_hand, (0, 1)))
  )
  assert (
    num_dots(ours)
    == num_dots(hand)
    > num_dots(jax.jit(jax.value_and_grad(hand_rungs.loss, (0, 1))).lower(*args).compile())
  )
  assert abs(temp_bytes(ours) - temp_bytes(hand)) <= 0.01 * temp_bytes(hand)


def gradient(traced, decisions):
  flat_fn, _ = fn_and_gradient(traced, rewrite(traced, decisions))
  return lambda *args: flat_fn(*jax.tree.leaves(args))


@pytest.mark.sweep
@pytest.mark.parametrize(("depth", "of"), [(9, 3), (8, 2)])
def test_a_plan_repeats_no_more_than_checkpoints_around_blocks_and_groups_of_them(depth, of):
  def loss(stacks, x, wrap_group=lambda group: group, wrap_block=lambda block: block):
    def mlp(x, up, down, gain):
      y = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain
      return x + jax.nn.gelu(y @ up) @ down

    block = wrap_block(mlp)

    def group(x, layers):
      for layer in layers:
        x = block(x, *layer)
      return x

    layers = list(zip(*stacks, strict=True))
    for start in range(0, depth, of):
      x = wrap_group(group)(x, layers[start : start + of])
    return (x * x).mean()

  stacks = [[models.normal(i, *shape) for i in range(depth)] for shape in ((64, 256), (256, 64), (64,))]
  args = stacks, models.normal(99, 512, 64, scale=1.0)
  by_hand = functools.partial(loss, wrap_group=jax.checkpoint, wrap_block=jax.checkpoint)
  compiled = lambda fn: jax.jit(jax.value_and_grad(fn)).lower(*args).compile()
  flops = lambda fn: cost.jaxpr_flops(jax.make_jaxpr(jax.value_and_grad(fn))(*args).jaxpr)
  plan = coopjax.plan(loss, *args, budget=temp_bytes(compiled(by_hand)), engine="policy", argnums=0)
  ours, as_it_is = compiled(plan.apply(loss)), compiled(loss)
  assert temp_bytes(ours) <= temp_bytes(compiled(by_hand)) < temp_bytes(as_it_is)
  assert flops(loss) < flops(plan.apply(loss)) <= flops(by_hand)
  assert num_dots(ours) > num_dots(as_it_is)
  assert_close(ours(*args), as_it_is(*args), rtol=1e-4, atol=1e-6)
