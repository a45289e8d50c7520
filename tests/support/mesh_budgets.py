"""Budgets of programs on a mesh of 8 devices, measured per device; `tests/api/test_meshes.py` runs each case by name.

Partitioned programs add partial sums in another order than one device does, so they are compared with one device's
within rounding; with the same partitioned program without remat they share all bits under the HLO engine.
"""

import collections
import functools
import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import coopjax
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.trace import trace
from coopjax.planning import kept
from coopjax.xla.compile import module_of
from coopjax.xla.module import parse_module, read_step_program
from tests.support import checks, models, quick
from tests.support.checks import assert_same_bits, temp_bytes

# Wherever numbers of partitioned programs may differ by rounding.
assert_close = functools.partial(checks.assert_close, rtol=2e-5, atol=1e-9)

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Weights up and down of all layers, and rows.
ARGUMENTS = (
  (np.asarray(models.normal(1, 6, 32, 128)), np.asarray(models.normal(2, 6, 128, 32))),
  np.asarray(models.normal(3, 2048, 32)),
)
PLACES = {
  "data": ((P(), P()), P("data")),
  "tensor": ((P(None, None, "model"), P(None, "model")), P()),
  "data and tensor": ((P(None, None, "model"), P(None, "model")), P("data")),
  "fsdp": ((P(None, "data"), P(None, "data")), P("data")),
}


def make_mesh(kind=AxisType.Auto, sizes=(4, 2)):
  return jax.make_mesh(sizes, ("data", "model"), (kind,) * 2)


AUTO, EXPLICIT = make_mesh(), make_mesh(AxisType.Explicit)


def layer(x, weights):
  up, down = weights
  return x + jnp.tanh(x @ up) @ down


def loss(weights, x):
  for weights_of_layer in zip(*weights):
    x = layer(x, weights_of_layer)
  return jnp.mean(x**2)


def scanned_loss(weights, x):
  x, _ = jax.lax.scan(lambda x, shared: (layer(layer(x, shared), shared), None), x, weights)
  return jnp.mean(x**2)


def shardings(place, mesh=AUTO):
  return jax.tree.map(lambda spec: NamedSharding(mesh, spec), PLACES[place])


def shapes(place, mesh=AUTO):
  shape = lambda value, sharding: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
  return jax.tree.map(shape, ARGUMENTS, shardings(place, mesh))


def put(place, mesh=AUTO):
  return jax.device_put(ARGUMENTS, shardings(place, mesh))


def compile_step(fn, place, is_committed=False):
  """The compiled loss with its gradient: sharding by committed arguments, or by the jit of plain ones."""
  step = jax.value_and_grad(fn, argnums=(0, 1))
  if is_committed:
    return jax.jit(step).lower(*put(place)).compile()
  return jax.jit(step, in_shardings=shardings(place)).lower(*ARGUMENTS).compile()


def flops(compiled):
  return compiled.cost_analysis()["flops"]


def num_collectives(compiled):
  return collections.Counter(re.findall(rf" ({'|'.join(COLLECTIVES)})(?:-start)?\(", compiled.as_text()))


@functools.cache
def on_one_device(fn):
  return jax.jit(jax.value_and_grad(fn, argnums=(0, 1)))(*ARGUMENTS)


def hlo_engine(place):
  """No trace knows how `jit` will shard; a budget that all devices together can't hold is held by each."""
  plain = compile_step(loss, place)
  for is_committed, budget in ((False, 0.55), (True, int(0.55 * temp_bytes(plain)))):
    remat = functools.partial(coopjax.remat, budget=budget, planner="peak", engine="auto" if is_committed else "hlo")
    fitted = compile_step(remat(loss), place, is_committed)
    print(f"{place}, {budget}: {temp_bytes(plain)} -> {temp_bytes(fitted)} bytes, {dict(num_collectives(fitted))}")
    assert temp_bytes(fitted) <= 0.55 * temp_bytes(plain)
    assert "coop_remat" in fitted.as_text() and num_collectives(fitted) == num_collectives(plain)
    assert_same_bits(fitted(*put(place)), plain(*put(place)))
    assert_close(fitted(*put(place)), on_one_device(loss))


def collectives_run_once():
  """Whatever a collective makes is kept: the planners are not allowed to run it again."""
  found = collections.Counter()
  for place in PLACES:
    program, _ = read_step_program(parse_module(module_of(compile_step(loss, place))))
    for name, can_recompute in zip(program.op_names, program.op_can_recompute, strict=True):
      if name.startswith(COLLECTIVES):
        found[name.partition(".")[0]] += 1
        assert not can_recompute, name
  print(dict(found))
  assert found["all-reduce"] and found["all-gather"]


