"""What a person would pick is among the candidates: around every layer that a region repeats, and in all regions."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest

from coopjax import compat
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.policy_engine.by_hand import name_sets
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.division import Division
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.rungs import Member
from coopjax.policy_engine.save_curves import CurvePoint
from tests.support.hand_rungs import LAYERS, RUNGS, by_hand, layer, loss, unrolled_arguments


def traced_layer():
  (weights, *_), x = unrolled_arguments()
  return differentiable(trace(layer, (x, weights[0])))


@pytest.mark.parametrize("rung", ["nothing", "queries", "with_context"])
def test_unrolled_layers_have_the_rungs_of_a_checkpoint_around_each(rung):
  args = unrolled_arguments()
  traced = differentiable(trace(loss, args))
  (found,) = (each for each in Candidates(traced, False).found if frozenset(RUNGS[rung]) in each.name_sets)
  assert len(found.decisions.regions[0].segments) in (LAYERS, LAYERS + 1)
  hand = jax.value_and_grad(by_hand(RUNGS[rung], True), argnums=(0, 1))
  assert num_products(*fn_and_gradient(traced, rewrite(traced, found.decisions))) == num_products(hand, args)


def num_products(fn, args):
  """In its jaxpr, inside calls and checkpoints, too."""

  def count(jaxpr):
    is_product = (equation.primitive.name == "dot_general" for equation in jaxpr.eqns)
    return sum(is_product) + sum(count(body) for each in jaxpr.eqns for body in compat.sub_jaxprs(each))

  return count(compat.dce(jax.make_jaxpr(fn)(*args)))


def test_what_is_no_layer_is_left_alone():
  def head(x, weights):
    return jnp.square(jnp.tanh(x @ weights)).mean()

  traced = differentiable(trace(head, (jnp.ones((8, 16)), jnp.ones((16, 32)))))
  assert not any(each.is_by_hand for each in Candidates(traced, False).found)


def test_regions_of_a_step_save_the_same_names():
  members = [Member(key, traced_layer(), num_runs, num_runs) for key, num_runs in (("encoder", 2), ("decoder", 4))]
  found = [each for each in Division(members, only_scans=False).found if each.is_by_hand]
  assert len(found) == len({each.decisions for each in found}) > 2 ** (len(RUNGS["with_context"]) - 1)
  for each in found:
    saved = {
      tuple(leaf.saved for region in share.decisions.regions for leaf, _ in region.leaves) for share in each.decisions
    }
    assert len(saved) == 1
  bare = max(found, key=lambda each: each.flops)
  assert bare.flops == 6 * max(
    c.flops for c in Candidates(traced_layer(), False, ends_forward=False).found if c.is_by_hand
  )


@dataclasses.dataclass(frozen=True)
class _Layer:
  """Each name spares FLOPs and takes bytes; two of them spare the same ones."""

  spared: dict[str, tuple[int, int]]
  position: int = 0

  @property
  def names(self):
    return self.spared

  def saving(self, names, /):
    chosen = [self.spared[name] for name in sorted(names) if name in self.spared]
    num_bytes, flops = sum(size for size, _ in chosen), sum({flops for _, flops in chosen})
    return CurvePoint(num_bytes, 1000.0 - flops, True, tuple((i, 0) for i in range(len(chosen))))


@pytest.mark.parametrize("num_names", [6, 8, 9, 11])
def test_each_set_of_names_is_a_rung_or_far_worse_than_another(num_names):
  layer = _Layer({f"name {i}": (10 + 7 * (i * i % 5), 3 + (i % 9) ** 2) for i in range(num_names)})
  kept = name_sets([layer])
  assert [*kept.values()] == [[layer.saving(chosen)] for chosen in kept]
  subsets = [frozenset(chosen) for size in range(num_names + 1) for chosen in itertools.combinations(layer.names, size)]
  for chosen in subsets:
    point = layer.saving(chosen)
    beaten = any(
      other.flops <= point.flops and other.saved_bytes < 0.9 * point.saved_bytes for (other,) in kept.values()
    )
    assert (chosen in kept) or (beaten and num_names > 8)
  assert all(frozenset([name]) in kept for name in layer.names)
  assert num_names <= 8 or len(kept) < len(subsets)
