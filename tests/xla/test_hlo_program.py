"""HLO modules as StepPrograms, and their predicted memory, against what XLA:CPU compiles them to."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coopjax import _core
from coopjax.budget import Budget
from coopjax.errors import InvalidProgramError
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.module_plan import plan_module
from coopjax.memory_profile import totals_of
from coopjax.program import step_program
from coopjax.program.cost import CPU, Roofline
from coopjax.xla.buffer_assignment import BufferAssignment
from coopjax.xla.compile import compile_abstract, module_of
from coopjax.xla.module import AllocationKind, parse_module, predict_memory, read_step_program
from tests.support import models, sweeps
from tests.support.hlo_hook import hook
from tests.support.scheduled import sequence


def capture(fn, *args, donate=(), rewrite=None):
  """``(module bytes at POST_SCHEDULER, compiled)``; ``rewrite`` may exchange the module on the way."""
  jitted = jax.jit(lambda *args: fn(*args), donate_argnums=donate)  # a new function: nothing is cached
  lowered, modules = jitted.lower(*args), []

  def callback(module):
    modules.append(bytes(module) if rewrite is None else rewrite(bytes(module)))
    return None if rewrite is None else modules[-1]

  with hook(callback):
    compiled = lowered.compile()
  assert len(modules) == 1
  return modules[0], compiled


def conv(x, kernel, stride=1):
  return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def resnet():
  """``(loss, kernels, images)`` of a convolutional stem and four residual blocks, two of them strided."""

  def normalize(x):
    return (x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5)

  def loss(kernels, images):
    x = jax.nn.relu(normalize(conv(images, kernels[0], 2)))
    for i, stride in enumerate([1, 2, 1, 2]):
      first, second, shortcut = kernels[1 + 3 * i : 4 + 3 * i]
      y = normalize(conv(jax.nn.relu(normalize(conv(x, first, stride))), second))
      x = jax.nn.relu(y + normalize(conv(x, shortcut, stride)))
    return jnp.mean(x.mean((1, 2)) ** 2)

  shapes, features = [(7, 7, 3, 16)], 16
  for width in (16, 32, 32, 64):
    shapes += [(3, 3, features, width), (3, 3, width, width), (1, 1, features, width)]
    features = width
  return loss, [models.normal(i, *shape) for i, shape in enumerate(shapes)], models.normal(99, 4, 32, 32, 3)


def lstm(width: int = 32, length: int = 24, batch: int = 8):
  """``(loss, weights, sequence)`` of one recurrent layer, scanned over time."""

  def loss(weights, sequence):
    def cell(carry, x):
      hidden, state = carry
      i, f, g, o = jnp.split(x @ weights["x"] + hidden @ weights["h"], 4, -1)
      state = jax.nn.sigmoid(f) * state + jax.nn.sigmoid(i) * jnp.tanh(g)
      hidden = jax.nn.sigmoid(o) * jnp.tanh(state)
      return (hidden, state), hidden

    zeros = jnp.zeros((batch, width))
    return jnp.mean(jax.lax.scan(cell, (zeros, zeros), sequence)[1] ** 2)

  weights = {"x": models.normal(0, width, 4 * width), "h": models.normal(1, width, 4 * width)}
  return loss, weights, models.normal(2, length, batch, width)


def scanned_gpt():
  return models.gpt(scan=True)


def train_step(loss):
  def step(params, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

  return step


MODELS = {"gpt": models.gpt, "resnet": resnet, "scanned_gpt": scanned_gpt, "lstm": lstm}


@pytest.fixture(scope="module", params=sweeps.all_but(["gpt", "lstm"], MODELS))
def captured(request):
  loss, params, x = MODELS[request.param]()
  return capture(train_step(loss), params, x, donate=(0,))


@pytest.mark.optimized
@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_what_is_compiled_to_be_looked_at_has_the_module_and_the_bytes_of_a_users_program(name):
  loss, *arguments = models.gpt(depth=1) if name == "gpt" else lstm()
  leaves, tree = jax.tree.flatten(arguments)
  step = lambda *leaves: train_step(loss)(*tree.unflatten(leaves))
  looked_at = compile_abstract(step, [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves])
  users = jax.jit(step).lower(*leaves).compile()
  assert sequence(module_of(looked_at)) == sequence(module_of(users))
  looked_at, users = (totals_of(each.memory_analysis()) for each in (looked_at, users))
  assert looked_at == users and users["temp_bytes"] > 0


def assert_predicted(module, compiled):
  memory, predicted = compiled.memory_analysis(), predict_memory(module)
  # The promise is 1%; nothing but the exact number has ever been seen.
  assert predicted.temp_bytes == memory.temp_size_in_bytes
  assert predicted.argument_bytes == memory.argument_size_in_bytes
  assert predicted.output_bytes == memory.output_size_in_bytes
  assert predicted.alias_bytes == memory.alias_size_in_bytes
  assert predicted.peak_live_bytes <= predicted.heap_bytes <= predicted.temp_bytes
  return predicted


def test_temp_bytes_are_the_executables(captured):
  assert_predicted(*captured)


def residual_stream(depth: int = 3, width: int = 64):
  """``(loss, weights, x)``: products read the stream through a bitcast, then it is added to, in place."""

  def loss(weights, x):
    for q, k, v, out, up in weights:
      scores = jax.nn.softmax(jnp.einsum("bld,bmd->blm", x @ q, x @ k))
      x = x + jnp.einsum("blm,bmd->bld", scores, x @ v) @ out
      x = x + jax.nn.gelu(x @ up.T) @ up
    return jnp.sum(x**2)

  weights = [[models.normal(5 * i + j, width, width) for j in range(4)] for i in range(depth)]
  for i, layer in enumerate(weights):
    layer.append(models.normal(5 * i + 4, 4 * width, width))
  return loss, weights, models.normal(99, 4, 128, width)


@pytest.mark.parametrize("share", sweeps.all_but([0.25], [0.6, 0.4, 0.3, 0.25]))
def test_what_a_plan_takes_is_the_executables(share):
  loss, *args = residual_stream()
  gradient = jax.value_and_grad(loss, argnums=(0, 1))
  outcome = plan_module(capture(gradient, *args)[0], [Mark(Budget(share=share))])
  assert outcome.fits and outcome.num_recomputed
  predicted = assert_predicted(*capture(gradient, *args, rewrite=lambda _: outcome.module_bytes))
  assert predicted.temp_bytes == outcome.predicted.temp_bytes


def test_every_buffer_lies_where_xla_puts_it(captured):
  module, compiled = captured
  predicted = predict_memory(module)
  assignment = BufferAssignment.from_bytes(compiled.memory_analysis().serialized_buffer_assignment_proto)
  assert assignment.temp_bytes == predicted.temp_bytes
  places = {id: (allocation, offset) for allocation in assignment.allocations for id, offset, _ in allocation.assigned}
  by_definition = {(b.instruction_id, b.shape_index): b for b in assignment.logical_buffers}
  kinds = np.array([AllocationKind(kind) for kind in predicted.buffer_kinds])
  for row, definition in enumerate(zip(predicted.buffer_instruction_ids.tolist(), predicted.buffer_shape_indices)):
    buffer = by_definition[definition]
    allocation, offset = places[buffer.id]
    assert (buffer.bytes, offset) == (predicted.buffer_bytes[row], predicted.buffer_offsets[row])
    assert allocation.is_temporary == (kinds[row] in (AllocationKind.TEMPORARY, AllocationKind.TUPLE))
    assert allocation.is_entry_parameter == (kinds[row] == AllocationKind.PARAMETER)


def test_cost_is_cost_analysis(captured):
  module, compiled = captured
  flops, transcendentals, _ = _core.module_cost(_core.HloModule(module), False)  # XLA counts one iteration of a loop
  analysis = compiled.cost_analysis()
  assert flops == pytest.approx(analysis["flops"], rel=0.02)
  assert transcendentals == pytest.approx(analysis["transcendentals"], rel=0.02)


def test_programs_are_well_formed(captured):
  module, _ = captured
  program, op_instruction_ids = read_step_program(module)
  assert program.core.check() == ""
  assert len(op_instruction_ids) == len(set(op_instruction_ids.tolist())) == program.num_ops
  assert len(program.op_names) == len(program.op_scopes) == len(program.op_sources) == program.num_ops
  assert len(program.value_types) == program.num_values
  assert program.schedule.tolist() == list(range(program.num_ops))
  assert (program.op_cost_s > 0).all() and np.isfinite(program.op_cost_s).all()
  # Whatever XLA can't make again, no planner may.
  for op in np.flatnonzero(program.op_can_recompute):
    assert (program.value_kind[program.outputs(op)] == step_program.TEMPORARY).all()
    assert (program.value_in_place_of[program.outputs(op)] == -1).all()
  assert any("test_hlo_program.py" in source or "models.py" in source for source in program.op_sources)


def test_live_bytes_are_the_heaps_apart_from_scratch(captured):
  module, _ = captured
  program, _ = read_step_program(module)
  predicted = predict_memory(module)
  peak = _core.live_bytes(program.core, program.schedule).max()
  in_outputs = np.isin(predicted.buffer_kinds, [AllocationKind.OUTPUT, AllocationKind.PARAMETER])
  assert predicted.peak_live_bytes <= peak <= predicted.peak_live_bytes + predicted.buffer_bytes[in_outputs].sum()
  assert peak <= 1.25 * predicted.peak_live_bytes


def test_donated_parameters_are_overwritten():
  loss, weights, x = models.mlp(depth=3)
  module, compiled = capture(train_step(loss), weights, x, donate=(0,))
  assert assert_predicted(module, compiled).alias_bytes == sum(weight.nbytes for weight in weights)
  program, _ = read_step_program(module)
  overwritten = program.value_in_place_of[program.value_kind == step_program.OUTPUT]
  parameters = set(np.flatnonzero(program.value_kind == step_program.PARAMETER).tolist())
  assert len(parameters & set(overwritten.tolist())) == len(weights)


def checkpointed(weights, x):
  layer = jax.checkpoint(lambda x, weight: jnp.tanh(jnp.sin(x @ weight) @ weight))
  for weight in weights:
    x = layer(x, weight)
  return x.sum()


def branches(weights, x):
  x = jax.lax.cond(x.sum() > 0, lambda x: jnp.tanh(x @ weights[0]), lambda x: x, x)
  x = jax.lax.switch(jnp.int32(x[0, 0]), [jnp.sin, lambda x: jnp.sort(x, 0), lambda x: x @ weights[1]], x)
  return jnp.sum(x.at[:3].set(x[3:6]) ** 2)


def nested_loops(weights, x):
  def outer(x, weight):
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y @ weight) + i, x), x.sum()

  x, sums = jax.lax.scan(outer, x, jnp.stack(weights))
  return jax.lax.while_loop(lambda y: y.sum() > 1e3, lambda y: y * 0.5, x).sum() + sums.sum()


def nested_scans(weights, x):
  def outer(x, weight):
    return jax.lax.scan(lambda y, _: (jnp.tanh(y @ weight), y.sum()), x, None, length=3)[0], x.sum()

  return jax.lax.scan(outer, x, jnp.stack(weights))[0].sum()


CONTROL_FLOW = {
  "branches": branches,
  "branches_gradient": jax.value_and_grad(branches),
  "nested_loops": nested_loops,
  "nested_scans_gradient": jax.value_and_grad(nested_scans),
  "checkpointed_gradient": jax.value_and_grad(checkpointed),
}


@pytest.mark.parametrize("fn", CONTROL_FLOW.values(), ids=CONTROL_FLOW)
def test_control_flow_barriers_and_in_place_writes(fn):
  weights = [models.normal(i, 48, 48) for i in range(4)]
  module, compiled = capture(fn, weights, models.normal(9, 64, 48))
  assert_predicted(module, compiled)
  assert read_step_program(module)[0].core.check() == ""


def test_rewritten_modules_are_predicted_too():
  loss, params, x = models.gpt()
  predicted = []

  def rewrite(module):
    program, op_instruction_ids = read_step_program(module)
    order = _core.schedule_for_memory(program.core)
    rewritten = _core.apply_schedule(_core.HloModule(module), op_instruction_ids, order)
    predicted.append(predict_memory(rewritten))
    return rewritten

  _, compiled = capture(jax.value_and_grad(loss), params, x, rewrite=rewrite)
  assert [p.temp_bytes for p in predicted] == [compiled.memory_analysis().temp_size_in_bytes]


def test_a_run_that_only_a_barrier_keeps_takes_no_bytes():
  """The sort runs again for who reads it behind the barrier; XLA drops its first run with the barrier."""

  def fn(weights, x):
    y, (keys, values) = jax.lax.optimization_barrier(
      (jnp.tanh(x @ weights[0]), jax.lax.sort_key_val(x, x @ weights[1]))
    )
    y = jnp.sort(y @ weights[1], 0)
    return (y @ keys.T).sum() + (y @ values.T).sum()

  def rewrite(module):
    program, op_instruction_ids = read_step_program(module)
    first, last = program.op_kinds.index("sort"), len(program.op_kinds) - 1 - program.op_kinds[::-1].index("sort")
    order = np.insert(np.arange(program.num_ops, dtype=np.int32), last + 1, first)
    rewritten = _core.apply_schedule(parse_module(module), op_instruction_ids, order)
    assert _core.verify_transform(parse_module(module), parse_module(rewritten)) == ""
    assert read_step_program(rewritten)[0].num_ops == program.num_ops
    return rewritten

  assert_predicted(
    *capture(fn, [models.normal(i, 64, 64) for i in range(2)], models.normal(9, 96, 64), rewrite=rewrite)
  )


def test_loops_cost_their_iterations_and_need_workspace():
  unrolled, scanned = (
    capture(jax.value_and_grad(loss), params, ids)[0]
    for loss, params, ids in (models.gpt(depth=2), models.gpt(depth=2, scan=True))
  )
  expected, program = read_step_program(unrolled)[0], read_step_program(scanned)[0]
  assert program.op_flops.sum() == pytest.approx(expected.op_flops.sum(), rel=0.05)
  loops = [op for op, name in enumerate(program.op_names) if name.startswith("while")]
  assert len(loops) == 2  # forward and backward
  assert all(program.op_workspace_bytes[op] > 0 and not program.op_can_recompute[op] for op in loops)
  assert not np.delete(program.op_workspace_bytes, loops).any()


def test_name_scopes_and_source_lines_survive():
  def fn(x, weight):
    with jax.named_scope("coop17"):
      y = jnp.tanh(x @ weight)
    return jnp.sum(y**2)

  module, _ = capture(jax.grad(fn), models.normal(0, 64, 64), models.normal(1, 64, 64))
  program, _ = read_step_program(module)
  tagged = [op for op, scope in enumerate(program.op_scopes) if "coop17" in scope]
  line = fn.__code__.co_firstlineno + 2
  assert f"{__file__}:{line}" in {program.op_sources[op] for op in tagged}
  assert any("transpose(jvp(coop17))" in program.op_scopes[op] for op in tagged)


def test_what_is_kept_by_its_scope_is_not_recomputed():
  def fn(x, weight):
    with jax.named_scope("coop17"):
      y = jnp.tanh(x @ weight)
    return jnp.sum(jnp.sin(y @ weight))

  module, _ = capture(jax.grad(fn), models.normal(0, 64, 64), models.normal(1, 64, 64))
  program, kept = (read_step_program(module, kept_scope=scope)[0] for scope in ("", "coop17"))
  is_tagged = np.array(["coop17" in scope for scope in program.op_scopes])
  assert (program.op_can_recompute & is_tagged).any() and (program.op_can_recompute & ~is_tagged).any()
  np.testing.assert_array_equal(kept.op_can_recompute, program.op_can_recompute & ~is_tagged)


def test_a_roofline_sets_the_seconds(captured):
  module, _ = captured
  slow = dataclasses.replace(CPU, flops_per_s=CPU.flops_per_s / 1e6)
  default, slowed = read_step_program(module)[0], read_step_program(module, slow)[0]
  assert (slowed.op_cost_s >= default.op_cost_s).all() and slowed.op_cost_s.sum() > 100 * default.op_cost_s.sum()
  np.testing.assert_array_equal(slowed.op_flops, default.op_flops)


@pytest.mark.parametrize("field, value", [("flops_per_s", 0.0), ("bytes_per_s", -1.0), ("op_overhead_s", math.inf)])
def test_impossible_rooflines_are_refused(field, value):
  with pytest.raises(ValueError, match="roofline"):
    Roofline(**{**dataclasses.asdict(CPU), field: value})


@pytest.mark.parametrize("read", [read_step_program, predict_memory])
def test_other_bytes_are_refused(read):
  with pytest.raises(InvalidProgramError, match="schedule"):
    read(b"")
  with pytest.raises(InvalidProgramError, match="protobuf"):
    read(b"\xff\xff\xff")


def test_other_bytes_are_no_buffer_assignment():
  with pytest.raises(ValueError, match="BufferAssignmentProto"):
    BufferAssignment.from_bytes(b"\x0a\xff")
  assert BufferAssignment.from_hlo_proto(b"") == BufferAssignment((), ())
