"""A remat in a step whose gradients weigh as much as what it keeps: the budget is the step's, held or refused so."""

import functools
import logging
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

import coopjax
from coopjax import compat
from coopjax.hlo_engine import compiles
from coopjax.jaxpr import cost
from coopjax.planning import around
from coopjax.planning.plannable import Plannable
from tests.support import models
from tests.support.checks import assert_same, num_dots, temp_bytes

PARAMS = {name: models.normal(i, 6, 128, 128) for i, name in enumerate("abc")}
X = models.normal(9, 256, 128)
MEASURED = compat.temp_bytes_of
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def block(x, weights):
  y = jax.nn.gelu(jnp.tanh(x @ weights["a"]) @ weights["b"])
  return x + y @ weights["c"]


def scanned(params, x, block=block):
  x, _ = jax.lax.scan(lambda x, weights: (block(x, weights), None), x, params)
  return jnp.mean(x**2)


def step_of(loss):
  def step(params, state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value

  return jax.jit(step, donate_argnums=(0, 1))


def arguments():
  """Fresh ones: the step is given them for good."""
  params = jax.tree.map(jnp.copy, PARAMS)
  return params, OPTIMIZER.init(params), X


@functools.cache
def compiled(loss):
  return step_of(loss).lower(*arguments()).compile()


DOTS = jax.checkpoint_policies.dots_saveable
BY_HAND = functools.partial(scanned, block=jax.checkpoint(block))
REMATS = {
  "function": lambda **asked: coopjax.remat(scanned, **asked),
  "jitted": lambda **asked: jax.jit(coopjax.remat(scanned, **asked)),
  "blocks": lambda **asked: functools.partial(scanned, block=coopjax.remat(block, **asked)),
}


WAYS = [("function", "policy"), ("jitted", "auto"), ("blocks", "policy"), ("blocks", "auto")]


@pytest.mark.sweep
@pytest.mark.parametrize("name, engine", WAYS)
def test_what_checkpoints_by_hand_reach_in_a_step_is_held_in_it(name, engine):
  plain, by_hand = compiled(scanned), compiled(BY_HAND)
  budget_bytes = temp_bytes(by_hand)
  alone = jax.jit(jax.value_and_grad(BY_HAND)).lower(PARAMS, X).compile()
  assert temp_bytes(alone) < 0.8 * budget_bytes < budget_bytes < temp_bytes(plain)  # it is the gradients that matter
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    step = step_of(REMATS[name](budget=budget_bytes, engine=engine))
    fitted = step.lower(*arguments()).compile()
    assert temp_bytes(fitted) <= budget_bytes
    assert num_dots(plain) < num_dots(fitted) <= num_dots(by_hand)
    results = step(*arguments())
  assert_same(results, plain(*arguments()))


def test_what_pmap_lowers_is_planned_as_a_whole():
  """It makes a stage of its own of what its jitted function lowers to."""

  def lowered(loss):
    step = lambda params, state, x: step_of(loss)(params, state, x)
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], arguments())
    return jax.pmap(step, donate_argnums=(0, 1)).lower(*one)

  plain, by_hand = lowered(scanned).compile(), lowered(BY_HAND).compile()
  fitted = lowered(coopjax.remat(scanned, budget=temp_bytes(by_hand), engine="policy")).compile()
  assert temp_bytes(fitted) <= temp_bytes(by_hand) < temp_bytes(plain)
  assert num_dots(plain) < num_dots(fitted) <= num_dots(by_hand)