def inside_shard_map():
  """The trace shows one device's program; the gathered weights and the averaged loss are collectives."""

  def local_loss(weights, x):
    for weights_of_layer in zip(*weights):
      x = layer(x, [jax.lax.all_gather(weight, "data", axis=0, tiled=True) for weight in weights_of_layer])
    return jax.lax.pmean(jnp.mean(x**2), ("data", "model"))

  def of_all(remat):
    specs = (P(None, "data"), P(("data", "model")))
    return jax.shard_map(remat(local_loss), mesh=AUTO, in_specs=specs, out_specs=P())

  step = lambda remat: jax.jit(jax.value_and_grad(of_all(remat), argnums=(0, 1))).lower(*put("fsdp")).compile()
  plain, fitted = step(lambda fn: fn), step(functools.partial(coopjax.remat, budget=0.7, planner="peak", engine="hlo"))
  print(f"{temp_bytes(plain)} -> {temp_bytes(fitted)} bytes")
  assert temp_bytes(fitted) <= 0.7 * temp_bytes(plain)
  assert "coop_remat" in fitted.as_text() and num_collectives(fitted) == num_collectives(plain)
  assert_same_bits(fitted(*put("fsdp")), plain(*put("fsdp")))
  assert_close(fitted(*put("fsdp")), on_one_device(loss))


def plans_of_shapes():
  """Shapes with shardings give one device's numbers, and a plan that holds where it is applied."""
  for place, budget in (("fsdp", 0.5), ("data", None)):
    plain = compile_step(loss, place)
    if budget is None:
      stats = plain.memory_analysis()
      total = stats.temp_size_in_bytes // 2 + stats.argument_size_in_bytes + stats.output_size_in_bytes
      budget = coopjax.Budget.total(total)
    plan = coopjax.plan(loss, *shapes(place), budget=budget, planner="peak", engine="hlo")
    print(plan.explain(top=2))
    assert plan.baseline.temp_bytes == temp_bytes(plain) and plan.mesh == "data=4,model=2"
    argument_bytes = plain.memory_analysis().argument_size_in_bytes
    assert plan.baseline.argument_bytes == argument_bytes < sum(leaf.nbytes for leaf in jax.tree.leaves(ARGUMENTS))
    assert plan.fits and plan.measured.temp_bytes <= plan.budget_bytes < temp_bytes(plain)
    fitted = compile_step(plan.apply(loss), place)
    assert temp_bytes(fitted) <= plan.budget_bytes and "coop_remat" in fitted.as_text()
    assert_same_bits(fitted(*put(place)), plain(*put(place)))
  try:
    coopjax.plan(loss, *shapes("data"), budget="1 KiB", planner="peak", engine="hlo")
  except coopjax.BudgetInfeasibleError as error:
    assert error.smallest_bytes < temp_bytes(compile_step(loss, "data"))
  else:
    raise AssertionError("1 KiB was reached")


def plans_of_steps():
  """A whole step is planned as its own jit partitions it, whether shapes or the jit say how."""

  def make(loss):
    def step(weights, x):
      value, grads = jax.value_and_grad(loss)(weights, x)
      return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value

    return jax.jit(step, in_shardings=shardings("fsdp"), out_shardings=(shardings("fsdp")[0], None), donate_argnums=0)

  plain = make(scanned_loss).lower(*ARGUMENTS).compile()
  step = make(coopjax.remat(scanned_loss, budget=0.6))
  for args in (ARGUMENTS, shapes("fsdp")):
    plan = coopjax.plan(step, *args, budget=0.6, planner="peak")
    fitted = plan.apply(step).lower(*ARGUMENTS).compile()
    print(plan.explain(top=0))
    assert plan.baseline.temp_bytes == temp_bytes(plain) and "policy" in plan.engine
    assert temp_bytes(fitted) <= plan.budget_bytes == int(0.6 * temp_bytes(plain))
    assert "rematted_computation" in fitted.as_text()
    assert_close(fitted(*put("fsdp")), plain(*put("fsdp")))
  assert plan.mesh == "data=4,model=2"


