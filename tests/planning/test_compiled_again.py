"""A trace that JAX keeps, compiled again: for other arguments, under other options, in another jit or another step."""

import functools
import gc
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.planning import plannable
from tests.support.checks import assert_same, temp_bytes

WEIGHTS, X = [jnp.eye(64) + i for i in range(3)], jnp.ones((512, 64))
OPTIONS = {"xla_cpu_enable_fast_math": False}


def plain(weights, x):
  for weight in weights:
    x = jnp.tanh(x @ weight)
  return jnp.mean(x**2)


def penalized(loss, rate=0.1):
  """A step by a gradient of a gradient: of one name and one signature, whatever its rate is."""

  def step(weights, x):
    penalty = lambda weights: sum(jnp.vdot(grad, grad) for grad in jax.grad(loss)(weights, x))
    return jax.tree.map(lambda weight, grad: weight - rate * grad, weights, jax.grad(penalty)(weights))

  return step


@functools.cache
def least_bytes():
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(jax.jit(penalized(coopjax.remat(plain, budget=0.9))), WEIGHTS, X, budget=1, engine="policy")
  return caught.value.smallest_bytes


def remat(budget_bytes):
  return coopjax.remat(plain, budget=budget_bytes, engine="policy")


@pytest.fixture
def planned(monkeypatch):
  """The steps that are planned, in turn."""
  names, plan = [], plannable.plan_step
  monkeypatch.setattr(plannable, "plan_step", lambda step, *args: names.append(step.name) or plan(step, *args))
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  return names


@pytest.fixture(autouse=True)
def no_warnings():
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    yield


def committed():
  return jax.device_put((WEIGHTS, X), jax.devices()[0])


def test_what_is_compiled_again_is_held_and_planned_once(planned):
  budget_bytes = least_bytes() + 4096
  step = jax.jit(penalized(remat(budget_bytes)))
  lowered = step.lower(WEIGHTS, X)
  fitted = lowered.compile()
  assert "rematted_computation" in fitted.as_text()
  assert temp_bytes(fitted) <= budget_bytes < temp_bytes(jax.jit(penalized(plain)).lower(WEIGHTS, X).compile())
  results = step(WEIGHTS, X)
  num_planned = len(planned)
  assert_same(step(*committed()), results)
  assert temp_bytes(step.lower(*committed()).compile()) <= budget_bytes
  assert len(planned) == num_planned
  assert temp_bytes(lowered.compile(OPTIONS)) <= budget_bytes


def test_a_step_is_known_where_others_wrap_how_jax_compiles(monkeypatch):
  compile_lowered = jax.stages.Lowered.compile
  monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *args, **kwargs: compile_lowered(*args, **kwargs))
  budget_bytes = least_bytes() + 4096
  lowered = jax.jit(penalized(remat(budget_bytes))).lower(WEIGHTS, X)
  assert temp_bytes(lowered.compile(OPTIONS)) <= budget_bytes


def test_another_jit_of_a_traced_function_is_planned_as_that():
  budget_bytes = least_bytes() + 200_000
  step = penalized(remat(budget_bytes))
  kept = jax.jit(step).lower(WEIGHTS, X).compile()
  given = jax.jit(step, donate_argnums=0).lower(WEIGHTS, X).compile()
  assert max(temp_bytes(kept), temp_bytes(given)) <= budget_bytes
  assert kept.memory_analysis().alias_size_in_bytes == 0 < given.memory_analysis().alias_size_in_bytes
  results = kept(WEIGHTS, X)
  assert_same(given(jax.tree.map(jnp.copy, WEIGHTS), X), results)


def test_what_is_refused_is_refused_again_with_the_same_least(planned):
  step, found = jax.jit(penalized(remat(least_bytes() - 4096))), set()
  for arguments in [(WEIGHTS, X), (WEIGHTS, X), committed()]:
    with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
      step.lower(*arguments).compile()
    found.add(caught.value.smallest_bytes)
  assert found == {least_bytes()} and planned == ["step"]


def test_steps_that_share_a_function_are_each_what_they_were():
  """Of one name and one signature, and lowered before either is compiled."""
  loss, rates = remat(least_bytes()), (0.1, 0.7)
  lowered = [jax.jit(penalized(loss, rate)).lower(WEIGHTS, X) for rate in rates]
  fitted = [each.compile() for each in lowered]
  again = [each.compile(OPTIONS) for each in lowered]  # JAX keeps nothing of a function that is gone
  assert max(map(temp_bytes, [*fitted, *again])) <= least_bytes()
  for rate, *steps in zip(rates, fitted, again, strict=True):
    expected = jax.jit(penalized(plain, rate))(WEIGHTS, X)
    for step in steps:
      for got, wanted in zip(step(WEIGHTS, X), expected, strict=True):
        assert jnp.allclose(got, wanted, rtol=1e-4)


