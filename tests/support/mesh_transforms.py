"""`coopjax.remat` inside and around `shard_map`, named `vmap`s and sharded jits: a program of its own for 8 devices.

Each case is compared with the same under `jax.checkpoint`; its temporaries, one device's, with the budget.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import coopjax
from tests.support import models, quick

WEIGHTS = models.normal(1, 6, 64, 64)
X = models.normal(2, 4096, 64)
AUTO = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Explicit,) * 2)


def local_loss(weights, x):
  for weight in weights:
    x = jnp.tanh(x @ weight)
  return jnp.mean(x**2)


def loss(weights, x):
  """Of one device's rows, averaged over the devices."""
  return jax.lax.pmean(local_loss(weights, x), "data")


def scanned_loss(weights, x):
  x, _ = jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)
  return jax.lax.pmean(jnp.mean(x**2), "data")


def gathering_loss(weights, x):
  """Weights are split over the devices and gathered layer by layer."""
  for weight in weights:
    x = jnp.tanh(x @ jax.lax.all_gather(weight, "data", axis=0, tiled=True))
  return jax.lax.pmean(jnp.mean(x**2), "data")


def sharded(fn, weights=P(), **kwargs):
  return jax.shard_map(fn, mesh=AUTO, in_specs=(weights, P("data")), out_specs=P(), **kwargs)


def inside(remat):
  return jax.grad(sharded(remat(loss))), WEIGHTS, X


def inside_unchecked(remat):
  return jax.grad(sharded(remat(loss), check_vma=False)), WEIGHTS, X


def inside_partly_manual(remat):
  return jax.grad(sharded(remat(loss), axis_names={"data"})), WEIGHTS, X


def gradient_inside(remat):
  gradient = jax.shard_map(jax.grad(remat(loss)), mesh=AUTO, in_specs=(P(), P("data")), out_specs=P())
  return gradient, WEIGHTS, X


def scan_inside(remat):
  return jax.grad(sharded(remat(scanned_loss))), WEIGHTS, X


def collectives_inside(remat):
  return jax.grad(sharded(remat(gathering_loss), P(None, "data"))), WEIGHTS, X


def around(remat):
  return jax.grad(remat(sharded(loss))), WEIGHTS, X


def named_vmap(remat):
  batched = jax.vmap(remat(loss), in_axes=(None, 0), axis_name="data")
  return jax.grad(lambda weights, x: batched(weights, x).sum()), WEIGHTS, X.reshape(4, 1024, 64)


def sharded_inputs(remat):
  put = lambda value, spec: jax.device_put(value, NamedSharding(AUTO, spec))
  return jax.grad(remat(local_loss)), put(WEIGHTS, P(None, None, "model")), put(X, P("data"))


def explicit_sharding(remat):
  put = lambda value, spec: jax.device_put(value, NamedSharding(EXPLICIT, spec))
  return jax.grad(remat(local_loss)), put(WEIGHTS, P()), put(X, P("data"))


def constraints(remat):
  constrain = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(AUTO, P("data")))
  return jax.grad(remat(lambda weights, x: local_loss(weights, constrain(x)))), WEIGHTS, X


CASES = (
  inside,
  inside_unchecked,
  inside_partly_manual,
  gradient_inside,
  scan_inside,
  collectives_inside,
  around,
  named_vmap,
  sharded_inputs,
  explicit_sharding,
  constraints,
)
# The HLO engine keeps what a collective makes and what a loop stacks. Only inside a `shard_map` does a trace show one
# device's program: elsewhere the policy engine would plan for the whole.
ENGINES = {
  inside: ("hlo", "policy"),
  inside_unchecked: ("hlo", "policy"),
  inside_partly_manual: ("policy",),
  gradient_inside: ("policy",),
  scan_inside: ("auto",),
  collectives_inside: ("policy", "auto"),
  named_vmap: ("hlo", "policy"),
}
SHARES = {sharded_inputs: 0.9}


def compiled(case, remat):
  fn, *args = case(remat)
  return jax.jit(fn).lower(*args).compile(), args


def main(names):
  for case in [case for case in CASES if case.__name__ in names] if names else CASES:
    plain, args = compiled(case, lambda fn: fn)
    checkpointed, _ = compiled(case, jax.checkpoint)
    for engine in ENGINES.get(case, ("hlo",)):
      # Six layers leave little room for segments, and the policy engine plans the gradient of all arguments.
      share, allowed = (0.7, 0.8) if engine == "policy" else (SHARES.get(case, 0.6),) * 2
      fitted, _ = compiled(case, functools.partial(coopjax.remat, budget=share, engine=engine))
      temp, plain_temp = (each.memory_analysis().temp_size_in_bytes for each in (fitted, plain))
      print(f"{case.__name__} {engine}: {plain_temp} -> {temp} bytes a device", flush=True)
      np.testing.assert_allclose(fitted(*args), checkpointed(*args), rtol=1e-5, atol=1e-8)
      assert temp <= allowed * plain_temp, f"{case.__name__} under {engine}: {temp} of {plain_temp} bytes"


if __name__ == "__main__":
  quick.be_quick()
  jax.config.update("jax_disable_most_optimizations", True)  # bytes, and numbers within rounding
  main(sys.argv[1:])