def plans_of_steps_elsewhere():
  """A step's plan is refused for other shardings, for another mesh and on one device."""
  fitted = coopjax.remat(loss, budget=0.6, planner="peak")
  step = jax.jit(lambda weights, x: jax.grad(fitted)(weights, x))
  plan = coopjax.plan(step, *shapes("data"), budget=0.5, planner="peak")
  of_one_device = coopjax.plan(step, *ARGUMENTS, budget=0.5, planner="peak")
  loaded = coopjax.RematPlan.from_json(plan.to_json())
  assert loaded == plan and plan.num_devices == 8 and ("args[1]", (512, 32)) in plan.shards
  on_one_device = jax.device_put(ARGUMENTS, jax.devices()[0])
  for wrong, args, complaint in (
    (loaded, put("fsdp"), "on each; it lies on 8 devices"),
    (of_one_device, put("data"), "made for one device"),
    (loaded, put("data", make_mesh(sizes=(2, 4))), "mesh data=2"),
    (plan, on_one_device, "lies on 1 device"),
  ):
    try:
      wrong.apply(step).lower(*args)
    except coopjax.PlanMismatchError as error:
      print(error)
      assert complaint in str(error), error
    else:
      raise AssertionError("the plan was taken")
  assert temp_bytes(loaded.apply(step).lower(*put("data")).compile()) == plan.measured.temp_bytes
  assert_close(loaded.apply(step)(*put("data")), jax.grad(loss)(*ARGUMENTS))


def plans_of_other_meshes():
  """A plan is for the mesh that it was made for, as far as the arguments tell."""
  plan = coopjax.plan(loss, *shapes("data"), budget=0.5, planner="peak")
  of_one_device = coopjax.plan(loss, *ARGUMENTS, budget=0.5, planner="peak")
  for wrong, mesh in ((plan, make_mesh(sizes=(2, 4))), (of_one_device, AUTO)):
    try:
      jax.jit(wrong.apply(loss)).lower(*put("data", mesh))
    except coopjax.PlanMismatchError as error:
      print(error)
    else:
      raise AssertionError("the plan was taken")


def scan_over_auto_axes():
  """Bytes are held by planning for all devices, which is said; a plan for sharded shapes recomputes less."""
  plain = compile_step(scanned_loss, "data")
  budget = int(0.7 * temp_bytes(plain))
  plan = coopjax.plan(scanned_loss, *shapes("data"), budget=budget)
  assert "policy" in plan.engine and plan.fits
  planned = compile_step(plan.apply(scanned_loss), "data")
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    blind = compile_step(coopjax.remat(scanned_loss, budget=budget), "data", is_committed=True)
  assert [type(warning.message) for warning in caught] == [coopjax.ShardingUnknownWarning]
  shared = compile_step(coopjax.remat(scanned_loss, budget=0.7), "data", is_committed=True)
  print(
    f"{temp_bytes(plain)} bytes, {flops(plain):.3g} FLOPs; planned {temp_bytes(planned)}, {flops(planned):.3g}; "
    f"blind {temp_bytes(blind)}, {flops(blind):.3g}; share {temp_bytes(shared)}, {flops(shared):.3g}"
  )
  assert flops(plain) < flops(planned) < flops(blind)
  for fitted in (planned, blind, shared):
    assert temp_bytes(fitted) <= budget and "rematted_computation" in fitted.as_text()
    assert_close(fitted(*put("data")), plain(*put("data")))
    assert_close(fitted(*put("data")), on_one_device(scanned_loss))


def shares_of_steps():
  """No trace knows what one device takes, nor that all gradients are there at once: the program that runs holds it."""
  weights = tuple(np.asarray(models.normal(i, 6, *shape)) for i, shape in ((1, (32, 512)), (2, (512, 32))))
  placed = lambda: jax.device_put((weights, ARGUMENTS[1][:512]), shardings("data"))  # the step is given them for good

  def make(loss):
    def step(weights, x):
      value, grads = jax.value_and_grad(loss)(weights, x)
      norm = jnp.sqrt(sum(jnp.sum(grad**2) for grad in grads))
      return tuple(weight - 0.1 * grad / norm for weight, grad in zip(weights, grads, strict=True)), value

    return jax.jit(step, donate_argnums=0).lower(*placed()).compile()

  plain = make(scanned_loss)
  for engine in ("policy", "auto"):
    fitted = make(coopjax.remat(scanned_loss, budget=0.6, engine=engine, effort="fast"))
    print(f"{engine}: {temp_bytes(plain)} -> {temp_bytes(fitted)} bytes")
    assert temp_bytes(fitted) <= 0.6 * temp_bytes(plain) and "rematted_computation" in fitted.as_text()
    assert_close(fitted(*placed()), plain(*placed()))


