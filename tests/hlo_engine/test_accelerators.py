"""The HLO engine on GPU and TPU modules, compiled ahead of time: predicted bytes, plans that hold, overlap that
stays.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax import _core, compat
from coopjax.budget import Budget
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark
from coopjax.jaxpr.tags import tagged_fn
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.xla import targets
from coopjax.xla.compile import compile_abstract, module_of
from coopjax.xla.module import parse_module, predict_memory, read_step_program
from tests.support import models

pytestmark = pytest.mark.targets
by_hook = pytest.mark.skipif(compat.hook_platform("tpu") is None, reason="this JAX has no HLO hook on accelerators")
TPU, GPU = "tpu:v5e:2x2", "gpu:h100"


def mlp(rows: int = 2**16):
  """Layers of ``rows * 1024`` bytes: too large, together, for a TPU's vector memory."""
  loss, weights, _ = models.mlp(depth=6, width=256)
  return loss, jax.eval_shape(lambda: weights), jax.ShapeDtypeStruct((rows, 256), jnp.float32)


def step(loss, weights, x):
  value, gradients = jax.value_and_grad(loss)(weights, x)
  return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def branches(x, flag):
  y = jax.lax.cond(flag > 0, lambda x: jnp.sort(jnp.tanh(x @ x.T)), lambda x: x @ x.T, x)
  return jax.lax.fori_loop(0, 5, lambda i, y: jnp.sin(y) @ y, y).sum(0), y.max()


def programs():
  loss, weights, x = mlp()
  square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
  return {
    "donated": (functools.partial(step, loss), (weights, x), (0,)),
    "control flow": (branches, (square, jax.ShapeDtypeStruct((), jnp.int32)), ()),
  }


def compile_for(target, fn, args, donated=()):
  placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=target.sharding), args)
  return jax.jit(fn, donate_argnums=donated).lower(*placed).compile()


@pytest.mark.parametrize("name", programs())
@pytest.mark.parametrize("target", [TPU, GPU])
def test_memory_is_predicted(target, name):
  fn, args, donated = programs()[name]
  compiled = compile_for(targets.resolve(target), fn, args, donated)
  memory, predicted = compiled.memory_analysis(), predict_memory(module_of(compiled))
  assert predicted.argument_bytes == memory.argument_size_in_bytes
  assert predicted.output_bytes == memory.output_size_in_bytes
  assert predicted.alias_bytes == memory.alias_size_in_bytes
  assert predicted.temp_bytes == pytest.approx(memory.temp_size_in_bytes, rel=0.001)


@by_hook
def test_memory_of_a_mesh_is_predicted_by_its_schedule():
  """Of what gathers the weights and sums their gradients, XLA:GPU makes synchronous what nothing runs beside."""
  device = targets.resolve("gpu:h100:8")
  mesh = device.mesh((8,), ("fsdp",))
  loss, *_ = models.mlp(depth=6, width=256)
  over = lambda *shape: jax.ShapeDtypeStruct(
    shape, jnp.float32, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
  )
  traced = differentiable(trace(loss, ([over(256, 256)] * 6, over(2**12, 256))))
  device.load()
  hook.install(compat.hook_platform(device.platform))
  compile_marked = lambda mark: compile_abstract(*fn_and_gradient(traced, tagged_fn(traced, mark)), device)
  module, compiled = hook.observe("mesh", compile_marked)
  num_starts = [each.count(b"async-start") for each in (module, module_of(compiled))]
  assert num_starts[0] > num_starts[1]
  assert predict_memory(module).temp_bytes == compiled.memory_analysis().temp_size_in_bytes


@by_hook
@pytest.mark.parametrize("target, budget", [(TPU, 0.5), (GPU, 0.6)])
def test_a_plan_holds_its_budget_when_compiled(target, budget):
  loss, *args = mlp()
  plan = coopjax.plan(loss, *args, budget=budget, engine="hlo", planner="peak", target=target)
  assert plan.engine == "hlo" and plan.fits
  assert plan.measured.temp_bytes <= plan.budget_bytes == int(budget * plan.baseline.temp_bytes)
  assert [decision for decision in plan.decisions if decision.decision == "recomputed"]


