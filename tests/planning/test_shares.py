"""A share, asked of the policy engine, is of the program that runs: held in it, or refused with the least that does."""

import functools
import re
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

import coopjax
from coopjax.budget import format_bytes
from coopjax.hlo_engine.mark import Mark, Whole
from coopjax.planning import around
from tests.support import models
from tests.support.checks import assert_same, temp_bytes

STACKS = {name: models.normal(i, 6, 128, 128) for i, name in enumerate("abc")}
ROWS = models.normal(9, 256, 128)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
PLAIN, WEIGHTS, X = models.mlp()


def scanned(params, x):
  def body(x, weights):
    y = jax.nn.gelu(jnp.tanh(x @ weights["a"]) @ weights["b"])
    return x + y @ weights["c"], None

  return jnp.mean(jax.lax.scan(body, x, params)[0] ** 2)


def optimized(remat):
  """All gradients at once, for clipping."""
  loss = remat(scanned)

  def step(params, state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value

  return jax.jit(step, donate_argnums=(0, 1)), (STACKS, OPTIMIZER.init(STACKS), ROWS)


def many_steps(remat):
  """Steps in a scan, whose gradients are temporaries of it."""
  loss = remat(scanned)

  def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda param, grad: param - 1e-3 * grad, params, grads), value

  return jax.jit(lambda params, xs: jax.lax.scan(step, params, xs)), (STACKS, jnp.stack([ROWS, 2 * ROWS]))


def jitted_inside(remat):
  """The trace does not show that no gradient is taken by the rows."""
  loss = jax.jit(remat(PLAIN))
  return jax.jit(jax.value_and_grad(lambda weights, x: loss(weights, x))), (WEIGHTS, X)


def beside_another(remat):
  """Another loss keeps twice as much, under no remat."""
  loss = remat(PLAIN)
  both = lambda weights, x: loss(weights, x) + PLAIN(weights, jnp.tile(jnp.cos(x), (2, 1)))
  return jax.jit(jax.value_and_grad(both)), (WEIGHTS, X)


def by_policy(share, **asked):
  return functools.partial(coopjax.remat, budget=share, engine="policy", effort="fast", **asked)


def bytes_of(step, arguments):
  return temp_bytes(step.lower(*arguments).compile())


@functools.cache
def unaided_bytes(program):
  return bytes_of(*program(lambda fn: fn))


@pytest.fixture
def looked_at(monkeypatch):
  """Programs around that were compiled without remats."""
  found, look = [], around._Program._unaided_bytes
  monkeypatch.setattr(around._Program, "_unaided_bytes", lambda *args: found.append(args[0]) or look(*args))
  return found


@pytest.mark.parametrize("program", [pytest.param(optimized, marks=pytest.mark.sweep), many_steps, jitted_inside])
def test_a_share_is_held_by_the_program_around(program, looked_at, monkeypatch):
  share = 0.52
  with monkeypatch.context() as without:  # what the function's own plan comes to: these programs test something
    without.setattr("coopjax.hlo_engine.compiles.limit_of_share", lambda *_: None)
    step, arguments = program(by_policy(share))
    assert bytes_of(step, arguments) > share * unaided_bytes(program)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    step, arguments = program(by_policy(share))
    fitted = step.lower(*arguments).compile()
  assert len(looked_at) == 1
  assert temp_bytes(fitted) <= share * unaided_bytes(program) and "rematted_computation" in fitted.as_text()
  fresh = lambda: jax.tree.map(jnp.copy, arguments)  # a step may be given them for good
  assert_same(fitted(*fresh()), program(lambda fn: fn)[0](*fresh()))


@pytest.mark.sweep
def test_a_share_that_the_program_around_does_not_reach_is_refused_with_what_it_does():
  step, arguments = beside_another(by_policy(0.6))
  with pytest.raises(coopjax.BudgetInfeasibleError, match=re.escape("0.6 of the un-rematerialized")) as caught:
    step.lower(*arguments)  # a plan may be refused at the trace, or
    step.lower(*arguments).compile()  # here
  assert caught.value.budget_bytes == int(0.6 * unaided_bytes(beside_another)) < caught.value.smallest_bytes
  step, arguments = beside_another(by_policy(caught.value.smallest_bytes))
  assert bytes_of(step, arguments) <= caught.value.smallest_bytes
  share = caught.value.smallest_bytes / unaided_bytes(beside_another) + 1e-9
  step, arguments = beside_another(by_policy(share))
  assert bytes_of(step, arguments) <= caught.value.smallest_bytes


def test_the_best_effort_warns_of_the_program_around_in_true_numbers():
  step, arguments = optimized(by_policy(0.52, on_infeasible="best_effort"))
  with pytest.warns(coopjax.BudgetExceededWarning) as told:
    fitted = step.lower(*arguments).compile()
  (message,) = (str(each.message) for each in told)
  allowed_bytes = int(0.52 * unaided_bytes(optimized))
  assert f"takes {format_bytes(temp_bytes(fitted))} of temporaries" in message
  assert f"over its budget of {format_bytes(allowed_bytes)}, 0.52 of the un-rematerialized" in message
  assert temp_bytes(fitted) > allowed_bytes