def scan_over_explicit_axes():
  """Here the trace knows: one device's bytes are held, and an infeasible budget is an error."""
  step = lambda fn: jax.jit(jax.value_and_grad(fn, argnums=(0, 1))).lower(*put("data", EXPLICIT)).compile()
  plain = step(scanned_loss)
  budget = int(0.7 * temp_bytes(plain))
  for fitted in (
    step(coopjax.remat(scanned_loss, budget=0.7)),
    step(coopjax.plan(scanned_loss, *shapes("data", EXPLICIT), budget=budget).apply(scanned_loss)),
  ):
    print(f"{temp_bytes(plain)} -> {temp_bytes(fitted)} bytes, {flops(plain):.3g} -> {flops(fitted):.3g} FLOPs")
    assert temp_bytes(fitted) <= budget and "rematted_computation" in fitted.as_text()
    assert_close(fitted(*put("data", EXPLICIT)), plain(*put("data", EXPLICIT)))
  try:
    step(coopjax.remat(scanned_loss, budget="1 KiB", planner="peak"))
  except coopjax.BudgetInfeasibleError as error:
    assert error.smallest_bytes < temp_bytes(plain)
  else:
    raise AssertionError("1 KiB was reached")


def infeasible_over_auto_axes():
  """What the trace can't know is seen in the compile: refused there, and the least it names is held."""
  asked = lambda budget, **how: compile_step(
    coopjax.remat(loss, budget=budget, planner="peak", engine="hlo", **how), "data"
  )
  try:
    asked("1 KiB")
  except coopjax.BudgetInfeasibleError as error:
    least_bytes = error.smallest_bytes
    assert error.largest and "what forces the smallest is" in str(error)
  assert temp_bytes(asked(least_bytes)) <= least_bytes
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    fitted = asked("1 KiB", on_infeasible="best_effort")
  assert {type(warning.message) for warning in caught} == {coopjax.BudgetExceededWarning}
  assert temp_bytes(fitted) < temp_bytes(compile_step(loss, "data"))


def keys():
  """One key per placement; the program's fingerprint is that of the types, which Auto axes don't enter."""
  request = kept.Request.checked(
    budget=0.5, planner="auto", engine="auto", target=None, effort="normal", time_limit_s=None, on_infeasible="error"
  )
  found = collections.defaultdict(list)

  def note(name, weights, x):
    traced = trace(loss, (weights, x))
    found[kept.key_of(traced, request)].append(name)
    return fingerprint_of(traced)

  def note_inside(name, *args):
    jax.jit(lambda *args: note(name, *args) and 0.0).lower(*args)

  plain = note("one device", *ARGUMENTS)
  assert note("one device", *jax.tree.map(jnp.asarray, ARGUMENTS)) == plain
  for place in PLACES:
    for _ in range(2):
      assert note(place, *shapes(place)) == plain
  for sizes in ((4, 2), (2, 4)):
    for kind in (AxisType.Auto, AxisType.Explicit):
      for spec in (P(), P("data"), P("model")):
        weights, x = jax.device_put(ARGUMENTS, tuple(NamedSharding(make_mesh(kind, sizes), s) for s in (P(), spec)))
        note_inside(f"in a jit, {kind} {sizes}" + f" {spec}" * (kind is AxisType.Explicit), weights, x)
  with jax.set_mesh(AUTO):
    note_inside("in a jit with a mesh set", *ARGUMENTS)
  note_inside("in a jit", *ARGUMENTS)
  for size in (2, 8):
    mesh = jax.make_mesh((size,), ("data",), (AxisType.Auto,))
    rows = jax.ShapeDtypeStruct((size * 64, 32), np.float32)
    local = lambda *args, size=size: note(f"inside a shard_map over {size}", *args) and args[1]
    jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))).lower(ARGUMENTS[0], rows)
  names = [set(group) for group in found.values()]
  print(names)
  assert all(len(group) == 1 for group in names) and len(set().union(*names)) == len(names) == 17


CASES = {f"hlo_engine {place}": functools.partial(hlo_engine, place) for place in PLACES} | {
  case.__name__: case
  for case in (
    collectives_run_once,
    inside_shard_map,
    plans_of_shapes,
    plans_of_steps,
    plans_of_steps_elsewhere,
    plans_of_other_meshes,
    scan_over_auto_axes,
    shares_of_steps,
    scan_over_explicit_axes,
    infeasible_over_auto_axes,
    keys,
  )
}

if __name__ == "__main__":
  quick.be_quick()
  for name in sys.argv[1:] or CASES:
    print(f"--- {name}", flush=True)
    CASES[name]()
