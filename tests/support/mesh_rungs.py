"""Policies that people pick by hand, on 8 devices, beside plans for their bytes; as `mesh_budgets`."""

import sys

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import coopjax
from tests.support import hand_rungs, quick
from tests.support.checks import assert_close, temp_bytes
from tests.support.mesh_budgets import AUTO


def placed(value, spec):
  return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(AUTO, spec))


def named_values_of_layers_in_a_loop():
  """What a device holds of a value decides its cost."""
  stacks, x = hand_rungs.arguments(1)
  spec = lambda name: P(None, *(("model", "data") if name in ("out", "down") else ("data", "model")))
  args = [{name: placed(value, spec(name)) for name, value in stacks[0].items()}], placed(x, P("data"))
  hand = hand_rungs.by_hand(hand_rungs.RUNGS["with_context"])
  hand_bytes = temp_bytes(hand_rungs.compiled(hand, args))
  plan = coopjax.plan(hand_rungs.loss, *args, budget=hand_bytes, engine="policy")
  ours, theirs = no_more(plan, hand, args)
  # All of it is one device's, as what the HLO engine repeats: a mesh of 4 x 2 cuts the work into 8.
  assert ours <= theirs
  np.testing.assert_allclose(plan.recompute_flops, ours, rtol=0.1)


def unrolled_layers():
  """What devices share is known, too, where the HLO engine alone could do it."""
  stacks, x = hand_rungs.unrolled_arguments()
  args = jax.tree.map(lambda value: placed(value, P()), stacks), placed(x, P("data"))
  for rung in ("products", "with_context"):
    hand = hand_rungs.by_hand(hand_rungs.RUNGS[rung], is_unrolled=True)
    hand_bytes = temp_bytes(hand_rungs.compiled(hand, args))
    for engine in ("policy", "auto"):
      plan = coopjax.plan(hand_rungs.loss, *args, budget=hand_bytes, engine=engine)
      _, theirs = no_more(plan, hand, args)
      assert 0 < plan.recompute_flops <= theirs
      numbers = jax.device_put((stacks, x), jax.tree.map(lambda shape: shape.sharding, args))
      plain, planned = (hand_rungs.compiled(fn, args) for fn in (hand_rungs.loss, plan.apply(hand_rungs.loss)))
      assert_close(planned(*numbers), plain(*numbers), rtol=1e-4, atol=1e-6)


def no_more(plan, hand, args):
  """FLOPs that checkpoints of a plan, and those by hand, repeat on each device; the plan takes no more bytes."""
  fns = hand_rungs.loss, hand, plan.apply(hand_rungs.loss)
  plain, theirs, ours = (hand_rungs.flops(fn, args) / AUTO.size for fn in fns)
  hand_bytes, planned = temp_bytes(hand_rungs.compiled(hand, args)), hand_rungs.compiled(fns[2], args)
  print(f"{temp_bytes(planned)} of {hand_bytes} bytes, repeats {ours - plain} of {theirs - plain}")
  assert temp_bytes(planned) <= hand_bytes and ("rematted_computation" in planned.as_text()) == (plan.engine != "hlo")
  return ours - plain, theirs - plain


CASES = {case.__name__: case for case in (named_values_of_layers_in_a_loop, unrolled_layers)}

if __name__ == "__main__":
  quick.be_quick()
  for name in sys.argv[1:] or CASES:
    print(f"--- {name}", flush=True)
    CASES[name]()
