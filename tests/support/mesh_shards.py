"""What a `shard_map` makes and loops over inside, on 8 devices, beside what people write; as `mesh_budgets`."""

import functools
import sys

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import coopjax
from tests.support import hand_rungs, quick
from tests.support.checks import temp_bytes
from tests.support.mesh_budgets import AUTO, assert_close, layer, put, shapes
from tests.support.models import normal


def products():
  """What a `shard_map` makes inside is saved as what lies around it: at the bytes of all products, these are."""

  def local(x, up, down):
    wide = x @ up
    return jax.lax.psum((jax.nn.gelu(wide) * jnp.tanh(wide)) @ down, "model")

  specs = P("data"), P(None, "model"), P("model")
  sharded = jax.shard_map(local, mesh=AUTO, in_specs=specs, out_specs=P("data"))

  def turns(wrapped, weights, x):
    x, _ = jax.lax.scan(lambda x, shared: (wrapped(x, *shared), None), x, weights)
    return jnp.mean(x**2)

  block = lambda x, up, down: x + sharded(x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6), up, down)
  by_hand = functools.partial(
    turns, jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False)
  )
  plain, args = functools.partial(turns, block), shapes("data and tensor")
  hand_bytes = temp_bytes(hand_rungs.compiled(by_hand, args))
  for engine in ("policy", "auto"):
    ours = coopjax.plan(plain, *args, budget=hand_bytes, engine=engine).apply(plain)
    hand_rungs.check_no_more(plain, by_hand, ours, args, put("data and tensor"))


def gathered_layer(x, weights):
  up, down = (jax.lax.all_gather(weight, "data", axis=0, tiled=True) for weight in weights)
  return jax.lax.ppermute(layer(jnp.sin(layer(x, (up, down))), (up, down)), "model", [(0, 1), (1, 0)])


saving_products = jax.checkpoint(gathered_layer, policy=jax.checkpoint_policies.dots_saveable)


def of_one_device(layer):
  """A loss that is what one device does: a layer gathers its weights, and hands on what it made."""

  def local(weights, x):
    x, _ = jax.lax.scan(lambda x, shared: (layer(x, shared), None), x, weights)
    return jax.lax.pmean(jnp.mean(x**2), ("data", "model"))

  return jax.shard_map(local, mesh=AUTO, in_specs=(P(None, "data"), P(("data", "model"))), out_specs=P())


def loops():
  """Of a loss in a `shard_map` the loops inside are decided on."""
  plain, by_hand = (of_one_device(each) for each in (gathered_layer, saving_products))
  args = shapes("fsdp")
  hand_bytes = temp_bytes(hand_rungs.compiled(by_hand, args))
  for engine in ("policy", "auto"):
    plan = coopjax.plan(plain, *args, budget=hand_bytes, engine=engine)
    ours = coopjax.RematPlan.from_json(plan.to_json()).apply(plain)
    hand_rungs.check_no_more(plain, by_hand, ours, args, put("fsdp"))


def regions():
  """Of a step, the regions in a `shard_map` are."""

  def step_of(layer):
    def step(weights, x):
      value, grads = jax.value_and_grad(of_one_device(layer))(weights, x)
      return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value

    return jax.jit(step)

  args, step = shapes("fsdp"), step_of(jax.checkpoint(gathered_layer))
  plain, hand = (step_of(each).lower(*args).compile() for each in (gathered_layer, saving_products))
  for engine in ("policy", "auto"):
    plan = coopjax.plan(step, *args, budget=temp_bytes(hand), engine=engine)
    print(plan.headline())
    fitted = plan.apply(step).lower(*args).compile()
    assert temp_bytes(fitted) == plan.measured.temp_bytes <= temp_bytes(hand) < temp_bytes(plain)
    assert "rematted_computation" in fitted.as_text() and "on each device, recomputes" in plan.headline()
    assert_close(fitted(*put("fsdp")), plain(*put("fsdp")))


def groups():
  """Below what a checkpoint around each layer takes, turns lie in groups, in a `shard_map` as outside."""

  def turns(wrapped, weights, x):
    x, _ = jax.lax.scan(lambda x, shared: (wrapped(x, shared), None), x, weights)
    return jnp.mean(x**2)

  def local(wrapped, weights, x):
    return jax.lax.pmean(turns(wrapped, weights, x), ("data", "model"))

  named = lambda spec: jax.sharding.NamedSharding(AUTO, spec)
  in_shards = lambda wrapped: jax.shard_map(
    functools.partial(local, wrapped), mesh=AUTO, in_specs=(P(), P(("data", "model"))), out_specs=P()
  )
  weights = normal(0, 32, 16, 64, scale=0.2), normal(1, 32, 64, 16, scale=0.2)
  numbers = jax.device_put((weights, normal(2, 2**14, 16, scale=1.0)), (named(P()), named(P(("data", "model")))))
  for form in (lambda wrapped: functools.partial(turns, wrapped), in_shards):
    plain, by_hand = form(layer), hand_rungs.compiled(form(jax.checkpoint(layer, prevent_cse=False)), numbers)
    plan = coopjax.plan(plain, *numbers, budget=int(0.8 * temp_bytes(by_hand)), engine="policy")
    assert any(region.group_size > 1 for region in plan.policy.regions)
    planned = hand_rungs.compiled(plan.apply(plain), numbers)
    print(f"{temp_bytes(planned)} bytes, by hand {temp_bytes(by_hand)}")
    assert temp_bytes(planned) <= 0.8 * temp_bytes(by_hand)
    assert_close(planned(*numbers), by_hand(*numbers))


CASES = {case.__name__: case for case in (products, loops, regions, groups)}

if __name__ == "__main__":
  quick.be_quick()
  for name in sys.argv[1:] or CASES:
    print(f"--- {name}", flush=True)
    CASES[name]()
