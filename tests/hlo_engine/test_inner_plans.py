"""Plans inside loops, branches and nested loops: executed, compared by their bits, measured by the compiler."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax import _core
from coopjax.budget import Budget
from coopjax.hlo_engine import module_plan
from coopjax.hlo_engine.mark import Mark
from coopjax.planners.peak import PeakPlanner
from coopjax.program.cost import CPU
from coopjax.xla.module import parse_module, predict_memory, read_step_program
from tests.support import hlo_proto, models, sweeps
from tests.support.checks import assert_same_bits
from tests.support.hlo_hook import hook

pytestmark = pytest.mark.optimized


def compile_with(fn, *args, rewrite=lambda module: None):
  """``(module bytes at POST_SCHEDULER, compiled)``; ``rewrite`` may exchange the module on the way."""
  lowered, modules = jax.jit(lambda *args: fn(*args)).lower(*args), []  # a new function: nothing is cached

  def callback(module):
    modules.append(bytes(module))
    return rewrite(modules[0])

  with hook(callback):
    compiled = lowered.compile()
  (module,) = modules
  return module, compiled


def planned(module, share, effort="normal"):
  return module_plan.plan_module(module, [Mark(Budget(share=share), effort=effort)])


def num_clones(compiled, computation):
  """Clones in the optimized HLO's computation of that name."""
  body = re.search(rf"^%?{re.escape(computation)} \(.*?^}}", compiled.as_text(), re.MULTILINE | re.DOTALL)
  return len(re.findall(r"^\s*(?:ROOT )?%?[\w.\-]+\.coop_remat\d+ = ", body[0], re.MULTILINE))


def computations(compiled, attribute):
  """Names of the computations that instructions refer to by an attribute, ``body`` say."""
  found = re.findall(rf"\b{attribute}=(?:{{([^}}]*)}}|%?([\w.\-]+))", compiled.as_text())
  return [name.strip(" %") for listed, name in found for name in (listed or name).split(",")]


def accumulated(num_batches=3):
  """Gradients summed over batches: a loop whose body holds all residuals of an MLP's blocks."""
  loss, weights, x = models.mlp(depth=8, batch=512)

  def fn(weights, batches):
    def body(total, x):
      return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(weights, x)), None

    return jax.lax.scan(body, (0.0, jax.tree.map(jnp.zeros_like, weights)), batches)[0]

  return fn, weights, jnp.stack([x * k for k in range(1, num_batches + 1)])


def attention():
  """Gradients of attention blocks within each of two batches."""
  loss, params, ids = models.gpt(depth=2, length=32)

  def fn(params, batches):
    return jax.lax.map(lambda ids: jax.grad(loss)(params, ids)["embed"], batches)

  return fn, params, jnp.stack([ids, ids + 1])


def skips():
  """A loop run forward only; its body reads early values late."""

  def fn(weights, x):
    def body(x, _):
      saved = []
      for weight in weights:
        x = jnp.tanh(x @ weight)
        saved.append(x)
      for weight in weights:
        x = jnp.sin((x * saved.pop()) @ weight)
      return x, None

    return jax.lax.scan(body, x, None, length=3)[0]

  return fn, [models.normal(i, 64, 64) for i in range(5)], models.normal(9, 512, 64)


def scan_gradient():
  """The gradient of a scan; its backward loop remakes a block, whose residuals are the inner peak."""
  weights = models.normal(0, 2, 6, 64, 64)

  @jax.checkpoint
  def block(x, weights):
    for k in range(6):
      x = jnp.tanh(x @ weights[k])
    return x, None

  return (
    jax.grad(lambda weights, x: jnp.sum(jax.lax.scan(block, x, weights)[0] ** 2)),
    weights,
    models.normal(9, 512, 64),
  )


def nested():
  """The loop over batches inside another, over epochs."""
  fn, weights, batches = accumulated(num_batches=2)

  def descend(weights, batches):
    def epoch(weights, _):
      return jax.tree.map(lambda w, g: w - 0.1 * g, weights, fn(weights, batches)[1]), None

    return jax.lax.scan(epoch, weights, None, length=2)[0]

  return descend, weights, batches


def branches():
  """Either of two gradients."""
  loss, weights, x = models.mlp(depth=8, batch=512)
  other = lambda weights, x: jnp.sum(jnp.sin(loss(weights, x * 2)))

  def fn(weights, x):
    return jax.lax.cond(x[0, 0] > 0, jax.grad(loss), jax.grad(other), weights, x)

  return fn, weights, x


