"""The public doors, end to end: gradients, compiled bytes, and the recomputed ops in the optimized HLO."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import coopjax
from coopjax.budget import format_bytes
from coopjax.planning import choosing
from coopjax.policy_engine import search
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.policy_plan import PolicyPlan
from tests.support import models, sweeps
from tests.support.checks import assert_close, assert_same_bits, compile_step, num_dots, temp_bytes


@pytest.mark.optimized
@pytest.mark.parametrize(
  "model",
  [
    pytest.param(models.mlp, id="mlp"),
    pytest.param(functools.partial(models.gpt, depth=2), id="gpt", marks=pytest.mark.sweep),
  ],
)
def test_hlo_engine_fits_the_budget_with_the_same_bits(model):
  loss, params, x = model()
  plain = compile_step(loss, params, x)
  for share in (0.6, 0.35):
    fitted = compile_step(coopjax.remat(loss, budget=share, engine="hlo"), params, x)
    assert temp_bytes(fitted) <= share * temp_bytes(plain)
    assert_same_bits(fitted(params, x), plain(params, x))


def test_recomputed_ops_stand_in_the_optimized_hlo():
  loss, params, x = models.mlp()
  plain = compile_step(loss, params, x)
  fitted = compile_step(coopjax.remat(loss, budget=0.4, engine="hlo"), params, x)
  assert "coop_remat" in fitted.as_text() and "coop_remat" not in plain.as_text()
  assert fitted.cost_analysis()["flops"] > plain.cost_analysis()["flops"]


BUDGETS = 0.5, "400 KB", coopjax.Budget.total("1 MB")


@pytest.mark.parametrize("budget", sweeps.all_but(BUDGETS[::2], BUDGETS), ids=str)
def test_plan_reports_the_compilers_numbers(budget):
  loss, params, x = models.mlp(depth=8, batch=512)
  plan = coopjax.plan(loss, params, x, budget=budget)
  plain = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(params, x).compile()
  assert plan.fits and plan.measured.temp_bytes <= plan.budget_bytes
  assert plan.baseline.temp_bytes == temp_bytes(plain)
  assert 0 < plan.lower_bound_bytes <= plan.measured.peak_live_bytes + plan.measured.output_bytes  # outputs are scratch
  assert "tests/support/models.py" in plan.explain()
  recomputed = [function_plan for function_plan in plan.decisions if function_plan.decision == "recomputed"]
  assert recomputed and all(function_plan.times >= 1 for function_plan in recomputed)


@pytest.mark.sweep
@pytest.mark.optimized
def test_whole_train_step_with_donation_is_planned_in_place():
  loss, params, ids = models.gpt(depth=2)

  def make_step(loss):
    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, ids):
      value, grads = jax.value_and_grad(loss)(params, ids)
      return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step

  steps = [make_step(loss), make_step(coopjax.remat(loss, budget=0.4))]
  plain, fitted = (step.lower(params, ids).compile() for step in steps)
  assert temp_bytes(fitted) <= 0.4 * temp_bytes(plain)
  outcomes = []
  for step in steps:
    state = jax.tree.map(jnp.copy, params)
    for _ in range(3):
      state, value = step(state, ids)
    outcomes.append((state, value))
  assert_same_bits(*outcomes)


@pytest.mark.parametrize(
  "budget",
  [
    0,
    -1,
    0.0,
    1.5,
    "12 bananas",
    "",
    float("nan"),
    True,
    [1],
    None,
    "0%",
    "150%",
    "much%",
    coopjax.Budget(),
    coopjax.Budget(-5),
    coopjax.Budget(share=2.0),
    coopjax.Budget(2**20, share=0.5),
    coopjax.Budget(share=0.5, is_total=True),
  ],
)
def test_a_budget_that_is_none_is_refused_at_once(budget):
  with pytest.raises((coopjax.InvalidBudgetError, TypeError), match="budget"):
    coopjax.remat(lambda x: x, budget=budget)


def test_a_share_may_be_in_percent():
  assert coopjax.Budget.parse("12.5 %") == coopjax.Budget.parse(0.125)
  with pytest.raises(coopjax.InvalidBudgetError, match="a total is"):
    coopjax.Budget.total("50%")


@pytest.mark.parametrize("engine", [pytest.param("auto", marks=pytest.mark.sweep), "hlo"])
def test_a_total_that_is_missed_is_told_in_totals(engine):
  loss, params, x = models.mlp()
  memory = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(params, x).compile().memory_analysis()
  resident_bytes = memory.argument_size_in_bytes + memory.output_size_in_bytes
  budget = coopjax.Budget.total("1 KiB")
  with pytest.raises(coopjax.BudgetInfeasibleError) as planned:
    coopjax.plan(loss, params, x, budget=budget, engine=engine, planner="peak")
  with pytest.raises(coopjax.BudgetInfeasibleError) as compiled:
    fitted = coopjax.remat(loss, budget=budget, engine=engine, planner="peak")
    jax.jit(jax.value_and_grad(fitted, (0, 1))).lower(params, x).compile()
  for caught in (planned, compiled):
    error, told = caught.value, str(caught.value)
    temp_bytes = error.smallest_bytes - resident_bytes
    assert error.budget_bytes == 1024 and 0 < temp_bytes <= memory.temp_size_in_bytes
    sizes = map(format_bytes, (error.smallest_bytes, temp_bytes, resident_bytes))
    assert "{} in total, {} of temporaries and {} of arguments and outputs".format(*sizes) in told
    assert "1.00 KiB in total" in told and "-" not in told.partition("\n")[0].partition("budget of ")[2]
  lines = str(planned.value).splitlines()
  assert lines[1] == (
    f"arguments and outputs alone exceed it by {format_bytes(resident_bytes - 1024)}; the largest arguments are:"
  )
  assert planned.value.op == "arguments and outputs" and planned.value.largest[0][0] == x.nbytes


def test_what_is_exported_for_any_size_is_planned_when_it_is_compiled():
  loss, params, _ = models.mlp()
  fitted = jax.jit(jax.value_and_grad(coopjax.remat(loss, budget=0.5)))
  (batch,) = export.symbolic_shape("batch")
  shape = jax.ShapeDtypeStruct((batch, params[0].shape[0]), "float32")
  exported, x = export.export(fitted)(params, shape), models.normal(99, 768, params[0].shape[0])
  compiled, plain = jax.jit(exported.call).lower(params, x).compile(), compile_step(loss, params, x)
  assert temp_bytes(compiled) <= 0.5 * temp_bytes(plain)
  assert_same_bits(compiled(params, x), plain(params, x))
  with pytest.raises(ValueError, match="symbolic sizes"):
    coopjax.plan(loss, params, shape, budget=0.5)
  with pytest.warns(coopjax.RematNoEffectWarning, match="symbolic sizes"):
    jax.make_jaxpr(coopjax.remat(loss, budget=0.5, engine="policy"))(params, shape)


def test_a_budget_larger_than_needed_changes_nothing_and_says_so():
  loss, params, x = models.mlp()
  plain = compile_step(loss, params, x)
  with pytest.warns(coopjax.RematNoEffectWarning, match="within the budget of 1.00 TiB"):
    fitted = compile_step(coopjax.remat(loss, budget="1TiB"), params, x)
  assert temp_bytes(fitted) == temp_bytes(plain)
  with pytest.warns(coopjax.RematNoEffectWarning, match="within the budget"):
    plan = coopjax.plan(loss, params, x, budget="1TiB")
  assert plan.engine == "none" and plan.fits and plan.decisions == () and plan.overhead == 0


@pytest.mark.parametrize(
  "engine, planner", [("hlo", "auto"), pytest.param("auto", "peak", marks=pytest.mark.sweep), ("policy", "auto")]
)
def test_a_budget_too_small_names_what_forces_it(engine, planner):
  loss, params, x = models.mlp()
  with pytest.raises(coopjax.BudgetInfeasibleError, match="smallest reached is") as caught:
    coopjax.plan(loss, params, x, budget="1 KiB", engine=engine, planner=planner)
  error = caught.value
  assert error.budget_bytes == 1024 < error.smallest_bytes
  assert len(error.largest) == 3
  assert all(
    num_bytes > 0 and kind and "tests/support/models.py:" in source for num_bytes, kind, source in error.largest
  )
  with pytest.raises(coopjax.BudgetInfeasibleError):
    jax.jit(jax.grad(coopjax.remat(loss, budget="1 KiB", engine=engine, planner=planner)))(params, x)


def test_best_effort_takes_the_smallest_plan_and_warns():
  loss, params, x = models.mlp()
  best_effort = coopjax.remat(loss, budget="1 KiB", engine="hlo", on_infeasible="best_effort")
  with pytest.warns(coopjax.BudgetExceededWarning):
    fitted = compile_step(best_effort, params, x)
  plain = compile_step(loss, params, x)
  assert temp_bytes(fitted) < 0.5 * temp_bytes(plain)
  assert_same_bits(fitted(params, x), plain(params, x))


def test_auto_comes_as_near_to_a_budget_as_the_hlo_engine(monkeypatch):
  nothing_found = PolicyPlan(PolicyDecisions(), (), 2**40, 0.0, 1.0, False, smallest_bytes=2**40, unaided_bytes=2**40)
  monkeypatch.setattr(search, "plan_policy", lambda *_, **__: nothing_found)
  loss, params, x = models.mlp()
  with pytest.warns(coopjax.BudgetExceededWarning):
    plan, alone = (
      coopjax.plan(loss, params, x, budget="1 KiB", engine=engine, on_infeasible="best_effort")
      for engine in ("auto", "hlo")
    )
  assert plan.engine == "hlo" and plan.measured.temp_bytes == alone.measured.temp_bytes < plan.baseline.temp_bytes
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(loss, params, x, budget="1 KiB")
  assert caught.value.smallest_bytes == plan.measured.temp_bytes


@pytest.mark.parametrize("fn, args", [(lambda: 1.0, ()), (lambda n: n + 1, (3,)), (lambda n: n * 2, (jnp.arange(4),))])
def test_nothing_to_differentiate(fn, args):
  with pytest.raises(coopjax.NotDifferentiableError, match="no floating-point"):
    coopjax.plan(fn, *args, budget=0.5)
  fitted = coopjax.remat(fn, budget=0.5)
  assert_same_bits(jax.jit(fitted)(*args), jax.jit(fn)(*args))
  with pytest.warns(coopjax.RematNoEffectWarning, match="no floating-point"):
    jax.jit(jax.grad(lambda x: x * fitted(*args).sum() if args else x * fitted()))(1.0)


@pytest.mark.sweep
def test_closed_over_arrays_and_inner_checkpoints():
  loss, params, x = models.mlp()
  closed = lambda params: loss(params, x)
  inner = lambda params, x: loss(
    params[6:], jax.checkpoint(lambda p, x: functools.reduce(lambda x, w: jnp.tanh(x @ w), p, x))(params[:6], x)
  )
  for fn, args in ((closed, (params,)), (inner, (params, x))):
    plain, fitted = compile_step(fn, *args), compile_step(coopjax.remat(fn, budget=0.5), *args)
    assert temp_bytes(fitted) <= 0.5 * temp_bytes(plain)
    assert_same_bits(fitted(*args), plain(*args))


def test_decorator_forms_keep_name_and_statics():
  @coopjax.remat(budget=0.5, static_argnums=1, static_argnames="kind")
  def power(x, n, kind="sum"):
    """Sums a power."""
    return getattr(jnp, kind)(x**n)

  class Model:
    @coopjax.remat(budget=0.5, static_argnums=0)
    def loss(self, x):
      return jnp.sum(jnp.sin(x))

  assert power.__name__ == "power" and power.__doc__ == "Sums a power."
  assert float(jax.jit(jax.grad(power), static_argnums=1)(2.0, 3)) == 12.0
  assert float(jax.jit(jax.grad(lambda x: power(x, 2, kind="max")))(3.0)) == 6.0
  assert float(jax.jit(jax.grad(Model().loss))(0.0)) == 1.0


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::coopjax.BudgetExceededWarning")  # so small a gradient by weights is more than half
def test_transformations_compose():
  loss, params, x = models.mlp(depth=4, width=16, batch=32)
  fitted = coopjax.remat(loss, budget=0.5, on_infeasible="best_effort", planner="peak")
  for transform in (
    lambda f: jax.vmap(f, in_axes=(None, 0)),
    lambda f: lambda p, x: jax.jvp(lambda p: f(p, x[0]), (p,), (p,)),
    lambda f: lambda p, x: jax.vjp(lambda p: f(p, x[0]), p)[1](jnp.ones(())),
    lambda f: lambda p, x: jax.lax.scan(lambda c, row: (c + f(p, row), None), 0.0, x)[0],
    lambda f: lambda p, x: jax.value_and_grad(lambda p, x: (f(p, x), x), has_aux=True)(p, x[0]),
    lambda f: lambda p, x: jax.vmap(jax.grad(f), in_axes=(None, 0))(p, x),
  ):
    rows = jnp.stack([x, 2 * x])
    actual, expected = jax.jit(transform(fitted))(params, rows), jax.jit(transform(loss))(params, rows)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), actual, expected)


def test_plans_are_saved_loaded_and_applied(tmp_path):
  loss, params, x = models.mlp()
  plan = coopjax.plan(loss, params, x, budget=0.5)
  plan.save(tmp_path / "plan.json")
  loaded = coopjax.RematPlan.load(tmp_path / "plan.json")
  assert loaded == plan and loaded.explain() == plan.explain()
  plain, fitted = compile_step(loss, params, x), compile_step(loaded.apply(loss), params, x)
  assert temp_bytes(fitted) <= loaded.budget_bytes
  assert_same_bits(fitted(params, x), plain(params, x))
  with pytest.raises(coopjax.PlanMismatchError, match="fingerprint"):
    loaded.apply(loss)(params, x[:8])
  for text, complaint in (
    ("{}", "not a coopjax plan"),
    ("[1", "not a coopjax plan"),
    ('{"coopjax_plan": 99}', "format 99"),
    ('{"coopjax_plan": 3}', "missing"),
  ):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(coopjax.InvalidPlanError, match=complaint):
      coopjax.RematPlan.load(tmp_path / "bad.json")
  fields = plan.to_dict()
  for wrong, complaint in (
    ({"budget_bytes": "x"}, "budget_bytes is 'x', not a whole number"),
    ({"budget_bytes": True}, "budget_bytes is True, not a whole number"),
    ({"overhead": None}, "overhead is None, not a number"),
    ({"mesh": [1]}, r"mesh is \[1\], not text"),
    ({"is_drafted": 1}, "is_drafted is 1, not true or false"),
    ({"rounds": "one"}, "rounds is 'one', not a list"),
    ({"budget": {}}, "one of the two"),
    ({"measured": {**fields["measured"], "temp_bytes": 1.5}}, r"measured\.temp_bytes is 1.5, not a whole number"),
    ({"decisions": [{**fields["decisions"][0], "op": 3}]}, r"decisions\[0\]\.op is 3, not text"),
    ({"policy": {"regions": [], "home": "top"}}, r"policy\.home is 'top', not a whole number"),
    ({"shards": [["x"]]}, r"shards\[0\] is \['x'\], not 2 values"),
  ):
    (tmp_path / "bad.json").write_text(json.dumps({**fields, **wrong}))
    with pytest.raises(coopjax.InvalidPlanError, match=rf"bad\.json: a coopjax plan .*{complaint}"):
      coopjax.RematPlan.load(tmp_path / "bad.json")


def test_plans_are_deterministic(monkeypatch):
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  loss, params, x = models.mlp(depth=8)
  plans = [coopjax.plan(loss, params, x, budget=0.5, effort="fast") for _ in range(2)]
  assert plans[0] == plans[1]


def test_unknown_names_are_refused():
  for name, value in {
    "planner": "best",
    "engine": "cuda",
    "target": "tpu:v9",
    "on_infeasible": "ignore",
    "effort": "much",
    "time_limit_s": 0,
  }.items():
    with pytest.raises(ValueError, match=value or "time_limit_s"):
      coopjax.remat(lambda x: x, budget=0.5, **{name: value})
  for options in ({"budget": 0.5, "time_limit_s": "soon"}, {"plan": "plan.json"}):
    with pytest.raises((ValueError, TypeError), match="soon|plan.json"):
      coopjax.remat(lambda x: x, **options)
  with pytest.raises(TypeError, match="takes a function"):
    coopjax.remat(0.5, budget=0.5)


def test_a_scan_needs_the_policy_engine():
  def loss(stack, x):
    x, _ = jax.lax.scan(lambda x, weight: (jnp.sin(jnp.tanh(x @ weight)), None), x, stack)
    return jnp.mean(x**2)

  _, weights, x = models.mlp()
  stack = jnp.stack(weights)
  with pytest.raises(coopjax.BudgetInfeasibleError, match="while"):
    coopjax.plan(loss, stack, x, budget=0.6, engine="hlo")
  plan = coopjax.plan(loss, stack, x, budget=0.6, effort="fast")
  assert plan.fits and "policy" in plan.engine and plan.decisions and plan.rounds and plan.lower_bound_bytes == 0
  assert coopjax.RematPlan.from_json(plan.to_json()) == plan
  plain, fitted = compile_step(loss, stack, x), compile_step(plan.apply(loss), stack, x)
  assert temp_bytes(fitted) <= 0.6 * temp_bytes(plain)
  assert num_dots(fitted) + fitted.as_text().count("rematted_computation") > num_dots(plain)
  assert_close(fitted(stack, x), plain(stack, x), rtol=2e-5, atol=1e-7)


def test_where_the_hlo_engine_alone_is_dear_the_policy_engine_is_asked_too(monkeypatch):
  loss, params, ids = models.mlp(depth=8)
  asked, plan_policy = [], choosing.search.plan_policy

  def recording(*args, **kwargs):
    asked.append(kwargs["below_flops"])
    return plan_policy(*args, **kwargs)

  monkeypatch.setattr(choosing.search, "plan_policy", recording)
  alone = coopjax.plan(loss, params, ids, budget=0.75, effort="fast")
  assert alone.engine == "hlo" and alone.fits and not asked  # little to repeat: no more compiles
  monkeypatch.setattr(choosing, "_ASKS_POLICY_ABOVE", 0.0)
  both = coopjax.plan(loss, params, ids, budget=0.75, effort="normal")
  assert asked and min(asked) < math.inf
  assert both.fits and both.recompute_flops <= max(asked)