@pytest.mark.parametrize("grown, is_held", [(1.02, True), pytest.param(50, False, marks=pytest.mark.sweep)])
def test_a_program_that_takes_more_than_when_it_was_planned_is_planned_for_less(grown, is_held, monkeypatch):
  """As on a GPU, whose compiler tries kernels out at every compile."""
  step = lambda budget: step_of(coopjax.remat(scanned, budget=budget, engine="policy"))
  budget_bytes = temp_bytes(step(int(temp_bytes(compiled(BY_HAND)) * 1.2)).lower(*arguments()).compile())
  monkeypatch.setattr(compiles.compat, "temp_bytes_of", lambda made: int(grown * MEASURED(made)))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    if is_held:
      fitted = step(budget_bytes).lower(*arguments()).compile()
      assert temp_bytes(fitted) <= budget_bytes / grown
      assert_same(fitted(*arguments()), compiled(scanned)(*arguments()))
      return
    with pytest.raises(coopjax.BudgetInfeasibleError, match="when it was planned: XLA makes another program") as caught:
      step(budget_bytes).lower(*arguments()).compile()
  assert caught.value.smallest_bytes > budget_bytes


@pytest.mark.sweep
@pytest.mark.parametrize("name, engine", [("function", "policy"), ("blocks", "auto")])
def test_the_least_bytes_that_the_error_names_are_the_steps(name, engine):
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    compiled(REMATS[name](budget=1, engine=engine))
  least_bytes = caught.value.smallest_bytes
  fitted = compiled(REMATS[name](budget=least_bytes, engine=engine))
  assert temp_bytes(fitted) <= least_bytes < temp_bytes(compiled(BY_HAND))
  assert num_dots(fitted) > num_dots(compiled(scanned))


def test_a_function_that_is_within_the_budget_in_a_step_that_is_not():
  """No word of a remat without effect, which it would be alone; where the step fits, too, one that says so."""
  alone, plain = jax.jit(jax.value_and_grad(scanned)).lower(PARAMS, X).compile(), compiled(scanned)
  budget_bytes = (temp_bytes(alone) + temp_bytes(plain)) // 2
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    fitted = compiled(coopjax.remat(scanned, budget=budget_bytes, engine="policy"))
  assert temp_bytes(fitted) <= budget_bytes and "rematted_computation" in fitted.as_text()
  with pytest.warns(coopjax.RematNoEffectWarning, match="program jit_step has no effect") as told:
    compiled(coopjax.remat(scanned, budget=temp_bytes(plain), engine="policy"))
  assert len(told) == 1


def test_a_step_that_can_not_be_planned_as_one_is_refused():
  """Two remats that ask for different budgets."""
  by_hand = temp_bytes(compiled(BY_HAND))

  def both(params, x):
    first = coopjax.remat(scanned, budget=by_hand, engine="policy")
    return first(params, x) + coopjax.remat(scanned, budget=by_hand + 1, engine="policy")(params, 2 * x)

  with pytest.raises(coopjax.BudgetInfeasibleError, match="plans the whole step"):
    compiled(both)


@pytest.mark.sweep
def test_a_share_that_the_function_alone_can_not_be_brought_to_is_of_the_step():
  """Two losses, kept at once, are twice what one keeps, and need not be."""
  x = jnp.tile(X, (8, 1))
  made = lambda gradient: jax.jit(gradient).lower(PARAMS, x).compile()
  two_of = lambda loss: made(jax.grad(lambda params, x: loss(params, x) * loss(params, jnp.sin(x))))
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(scanned, PARAMS, x, budget=1, engine="policy")
  share = 0.95 * caught.value.smallest_bytes / temp_bytes(made(jax.grad(scanned)))
  with pytest.raises(coopjax.BudgetInfeasibleError):
    coopjax.plan(scanned, PARAMS, x, budget=share, engine="policy")
  plain, fitted = two_of(scanned), two_of(coopjax.remat(scanned, budget=share, engine="policy"))
  assert temp_bytes(fitted) <= share * temp_bytes(plain)
  assert_same(fitted(PARAMS, x), plain(PARAMS, x))


SCALES = models.normal(3, 256, 96)
WEIGHTS = list(models.normal(4, 3, 96, 96) / 10)


def blocks(remat):
  """Blocks that alone keep what they must, and together more."""
  block = remat(lambda weight, x: jnp.tanh(x @ weight) + jnp.sin(SCALES) * x)

  def loss(weights, x):
    for weight in weights:
      x = block(weight, x)
    return jnp.mean(x**2)

  return loss