def until_small():
  """Descends as long as XLA can't say how long."""
  loss, weights, x = models.mlp(depth=8, batch=512)

  def fn(weights, x):
    def body(state):
      steps, weights = state
      return steps + 1, jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    return jax.lax.while_loop(lambda state: (state[0] < 3) & (state[1][0][0, 0] < 1e6), body, (0, weights))[1]

  return fn, weights, x


CASES = {
  "accumulated": (accumulated, 0.6, "body"),
  "attention": (attention, 0.5, "body"),
  "skips": (skips, 0.7, "body"),
  "scan_gradient": (scan_gradient, 0.75, "body"),
  "nested": (nested, 0.6, "body"),
  "branches": (branches, 0.5, "branch_computations|true_computation|false_computation"),
  "until_small": (until_small, 0.5, "body"),
}


@pytest.mark.parametrize("name", sweeps.all_but([name for name in CASES if name != "attention"], CASES))
def test_what_runs_inside_is_recomputed_inside(name):
  make, share, attribute = CASES[name]
  fn, *args = make()
  module, plain = compile_with(fn, *args)
  outcome = planned(module, share)
  assert outcome.fits and outcome.inner, outcome.rounds
  _, fitted = compile_with(fn, *args, rewrite=lambda _: outcome.module_bytes)
  temp_bytes = fitted.memory_analysis().temp_size_in_bytes
  assert temp_bytes == outcome.predicted.temp_bytes <= share * plain.memory_analysis().temp_size_in_bytes
  inside = sum(num_clones(fitted, computation) for computation in computations(fitted, f"(?:{attribute})"))
  assert inside >= sum(inner.result.num_recomputed for inner in outcome.inner) > 0
  assert_same_bits(fitted(*args), plain(*args))


def test_a_marked_loss_in_a_loop_is_planned_by_the_hook():
  loss, weights, x = models.mlp(depth=8, batch=512)

  def step(loss):
    def fn(weights, batches):
      def body(weights, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x)), None

      return jax.lax.scan(body, weights, batches)[0]

    return fn

  batches = jnp.stack([x, x * 2])
  plain = jax.jit(step(loss)).lower(weights, batches).compile()
  fitted = jax.jit(step(coopjax.remat(loss, budget=0.6, engine="hlo"))).lower(weights, batches).compile()
  assert fitted.memory_analysis().temp_size_in_bytes <= 0.6 * plain.memory_analysis().temp_size_in_bytes
  (body,) = computations(fitted, "body")
  assert num_clones(fitted, body) > 0
  assert_same_bits(fitted(weights, batches), plain(weights, batches))


def test_costs_are_those_of_all_runs():
  shares = [planned(compile_with(*accumulated(num_batches))[0], 0.6) for num_batches in (2, 6)]
  few, many = ([inner.result for inner in outcome.inner] for outcome in shares)
  assert many[0].recompute_flops == pytest.approx(3 * few[0].recompute_flops)
  assert [outcome.recompute_flops for outcome in shares] == [few[0].recompute_flops, many[0].recompute_flops]
  assert shares[0].overhead == pytest.approx(shares[1].overhead, rel=0.1) and shares[0].overhead > 0.02


def test_bounds_hold_whatever_is_planned_inside():
  module, _ = compile_with(*accumulated())
  for share in (0.8, 0.3, 0.05):
    outcome = planned(module, share, "fast")
    bound_bytes = _core.lower_bound(outcome.bound_program.core)[0]
    assert 0 < bound_bytes <= outcome.result.peak_live_bytes
    assert outcome.least_overhead <= outcome.overhead
    assert (outcome.bound_program.op_workspace_bytes <= outcome.program.op_workspace_bytes).all()


def test_a_module_is_read_once_and_told_of_as_it_came(monkeypatch):
  module, _ = compile_with(*accumulated())
  came, _ = read_step_program(module)
  monkeypatch.setattr(module_plan, "read_step_program", None)
  outcome = planned(module, 0.6)
  assert outcome.inner and outcome.fits
  for field in dataclasses.fields(came):
    if field.name != "op_workspace_bytes":  # inside, less is live now
      before, after = (jax.tree.leaves(getattr(program, field.name)) for program in (came, outcome.program))
      assert len(before) == len(after) and all(map(np.array_equal, before, after)), field.name
  assert (outcome.program.op_workspace_bytes <= came.op_workspace_bytes).all()
  assert outcome.program.op_workspace_bytes.sum() < came.op_workspace_bytes.sum()


def test_what_is_out_of_reach_is_as_small_as_can_be():
  module, plain = compile_with(*accumulated())
  outcome = planned(module, 0.05)
  assert not outcome.fits and outcome.predicted.temp_bytes < 0.7 * plain.memory_analysis().temp_size_in_bytes


