"""The HLO layer for real: modules rewritten inside XLA's compile pipeline, run, and compared to the bit."""

import functools
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coopjax import _core
from tests.support import hlo_proto
from tests.support.hlo_hook import hook

IN_PLACE = {"dynamic-update-slice", "scatter"}
NEVER_CLONED = {"while", "conditional", "call", "custom-call", *IN_PLACE}


def mlp_gradients():
  def loss(weights, x):
    for w in weights:
      x = jnp.tanh(x @ w) * 1.5
    return (x**2).mean()

  key = jax.random.key(0)
  return jax.value_and_grad(loss), ([jax.random.normal(key, (16, 16))] * 4, jax.random.normal(key, (8, 16))), ()


def attention_step():
  """SGD on a one-layer transformer with tied embeddings: gather, scatter, softmax, donated parameters."""

  def loss(p, ids):
    x = p["embed"][ids]
    q, k, v = jnp.split(x @ p["qkv"], 3, -1)
    x = x + jax.nn.softmax(q @ k.mT) @ v @ p["out"]
    logits = jax.nn.gelu(x @ p["up"]) @ p["down"] @ p["embed"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.roll(ids, -1, 1)[..., None], -1).mean()

  def step(p, ids):
    value, gradients = jax.value_and_grad(loss)(p, ids)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, gradients), value

  shapes = dict(embed=(32, 16), qkv=(16, 48), out=(16, 16), up=(16, 32), down=(32, 16))
  keys = jax.random.split(jax.random.key(1), len(shapes))
  parameters = {name: jax.random.normal(key, shape) * 0.3 for key, (name, shape) in zip(keys, shapes.items())}
  return step, (parameters, jax.random.randint(keys[0], (2, 8), 0, 32)), (0,)


def scan_step():
  """SGD on a scanned network: while loops, stacked residuals, dynamic-update-slice, donated parameters."""

  def loss(weights, x):
    x, ys = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, weights)
    return (x**2).mean() + ys.var()

  def step(weights, x):
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return weights - 0.1 * gradients, value

  key = jax.random.key(2)
  return step, (jax.random.normal(key, (4, 16, 16)) * 0.3, jax.random.normal(key, (8, 16))), (0,)


MODELS = {model.__name__: model for model in (mlp_gradients, attention_step, scan_step)}


def compile_through(callback, name):
  """The model's executable with `callback` as the hook, and the module that the hook saw."""
  function, arguments, donated = MODELS[name]()
  seen = []

  def record(module):
    seen.append(module)
    return callback(module)

  with hook(record):
    compiled = jax.jit(lambda *a: function(*a), donate_argnums=donated).lower(*arguments).compile()
  (module,) = seen
  return compiled, module


def run(compiled, name):
  _, arguments, _ = MODELS[name]()
  return [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*arguments))]


@functools.cache
def untouched(name):
  compiled, module = compile_through(lambda _: None, name)
  return run(compiled, name), module


def entry_order(compiled):
  """Instruction names of the entry computation in the order of the optimized HLO text, which is the schedule."""
  entry = re.search(r"^ENTRY .*?^}", compiled.as_text(), re.MULTILINE | re.DOTALL).group()
  return re.findall(r"^ +(?:ROOT )?%?([\w.-]+) = ", entry, re.MULTILINE)


def verify(before: bytes, after: bytes) -> str:
  """Why ``after`` is refused, by the parser or by the verifier; empty when it is not."""
  try:
    return _core.verify_transform(_core.HloModule(before), _core.HloModule(after))
  except ValueError as error:
    return str(error)