EVALUATIONS = {
  "jit": lambda loss, x: jax.jit(loss)(WEIGHTS, x),
  "vmap": lambda loss, x: jax.vmap(jax.jit(loss), (None, 0))(WEIGHTS, x[None]),
  "jvp": lambda loss, x: jax.jit(lambda x: jax.jvp(lambda x: loss(WEIGHTS, x), (x,), (x,)))(x),
  "scan": lambda loss, x: jax.lax.scan(lambda x, _: (loss(WEIGHTS, x) * x, None), x, None, 2),
}


@pytest.mark.parametrize("engine, budget", [("policy", 0.1), ("policy", 1), ("auto", 0.1)])
@pytest.mark.parametrize("name", EVALUATIONS)
def test_what_keeps_nothing_for_a_gradient_runs_at_any_budget(name, engine, budget):
  x, evaluate = SCALES, EVALUATIONS[name]
  remat = functools.partial(coopjax.remat, budget=budget, engine=engine, effort="fast")
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert_same(evaluate(blocks(remat), x), evaluate(blocks(lambda block: block), x))


def test_a_kept_trace_of_an_evaluation_repeats_all_where_a_gradient_is_taken_of_it():
  train = lambda loss: jax.jit(jax.value_and_grad(loss)).lower(WEIGHTS, SCALES).compile()
  as_function = lambda loss: jax.jit(coopjax.remat(loss, budget=1, engine="policy", effort="fast"))
  of_blocks = jax.jit(blocks(functools.partial(coopjax.remat, budget=0.1, engine="policy", effort="fast")))
  of_function = as_function(blocks(lambda block: block))
  jax.block_until_ready([of_blocks(WEIGHTS, SCALES), of_function(WEIGHTS, SCALES)])
  assert temp_bytes(train(of_blocks)) <= temp_bytes(train(jax.jit(blocks(jax.checkpoint))))
  with pytest.raises(coopjax.BudgetInfeasibleError):  # bytes hold what is compiled
    train(of_function)


def test_a_remat_in_a_remat_that_alone_can_not_be_brought_to_its_share_is_a_part_of_the_one_around():
  remat = functools.partial(coopjax.remat, budget=0.6, engine="policy", effort="fast")
  bytes_of = lambda loss: temp_bytes(jax.jit(jax.grad(loss)).lower(WEIGHTS, SCALES).compile())
  plain = blocks(lambda block: block)
  with pytest.raises(coopjax.BudgetInfeasibleError):
    coopjax.plan(lambda weight, x: blocks(remat)([weight], x), WEIGHTS[0], SCALES, budget=0.1, engine="policy")
  nested = remat(blocks(functools.partial(remat, budget=0.1)))
  assert bytes_of(nested) <= 0.6 * bytes_of(plain)
  assert_same(jax.jit(jax.grad(nested))(WEIGHTS, SCALES), jax.jit(jax.grad(plain))(WEIGHTS, SCALES))
  plan = coopjax.plan(blocks(functools.partial(remat, budget=0.1)), WEIGHTS, SCALES, budget=0.6, engine="policy")
  assert bytes_of(plan.apply(blocks(functools.partial(remat, budget=0.1)))) <= 0.6 * bytes_of(plain)


@pytest.mark.parametrize("setting", [jax.set_mesh, pytest.param(lambda mesh: mesh, marks=pytest.mark.sweep)])
def test_a_step_that_is_lowered_under_a_mesh_is_planned_as_a_whole_when_it_is_compiled_outside(setting):
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

  def split(params, x):
    return scanned(params, jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec("data")))

  def compiled_outside(loss):
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", DeprecationWarning)  # of a mesh as a context
      with setting(mesh):
        lowered = step_of(loss).lower(*arguments())
    return lowered.compile()

  budget_bytes = temp_bytes(compiled(BY_HAND))
  fitted, plain = map(compiled_outside, (coopjax.remat(split, budget=budget_bytes, engine="policy"), split))
  assert temp_bytes(fitted) <= budget_bytes < temp_bytes(plain)
  assert num_dots(fitted) > num_dots(plain)