@by_hook
@pytest.mark.parametrize("engine", ["hlo", "auto"])
@pytest.mark.parametrize("budget", ["1.75 MiB", 0.8])
def test_a_program_with_more_in_it_than_the_function(engine, budget):
  """The function with its gradient takes 1.75 MiB, and twice that where it runs on two inputs."""
  loss, *args = models.mlp(depth=6)
  fitted = coopjax.remat(loss, budget=budget, engine=engine, planner="auto", target=GPU)
  temp_bytes = [
    compile_for(targets.resolve(GPU), jax.grad(lambda w, x, fn=fn: fn(w, x) + fn(w, 2 * x)), args)
    .memory_analysis()
    .temp_size_in_bytes
    for fn in (loss, fitted)
  ]
  assert temp_bytes[1] <= (0.8 * temp_bytes[0] if budget == 0.8 else 7 << 18)


@by_hook
def test_products_of_a_library_are_repeated():
  """On a GPU that is at hand the compiler takes most products from cuBLAS; here it is told to."""
  loss, *args = mlp()
  options = {"xla_gpu_enable_triton_gemm": False}
  fitted = jax.jit(functools.partial(step, coopjax.remat(loss, budget=1.0)), compiler_options=options)
  plan = coopjax.plan(fitted, *args, budget=0.6, engine="hlo", planner="peak", target=GPU)
  assert plan.engine == "hlo" and plan.measured.temp_bytes <= plan.budget_bytes
  repeated = [each for each in plan.decisions if each.decision == "recomputed"]
  assert any(each.value.startswith("custom-call") and each.op == "dot" for each in repeated)
  assert all(each.type.startswith("f32") for each in repeated)  # of its scratch, nothing is said


@by_hook
@pytest.mark.parametrize("target", [TPU, GPU])
def test_order_and_clones_are_what_the_hook_handed_back(target):
  loss, *args = mlp()
  traced, device = differentiable(trace(loss, args)), targets.resolve(target)
  mark = Mark(Budget(share=0.7), "peak", key="order", target=target)
  compile_marked = lambda mark: compile_abstract(*fn_and_gradient(traced, tagged_fn(traced, mark)), device)
  device.load()
  hook.install(compat.hook_platform(device.platform))
  planned = hook.plan_module(hook.observe(target, compile_marked)[0], [mark])
  handed_back = parse_module(planned.module_bytes)
  _, ids = read_step_program(handed_back)
  compiled = parse_module(module_of(compile_marked(mark.to_text())))
  names, compiled_names = (read_step_program(module)[0].op_names for module in (handed_back, compiled))
  assert len(ids) > len(planned.program.op_names) and any(".coop_remat" in name for name in names)
  kept = [name for name in compiled_names if name in set(names)]
  assert kept == [name for name in names if name in set(kept)] and len(kept) > 0.8 * len(names)


def ring(mesh, x, y):
  """A product of all pairs of shards, passed around the devices; `y` needs none of them."""

  def local(x, y):
    total = x @ x.T
    for _ in range(3):
      x = jax.lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])
      total, y = total + jnp.sin(x @ x.T), jnp.cos(y @ y.T)
    return total, y

  spec = jax.sharding.PartitionSpec("x")
  return jax.shard_map(local, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec), check_vma=False)(x, y)


def test_what_hides_a_transfer_stays_between_its_start_and_its_done():
  target = targets.resolve(TPU)
  mesh = jax.make_mesh((4,), ("x",), devices=target.devices[:4])
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
  x = jax.ShapeDtypeStruct((1024, 256), jnp.float32, sharding=sharding)
  module = parse_module(module_of(compile_abstract(functools.partial(ring, mesh), (x, x), target)))
  program, ids = read_step_program(module)
  offsets, items = program.op_control
  starts = [op for op, kind in enumerate(program.op_kinds) if kind == "collective-permute-start"]
  dones = [op for op, kind in enumerate(program.op_kinds) if kind == "collective-permute-done"]
  pairs = [(start, done) for start, done in zip(starts, dones, strict=True) if done > start + 1]
  assert pairs
  for start, done in pairs:
    assert set(range(start + 1, done)) <= set(items[offsets[done] : offsets[done + 1]].tolist())
    hasty = [op for op in range(program.num_ops) if op != done]
    hasty.insert(hasty.index(start) + 1, done)
    after = parse_module(_core.apply_schedule(module, ids, np.array(hasty, np.int32)))
    assert _core.verify_transform(module, after)
  same = parse_module(_core.apply_schedule(module, ids, program.schedule))
  assert _core.verify_transform(module, same) == ""
