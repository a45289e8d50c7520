"""Programs of 8 devices."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from .networks import mlp, mlp_loss
from .program import Program, mesh, normal, program, step
from .sequences import gpt


@program
def sharded_data_parallel_step():
  weights, x = mlp()
  return Program(step(mlp_loss), (weights, x), donated=(0,), specs=(P(), P("data")))


@program
def sharded_tensor_parallel_gpt_step():
  loss, args = gpt()
  block = {"qkv": P(None, "model"), "out": P("model"), "up": P(None, "model"), "down": P("model")}
  specs = ({"embed": P(), "blocks": [block] * len(args[0]["blocks"])}, P("data"))
  return Program(step(loss), args, donated=(0,), specs=specs)


@program
def sharded_scanned_fsdp_gpt_step():
  loss, args = gpt(depth=4, is_scanned=True)
  specs = ({"embed": P(), "blocks": dict.fromkeys(args[0]["blocks"], P("data"))}, P("data"))
  return Program(step(loss), args, donated=(0,), specs=specs)


def _on_each_device(fn, in_specs, out_specs):
  return jax.shard_map(fn, mesh=mesh(), in_specs=in_specs, out_specs=out_specs)


@program
def sharded_collectives():
  """Each collective by name."""

  def fn(x, y):
    gathered = lax.all_gather(x, "data", tiled=True)
    scattered = lax.psum_scatter(jnp.tanh(gathered @ y), "data", tiled=True)
    turned = lax.all_to_all(scattered, "data", 1, 0, tiled=True)
    shifted = lax.ppermute(turned, "data", [(i, (i + 1) % 4) for i in range(4)])
    return lax.psum(jnp.sin(shifted), "data"), lax.pmax(scattered, "data"), turned

  every = lambda x, y: _on_each_device(fn, (P("data"), P()), (P(), P(), P("data")))(x, y)
  return Program(every, (normal(64, 32), normal(32, 32)), specs=(P("data"), P()))


@program
def sharded_ring():
  """A pipeline of permutes inside a scan, differentiated."""

  def ring(weights, x):
    def turn(x, _):
      return lax.ppermute(jnp.tanh(x @ weights[0]), "data", [(i, (i + 1) % 4) for i in range(4)]), None

    return lax.scan(turn, x, None, length=4)[0]

  def loss(weights, x):
    return jnp.mean(_on_each_device(ring, (P("data"), P("data")), P("data"))(weights, x) ** 2)

  return Program(jax.value_and_grad(loss), (normal(4, 32, 32), normal(64, 32)), specs=(P("data"), P("data")))