def test_a_step_that_was_traced_under_other_settings_is_not_planned_as_another_program(caplog):
  by_hand = temp_bytes(compiled(BY_HAND))
  with jax.default_matmul_precision("bfloat16"):
    lowered = step_of(coopjax.remat(scanned, budget=by_hand, engine="policy")).lower(*arguments())
  with pytest.raises(coopjax.BudgetInfeasibleError):
    lowered.compile()
  assert "it was traced under other settings of JAX" in caplog.text


def test_why_a_program_is_not_planned_as_a_whole_is_logged_where_people_look(monkeypatch, caplog):
  def failing(*args, **kwargs):
    raise RuntimeError("a defect")

  by_hand = temp_bytes(compiled(BY_HAND))
  monkeypatch.setattr(Plannable, "plan", failing)
  monkeypatch.setattr(around._Program, "in_another_way", lambda *_: None)
  monkeypatch.setattr(around, "_results", around.Results())  # of other tests
  with pytest.raises(coopjax.BudgetInfeasibleError, match="not the program that the policy engine planned"):
    compiled(coopjax.remat(scanned, budget=by_hand, engine="policy"))
  ((logger, level, message),) = caplog.record_tuples
  assert (logger, level) == ("coopjax.planning", logging.WARNING) and "RuntimeError: a defect" in message


def recurrent(params, x, block):
  """A scan over time in each turn of a scan over layers."""

  def layer(x, weights):
    def turn(hidden, token):
      hidden = jnp.tanh(token @ weights["a"] + hidden @ weights["b"])
      return hidden, hidden * jax.nn.sigmoid(token @ weights["c"])

    return jax.lax.scan(turn, jnp.zeros_like(x[0]), x)[1], None

  return jnp.mean(jax.lax.scan(block(layer), x, params)[0] ** 2)


def unrolled(params, x, block):
  """Gated layers, one after the other."""

  def layer(x, weights):
    gate, value = jax.nn.sigmoid(x @ weights["a"]), jnp.tanh(x @ weights["b"])
    return x + jnp.where(value > 0, gate * value, jnp.sin(value)) @ weights["c"]

  for i in range(6):
    x = block(layer)(x, jax.tree.map(lambda stack, i=i: stack[i], params))
  return jnp.mean(x**2)


@pytest.mark.parametrize(
  "program, x",
  [
    (recurrent, X.reshape(16, 16, 128)),
    pytest.param(unrolled, jnp.tile(X, (8, 1)), marks=pytest.mark.sweep),
  ],
)
def test_a_step_repeats_no_more_than_with_products_saved_around_each_layer(program, x):
  flops = lambda step: cost.jaxpr_flops(compat.dce(jax.make_jaxpr(step)(*arguments()[:2], x).jaxpr))

  def measured(loss):
    step = step_of(loss)
    return temp_bytes(step.lower(*arguments()[:2], x).compile()), flops(step)

  loss_of = lambda block: functools.partial(program, block=block)
  hand_bytes, hand_flops = measured(loss_of(functools.partial(jax.checkpoint, policy=DOTS)))
  plain_bytes, plain_flops = measured(loss_of(lambda layer: layer))
  assert hand_bytes < plain_bytes and hand_flops > plain_flops
  step = step_of(coopjax.remat(loss_of(lambda layer: layer), budget=0.5))
  plan = coopjax.plan(step, *arguments()[:2], x, budget=hand_bytes, engine="policy")
  assert plan.measured.temp_bytes <= hand_bytes
  assert plain_flops < flops(plan.apply(step)) <= hand_flops


def test_a_step_that_calls_back_does_so_once():
  budget_bytes, seen = temp_bytes(compiled(BY_HAND)), []

  def watched(params, x):
    loss = coopjax.remat(scanned, budget=budget_bytes, engine="policy")(params, x)
    jax.debug.callback(seen.append, loss)
    return loss

  step = step_of(watched)
  assert temp_bytes(step.lower(*arguments()).compile()) <= budget_bytes
  _, _, loss = step(*arguments())
  jax.effects_barrier()
  assert [float(each) for each in seen] == [float(loss)]