class Ops:
  """The ops of a module's entry computation and what each must follow."""

  def __init__(self, data: bytes):
    self.module = hlo_proto.Module(data)
    self.by_id = {i.id: i for i in self.module.instructions}
    self.ids = [i for i in self.module.sequence if self.by_id[i].opcode not in hlo_proto.GLUE]
    self.op_of = {instruction_id: op for op, instruction_id in enumerate(self.ids)}
    self.inputs = [self._ops_behind(self.by_id[i].operands) | self._ops_behind(self.by_id[i].control) for i in self.ids]

  def _ops_behind(self, ids):
    ops = set()
    for instruction_id in ids:
      if instruction_id in self.op_of:
        ops.add(self.op_of[instruction_id])
      else:
        ops |= self._ops_behind(self.by_id[instruction_id].operands)
    return ops

  def is_in_place(self, instruction_id):
    """Whether the op is a fusion with an in-place update as its root."""
    return any(self.module.opcodes[callee][-1] in IN_PLACE for callee in self.by_id[instruction_id].called)

  def apply(self, schedule):
    return _core.apply_schedule(_core.HloModule(self.module.encode()), np.array(self.ids), np.array(schedule, np.int32))

  def accepts(self, schedule):
    return not verify(self.module.encode(), self.apply(schedule))

  def in_given_order(self):
    return list(range(len(self.ids)))

  def random_topological_order(self, rng):
    remaining, order = self.in_given_order(), []
    while remaining:
      op = rng.choice([op for op in remaining if not self.inputs[op] & set(remaining)])
      remaining.remove(op)
      order.append(op)
    return order

  def randomly_moved(self, rng, num_moves):
    """The given order after moves of single ops; those that the verifier refuses are taken back."""
    order, refused = self.in_given_order(), 0
    for _ in range(num_moves):
      op = rng.choice(order)
      moved = [o for o in order if o != op]
      first = max((moved.index(o) + 1 for o in self.inputs[op]), default=0)
      last = min((moved.index(o) for o in moved if op in self.inputs[o]), default=len(moved))
      moved.insert(rng.randint(first, last), op)
      if self.accepts(moved):
        order = moved
      else:
        refused += 1
    return order, refused

  def with_clones(self, order, rng, num_tries):
    """`order` with ops repeated right before later users, where the verifier agrees."""
    candidates = [
      (op, user)
      for user in order
      for op in self.inputs[user]
      if order.index(user) > order.index(op) + 1
      and self.by_id[self.ids[op]].opcode not in NEVER_CLONED
      and not self.is_in_place(self.ids[op])
    ]
    schedule, refused = list(order), 0
    for op, user in rng.sample(candidates, min(num_tries, len(candidates))):
      longer = list(schedule)
      longer.insert(longer.index(user), op)
      if self.accepts(longer):
        schedule = longer
      else:
        refused += 1
    return schedule, refused


@pytest.mark.parametrize("name", MODELS)
def test_identity_through_the_hook(name):
  expected, before = untouched(name)
  compiled, _ = compile_through(lambda module: Ops(module).apply(Ops(module).in_given_order()), name)
  assert all(np.array_equal(a, b) for a, b in zip(run(compiled, name), expected, strict=True))
  ops = Ops(before)
  op_names = {ops.by_id[i].name for i in ops.ids}
  assert [n for n in entry_order(compiled) if n in op_names] == [ops.by_id[i].name for i in ops.ids]