@dataclasses.dataclass
class RandomProgram:
  """Matrices made from earlier ones by random ops, loops and branches."""

  rng: np.random.Generator
  has_gradient: bool
  size: int = 32

  def __call__(self, x, depth=0):
    values = [x]
    for _ in range(int(self.rng.integers(3, 6)) - depth):
      values.append(self.step(values, depth))
    for early in reversed(values):  # what came first is read last
      x = jnp.tanh(x @ early) + 0.1 * early
    return x

  def pick(self, values):
    return values[int(self.rng.integers(len(values)))]

  def step(self, values, depth):
    kinds = ["product", "unary", "mix", "update"]
    if depth == 0 or (depth == 1 and self.rng.random() < 0.3):
      kinds += ["scan", "cond"] + ["while"] * (not self.has_gradient)
    kind = self.rng.choice(kinds)
    a, b = self.pick(values), self.pick(values)
    match kind:
      case "product":
        return jnp.tanh(a @ b)
      case "unary":
        return [jnp.sin, jnp.tanh, lambda v: v.T, jnp.flip][int(self.rng.integers(4))](a)
      case "mix":
        return jnp.where(a > b, a * 0.5, jnp.roll(b, 1, 0))
      case "update":
        return a.at[int(self.rng.integers(self.size))].set(b[0])
      case "scan":
        return jax.lax.scan(lambda v, c: (self(v + c, depth + 1), v[0]), a, jnp.stack([b, a]))[0]
      case "while":
        limit = int(self.rng.integers(1, 4))
        body = lambda state: (state[0] + 1, self(state[1], depth + 1), state[1])
        return jax.lax.while_loop(lambda state: state[0] < limit, body, (0, a, b))[1]
      case "cond":
        return jax.lax.cond(b[0, 0] > 0, lambda v: self(v, depth + 1), lambda v: self(v * b, depth + 1), a)


@pytest.mark.parametrize("seed", sweeps.all_but([2], range(4)))
def test_random_programs_keep_their_bits(seed):
  has_gradient = bool(seed % 2)

  def fn(x):
    run = RandomProgram(np.random.default_rng(seed), has_gradient)
    return jax.value_and_grad(lambda x: jnp.sum(run(x)))(x) if has_gradient else run(x)

  x = models.normal(seed, 32, 32)
  module, plain = compile_with(fn, x)
  num_recomputed = 0
  for share in (0.8, 0.4):
    fitted_module, plans = everywhere(module, share)
    num_recomputed += sum(plan.num_recomputed for plan in plans)
    assert _core.verify_transform(parse_module(module), parse_module(fitted_module)) == ""
    _, fitted = compile_with(fn, x, rewrite=lambda _: fitted_module)
    assert fitted.memory_analysis().temp_size_in_bytes == predict_memory(fitted_module).temp_bytes
    for scale in (1, -2, 30):
      assert_same_bits(fitted(scale * x), plain(scale * x))
  assert num_recomputed > 0


def everywhere(module_bytes, share, computation_id=None):
  """The module with the entry, and all that it runs, planned for a share of its own peak, and the plans."""
  plans = []
  for inner in run_by(module_bytes, computation_id):
    module_bytes, inner_plans = everywhere(module_bytes, share, inner)
    plans += inner_plans
  module = parse_module(module_bytes)
  program, op_instruction_ids = read_step_program(module, CPU, computation_id)
  budget_bytes = int(share * _core.live_bytes(program.core, program.schedule).max(initial=0))
  plan = PeakPlanner().plan(program, budget_bytes)
  return _core.apply_schedule(module, op_instruction_ids, plan.schedule, computation_id), [*plans, plan]


def run_by(module_bytes, computation_id):
  """Ids of the computations that the loops, conditionals and calls of one run."""
  parts = hlo_proto.fields(module_bytes)
  computations = [hlo_proto.fields(value) for number, value in parts if number == hlo_proto.MODULE_COMPUTATIONS]
  wanted = dict(parts)[hlo_proto.MODULE_ENTRY_ID] if computation_id is None else computation_id
  (computation,) = (each for each in computations if dict(each).get(hlo_proto.COMPUTATION_ID, 0) == wanted)
  instructions = [
    hlo_proto.parse_instruction(value) for number, value in computation if number == hlo_proto.COMPUTATION_INSTRUCTIONS
  ]
  return [callee for each in instructions if each.opcode in ("while", "conditional", "call") for callee in each.called]