def test_shapes_of_one_function_are_each_planned_for():
  step = jax.jit(penalized(remat(least_bytes())))
  step.lower(WEIGHTS, X).compile()
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    step.lower(WEIGHTS, jnp.ones((1024, 64))).compile()
  assert caught.value.smallest_bytes > least_bytes()
  assert temp_bytes(step.lower(WEIGHTS, X).compile(OPTIONS)) <= least_bytes()


def test_a_step_is_planned_however_many_are_traced_before_it_is_compiled():
  first, *_ = [jax.jit(penalized(remat(least_bytes() + 64 * i))).lower(WEIGHTS, X) for i in range(10)]
  assert temp_bytes(first.compile()) <= least_bytes()


@pytest.mark.parametrize("clears_first", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_traces_that_jax_was_told_to_forget_are_made_again(clears_first):
  step = jax.jit(penalized(remat(least_bytes())))
  lowered = step.lower(WEIGHTS, X)
  if clears_first:
    jax.clear_caches()
  assert temp_bytes(lowered.compile()) <= least_bytes()
  jax.clear_caches()
  assert temp_bytes(step.lower(WEIGHTS, X).compile()) <= least_bytes()


def test_a_function_that_was_evaluated_is_planned_in_a_step():
  """Of the function, JAX has a trace that was made for another program."""
  loss = jax.jit(remat(least_bytes()))
  loss(WEIGHTS, X)
  assert temp_bytes(jax.jit(penalized(loss)).lower(WEIGHTS, X).compile()) <= least_bytes()


def test_threads_compile_at_once():
  lowered, found = jax.jit(penalized(remat(least_bytes()))).lower(WEIGHTS, X), {}

  def compile_it(i):
    found[i] = temp_bytes(lowered.compile(OPTIONS if i % 2 else {"xla_cpu_enable_fast_min_max": False}))

  threads = [threading.Thread(target=compile_it, args=(i,)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(found) == 4 and max(found.values()) <= least_bytes()


def test_a_remat_without_effect_is_told_of_at_each_compile_of_a_step_and_of_no_evaluation():
  loss = remat(2**30)
  for options in (None, OPTIONS):
    with pytest.warns(coopjax.RematNoEffectWarning, match="has no effect") as told:
      jax.jit(jax.grad(loss)).lower(WEIGHTS, X).compile(options)
    assert len(told) == 1
    jax.jit(loss).lower(WEIGHTS, X).compile(options)


def test_a_plan_of_a_step_that_its_trace_carries_out_is_held_where_that_is_compiled_in_another_jit():
  """Blocks that alone can't be brought to their share; where arguments are given, temporaries lie in results less."""
  weights, x = [jnp.eye(64) / 10 + i / 100 for i in range(5)], jnp.ones((128, 64))

  def step(remat):
    block = remat(lambda weight, x: jnp.tanh(x @ weight) + jnp.sin(x))
    loss = lambda weights, x: jnp.mean(functools.reduce(lambda x, weight: block(weight, x), weights, x) ** 2)
    return lambda weights, x: jax.tree.map(lambda w, grad: w - 0.1 * grad, weights, jax.grad(loss)(weights, x))

  def bytes_of(step, **options):
    return temp_bytes(jax.jit(step, **options).lower(weights, x).compile())

  fitted = step(functools.partial(coopjax.remat, budget=0.64, engine="policy", effort="fast"))
  assert bytes_of(fitted) <= 0.64 * bytes_of(step(lambda fn: fn))
  unaided_bytes = bytes_of(step(lambda fn: fn), donate_argnums=0)
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    bytes_of(fitted, donate_argnums=0)
  assert caught.value.budget_bytes == int(0.64 * unaided_bytes) < caught.value.smallest_bytes


def test_nothing_is_kept_of_steps_that_are_gone():
  def gone():
    data = jnp.ones(8)
    step = penalized(lambda weights, x: remat(least_bytes())(weights, x) + 0 * data.sum())
    jitted = jax.jit(step)
    jitted(WEIGHTS, X), jitted(*committed())
    return [weakref.ref(each) for each in (data, step)]

  references = gone()
  gc.collect()
  assert [reference() for reference in references] == [None, None]