def test_what_is_within_the_share_of_the_function_alone_is_not_looked_at_again(looked_at):
  traces = []

  def loss(weights, x):
    traces.append("loss")
    return PLAIN(weights, x)

  step = jax.jit(jax.value_and_grad(by_policy(0.6)(loss)))
  assert bytes_of(step, (WEIGHTS, X)) <= 0.6 * bytes_of(jax.jit(jax.value_and_grad(PLAIN)), (WEIGHTS, X))
  assert traces == ["loss"] and not looked_at


def test_nothing_is_asked_of_a_program_that_takes_no_gradient_of_the_function(looked_at):
  """A teacher, and a larger student under no remat; an evaluation."""

  def distilled(remat):
    teacher = remat(PLAIN)
    student = lambda weights, x: PLAIN(weights, jnp.tile(x, (2, 1)))
    loss = lambda weights, x: (student(weights, x) - jax.lax.stop_gradient(teacher(WEIGHTS, x))) ** 2
    return jax.jit(jax.value_and_grad(loss))

  with warnings.catch_warnings():
    warnings.simplefilter("error")
    fitted = distilled(by_policy(0.6))(WEIGHTS, X)
    value = jax.jit(by_policy(0.6)(PLAIN))(WEIGHTS, X)
  assert not looked_at
  assert_same(fitted, distilled(lambda fn: fn)(WEIGHTS, X))
  assert_same(value, PLAIN(WEIGHTS, X))


def test_a_remat_in_a_remat_has_a_share_of_that_alone():
  inner = by_policy(0.5)(PLAIN)
  outer = by_policy(0.9)(lambda weights, x: inner(weights, x) + PLAIN(weights, jnp.sin(jnp.tile(x, (2, 1)))))
  plain = lambda weights, x: PLAIN(weights, x) + PLAIN(weights, jnp.sin(jnp.tile(x, (2, 1))))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    taken_bytes = bytes_of(jax.jit(jax.value_and_grad(outer)), (WEIGHTS, X))
  assert 0.5 < taken_bytes / bytes_of(jax.jit(jax.value_and_grad(plain)), (WEIGHTS, X)) <= 0.9


def test_a_share_is_of_the_program_where_jax_has_a_trace_of_a_part_from_another(looked_at):
  loss = jax.jit(by_policy(0.6)(PLAIN))
  loss(WEIGHTS, X)
  both = lambda weights, x: loss(weights, x) + PLAIN(weights, jnp.tile(jnp.cos(x), (2, 1)))
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    jax.jit(jax.value_and_grad(both)).lower(WEIGHTS, X).compile()
  assert caught.value.budget_bytes == int(0.6 * unaided_bytes(beside_another)) < caught.value.smallest_bytes
  assert len(looked_at) == 1


def test_a_share_is_held_where_the_step_is_compiled_again(looked_at):
  step, arguments = optimized(by_policy(0.6))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for again in [arguments, jax.device_put(arguments, jax.devices()[0])]:
      assert bytes_of(step, again) <= 0.6 * unaided_bytes(optimized)
  assert len(looked_at) == 2


def test_where_what_the_program_takes_is_not_known_that_is_said():
  """It is made of one under a `vmap` around."""
  step, arguments = beside_another(by_policy(0.6))
  with pytest.raises(coopjax.BudgetInfeasibleError):
    step.lower(*arguments).compile()
  examples = jnp.stack([X, X])
  with pytest.warns(coopjax.BudgetExceededWarning, match="may be over its budget of 0.6 .* is not known here"):
    jax.vmap(step, (None, 0))(WEIGHTS, examples)


@pytest.mark.parametrize(
  "whole, results_bytes, num_devices, least_bytes",
  [
    (Whole(0.5), 0, 1, 0),
    (Whole(0.5, 1000, 100), 100, 1, 1000),
    (Whole(0.5, 1000, 100), 40, 1, 1000),
    (Whole(0.5, 1000, 100), 300, 1, 800),  # 200 more bytes of results, in which temporaries may lie
    (Whole(0.5, 1000, 100), 3000, 1, 0),
    (Whole(0.5, 1000, 100), 100, 4, 1000),
    (Whole(0.5, 1000, 100, is_of_all=True), 25, 4, 250),
    (Whole(0.5, 1000, 100, is_of_all=True), 50, 4, 225),  # 200 on all four, 100 of them more
  ],
)
def test_what_a_program_takes_at_least(whole, results_bytes, num_devices, least_bytes):
  assert whole.at_least(results_bytes, num_devices) == least_bytes
  mark = Mark(coopjax.Budget(0.5), key="0123", refuses=True, whole=whole)
  assert Mark.from_text(mark.to_text()) == Mark.from_text(mark.to_choice()) == mark