@pytest.mark.parametrize("seed", range(2))
def test_every_topological_order_of_a_pure_program_is_accepted_and_exact(seed):
  expected, before = untouched("mlp_gradients")
  ops = Ops(before)
  order = ops.random_topological_order(random.Random(seed))
  assert order != ops.in_given_order()
  assert verify(before, ops.apply(order)) == ""
  compiled, _ = compile_through(lambda module: Ops(module).apply(order), "mlp_gradients")
  op_names = {ops.by_id[i].name for i in ops.ids}
  assert [n for n in entry_order(compiled) if n in op_names] == [ops.by_id[ops.ids[op]].name for op in order]
  assert all(np.array_equal(a, b) for a, b in zip(run(compiled, "mlp_gradients"), expected, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_reordered_and_cloned_programs_are_exact(name):
  expected, before = untouched(name)
  ops, rng = Ops(before), random.Random(7)
  order, refused_moves = ops.randomly_moved(rng, 30)
  schedule, refused_clones = ops.with_clones(order, rng, 20)
  num_clones = len(schedule) - len(order)
  assert order != ops.in_given_order() and num_clones >= 5
  if name == "mlp_gradients":
    assert refused_moves == 0 and refused_clones == 0
  after = ops.apply(schedule)
  assert verify(before, after) == ""
  compiled, module = compile_through(lambda module: Ops(module).apply(schedule), name)
  # (The bytes differ in the stack frames of this test.)
  assert hlo_proto.Module(module).instructions == ops.module.instructions
  names = entry_order(compiled)
  after_view = hlo_proto.Module(after)
  clones = {i.name for i in after_view.instructions if ".coop_remat" in i.name and i.opcode not in hlo_proto.GLUE}
  assert len(clones & set(names)) == num_clones
  name_of = {i.id: i.name for i in after_view.instructions}
  assert [n for n in names if n in set(name_of.values())] == [name_of[i] for i in after_view.sequence]
  assert all(np.array_equal(a, b) for a, b in zip(run(compiled, name), expected, strict=True))


def first_fusions(module):
  return [i for i in module.instructions if i.opcode == "fusion"][:2]


def swap_operands(module):
  instruction = next(i for i in module.instructions if i.opcode == "fusion" and len(set(i.operands)) == 2)
  module.replace(instruction.id, hlo_proto.OPERANDS, hlo_proto.pack(instruction.operands[::-1]))


def change_constant(module):
  for at, (number, raw) in enumerate(module.entry):
    parts = hlo_proto.fields(raw) if number == hlo_proto.COMPUTATION_INSTRUCTIONS else []
    if dict(parts).get(hlo_proto.OPCODE) == b"constant":
      literal = dict(parts)[hlo_proto.LITERAL]
      changed = literal[:-1] + bytes([literal[-1] ^ 1])
      module.entry[at] = (number, hlo_proto.encode([(n, changed if n == hlo_proto.LITERAL else v) for n, v in parts]))
      return


def drop_from_sequence(module):
  module.sequence = module.sequence[:-1]


def reverse_sequence(module):
  module.sequence = module.sequence[::-1]


def repeat_id(module):
  first, second = first_fusions(module)
  module.replace(second.id, hlo_proto.ID, first.id)


def call_another_computation(module):
  first, second = first_fusions(module)
  module.replace(second.id, hlo_proto.CALLED, hlo_proto.pack(first.called))


def move_root(module):
  (fusion, _), root = first_fusions(module), hlo_proto.COMPUTATION_ROOT
  module.entry = [(number, fusion.id if number == root else value) for number, value in module.entry]


BREAKS = {
  swap_operands: "operand 0 of '.*' is not what '.*' reads",
  change_constant: "'constant.*' differs from 'constant.*'",
  drop_from_sequence: "the schedule of '.*' lacks '.*'",
  reverse_sequence: "the schedule of '.*' has '.*' before '.*'",
  repeat_id: r"instruction id \d+ occurs twice",
  call_another_computation: "computation '.*' has the wrong number of callers",
  move_root: "the root changed",
}


@pytest.mark.parametrize("name", ["attention_step", "scan_step"])
@pytest.mark.parametrize("break_module", BREAKS)
def test_broken_modules_are_refused(break_module, name):
  _, before = untouched(name)
  assert verify(before, before) == ""
  broken = hlo_proto.Module(before)
  break_module(broken)
  assert re.fullmatch(BREAKS[break_module], verify(before, broken.encode()))


@pytest.mark.parametrize("name", ["attention_step", "scan_step"])
def test_a_clone_that_reads_an_overwritten_buffer_is_refused(name):
  """XLA's own copies make every order of the originals safe; only a clone can come too late, at the end say."""
  _, before = untouched(name)
  ops = Ops(before)
  refusals = [
    verify(before, ops.apply([*ops.in_given_order(), op]))
    for op, i in enumerate(ops.ids)
    if ops.by_id[i].opcode not in NEVER_CLONED and not ops.is_in_place(i)
  ]
  assert set(map(bool, refusals)) == {False, True}
  for refusal in filter(None, refusals):
    assert re.fullmatch("'.*coop_remat1' reads '.*' after '.*' has overwritten its buffer", refusal)


@pytest.mark.parametrize("name", ["attention_step", "scan_step"])
def test_what_must_not_run_twice_is_refused(name):
  _, before = untouched(name)
  ops = Ops(before)
  special = [op for op, i in enumerate(ops.ids) if ops.is_in_place(i) or ops.by_id[i].opcode in NEVER_CLONED]
  assert special
  for op in special:
    schedule = ops.in_given_order()
    schedule.insert(schedule.index(op) + 1, op)
    assert "must not run twice" in verify(before, ops.apply(schedule))


def test_malformed_bytes_are_refused():
  _, before = untouched("mlp_gradients")
  for garbage in (b"", before[: len(before) // 2]):
    with pytest.raises(ValueError):
      _core.HloModule(garbage)
  assert verify(before, b"\xff" * 100) != ""
  with pytest.raises(ValueError, match="lacks op 3"):
    Ops(before).apply([0, 1, 2])
  with pytest.raises(ValueError, match="before"):
    Ops(before).apply(Ops(before).in_given_order()[::-1])
