"""Every program of the process through the HLO engine: orders, budgets, marks, caches, threads, and other users."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax import _core, compat
from coopjax.hlo_engine import hook, module_plan
from coopjax.hlo_engine.mark import Mark
from coopjax.planners.base import PLANNERS
from coopjax.program.step_program import OUTPUT
from coopjax.xla import standing, targets
from coopjax.xla.compile import module_of
from coopjax.xla.module import parse_module, read_step_program
from tests.support import ROOT, models, sweeps
from tests.support.checks import assert_same_bits, compile_step, temp_bytes
from tests.support.hlo_hook import before_ours
from tests.support.hlo_proto import GLUE, Module
from tests.support.scheduled import GPT, MLP, plain, sequence, step_of

pytestmark = pytest.mark.optimized


def test_the_order_alone_takes_less_memory_with_the_same_bits(outcomes):
  with coopjax.enable():
    ordered = compile_step(*GPT)
  (outcome,) = [each for each in outcomes if each.name == "jit_loss"]
  assert temp_bytes(ordered) == outcome.predicted.temp_bytes < temp_bytes(plain()) == outcome.baseline.temp_bytes
  assert sequence(module_of(ordered)) == sequence(outcome.module_bytes) != sequence(module_of(plain()))
  assert sorted(sequence(module_of(ordered))) == sorted(sequence(module_of(plain())))
  assert ordered.cost_analysis()["flops"] == plain().cost_analysis()["flops"]
  assert_same_bits(ordered(*GPT[1:]), plain()(*GPT[1:]))


def deferring(module_bytes):
  """Another scheduler, one that leaves everything that makes a result for the end."""
  module = parse_module(module_bytes)
  program, ids = read_step_program(module)
  makes_results = np.array(
    [
      bool(len(program.outputs(op))) and (program.value_kind[program.outputs(op)] == OUTPUT).all()
      for op in range(program.num_ops)
    ]
  )
  read = {producer for producer in program.value_producer[program.op_inputs[1]] if producer >= 0}
  is_last = [makes_results[op] and op not in read for op in program.schedule]
  order = sorted(program.schedule, key=lambda op: is_last[list(program.schedule).index(op)])
  return _core.apply_schedule(module, ids, np.array(order, np.int32))


def test_weight_gradients_are_not_deferred_past_the_memory_they_hold():
  loss, weights, x = MLP
  fn = lambda weights, x: loss(weights, x * jnp.arange(512.0)[:, None])
  with before_ours(deferring):
    deferred = compile_step(fn, weights, x)
    with coopjax.enable():
      ordered = compile_step(fn, weights, x)
  layer_bytes = 512 * 64 * 4
  assert temp_bytes(deferred) >= temp_bytes(ordered) + 6 * layer_bytes  # cotangents of eight layers, all but a few
  assert_same_bits(ordered(weights, x), deferred(weights, x))


def test_a_budget_recomputes_only_in_programs_that_exceed_it(outcomes):
  budget_bytes = 3 * 2**19
  assert temp_bytes(plain("mlp")) < budget_bytes < temp_bytes(plain())
  with coopjax.enable("1.5 MiB"):
    small, large = compile_step(*MLP), compile_step(*GPT)
  assert "coop_remat" in large.as_text() and "coop_remat" not in small.as_text()
  assert temp_bytes(small) <= temp_bytes(plain("mlp")) and temp_bytes(large) <= budget_bytes
  assert large.cost_analysis()["flops"] > plain().cost_analysis()["flops"]
  assert_same_bits(large(*GPT[1:]), plain()(*GPT[1:]))
  by_name = [(each.name, each.result and each.result.num_recomputed > 0) for each in outcomes if "loss" in each.name]
  assert by_name == [("jit_loss", None), ("jit_loss", True)]


def test_a_budget_that_the_order_holds_recomputes_nothing(outcomes):
  with coopjax.enable():
    compile_step(*GPT)
  with coopjax.enable(outcomes[-1].predicted.temp_bytes):
    ordered = compile_step(*GPT)
  assert temp_bytes(ordered) == outcomes[-1].budget_bytes < temp_bytes(plain())
  assert "coop_remat" not in ordered.as_text()


def test_a_budget_out_of_reach_warns_and_takes_the_least_that_was_found():
  over = pytest.warns(coopjax.BudgetExceededWarning, match="jit_loss needs .* over its budget of 1.00 KiB")
  with coopjax.enable("1 KiB"), over:
    least = compile_step(*MLP)
  assert temp_bytes(least) < 0.6 * temp_bytes(plain("mlp"))
  assert_same_bits(least(*MLP[1:]), plain("mlp")(*MLP[1:]))


def test_device_is_what_the_device_has_less_arguments_and_results(monkeypatch, outcomes):
  machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  with coopjax.enable("device"):
    compile_step(*MLP)
    assert outcomes[-1].budget_bytes == machine - outcomes[-1].baseline.resident_bytes and not outcomes[-1].result
    resident_bytes, budget_bytes = outcomes[-1].baseline.resident_bytes, temp_bytes(plain("mlp")) // 2
    small = dataclasses.replace(targets.resolve("cpu"), memory_bytes=resident_bytes + budget_bytes)
    monkeypatch.setattr(targets, "resolve", lambda name: small)
    fitted = compile_step(*MLP)
  assert outcomes[-1].budget_bytes == budget_bytes >= temp_bytes(fitted) and "coop_remat" in fitted.as_text()


def test_with_brings_back_what_was_and_nests(outcomes):
  asked = lambda: None if hook.standing_mark("cpu") is None else str(hook.standing_mark("cpu").budget)
  assert asked() is None
  with coopjax.enable():
    assert asked() == "None"
    with coopjax.enable("6GiB", planner="coop"):
      assert asked() == "6.00 GiB" and hook.standing_mark("cpu").planner == "coop"
      coopjax.enable("1GiB")
      assert asked() == "1.00 GiB"
      coopjax.disable()
      assert asked() is None
    assert asked() == "None"
    with contextlib.suppress(ZeroDivisionError), coopjax.enable("6GiB"):
      raise ZeroDivisionError
    assert asked() == "None"
  assert asked() is None
  coopjax.disable()
  compile_step(*MLP)
  assert not outcomes


@pytest.mark.parametrize(
  "options, error",
  [
    ({"budget": 0}, coopjax.InvalidBudgetError),
    ({"budget": "much"}, coopjax.InvalidBudgetError),
    ({"planner": "best"}, ValueError),
    ({"effort": "much"}, ValueError),
    ({"time_limit_s": -1}, ValueError),
    ({"time_limit_s": "soon"}, ValueError),
  ],
)
def test_what_is_no_budget_or_planner_is_refused_at_once(options, error):
  with pytest.raises(error):
    coopjax.enable(**options)
  assert standing.current() is None


@pytest.mark.parametrize("planner", sweeps.all_but([name for name in PLANNERS if name != "model"], PLANNERS))
def test_every_planner_works_in_the_hook(planner, outcomes):
  step, share = (GPT, 0.98) if planner == "model" else (MLP, 0.7)  # MODeL orders and does not recompute
  alone = compile_step(*step)
  with coopjax.enable(share, planner=planner):
    fitted = compile_step(*step)
  assert temp_bytes(fitted) <= share * temp_bytes(alone) and outcomes[-1].fits and outcomes[-1].seconds < 3.0
  assert ("coop_remat" in fitted.as_text()) == (planner != "model")
  assert sequence(module_of(fitted)) == sequence(outcomes[-1].module_bytes)
  assert_same_bits(fitted(*step[1:]), alone(*step[1:]))


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_orders(planner):
  mark = Mark(None, planner, "fast")
  outcome = module_plan.plan_module(module_of(plain()), [mark])
  assert outcome.predicted.temp_bytes < temp_bytes(plain()) and outcome.result.num_recomputed == 0 and outcome.fits
  assert outcome.result.planner == (planner if planner in ("fastsa", "model") else "order")


def test_the_budget_of_a_mark_goes_first(outcomes):
  loss, weights, x = MLP
  marked = coopjax.remat(loss, budget=0.7, engine="hlo", planner="peak")
  for budget in (None, 0.5, "1TiB"):
    with coopjax.enable(budget):
      fitted = compile_step(marked, weights, x)
    assert outcomes[-1].budget_bytes == int(0.7 * temp_bytes(plain("mlp"))) >= temp_bytes(fitted)
  stricter = coopjax.remat(loss, budget=0.5, engine="hlo", planner="peak")
  both = lambda weights, x: marked(weights, x) + stricter(weights, x**2)
  with coopjax.enable(0.9):
    compile_step(both, weights, x)
  assert outcomes[-1].mark.budget.share == 0.5  # of both marks in one module the strictest


def test_a_mark_whose_budget_is_held_gets_a_better_order_all_the_same():
  loss, params, ids = GPT
  with pytest.warns(coopjax.RematNoEffectWarning):
    roomy = coopjax.remat(loss, budget="1TiB", engine="hlo", planner="peak")
    assert temp_bytes(compile_step(roomy, params, ids)) == temp_bytes(plain())
    with coopjax.enable():
      assert temp_bytes(compile_step(roomy, params, ids)) < temp_bytes(plain())


def test_a_peak_outside_the_marked_region_is_lowered_too():
  loss, weights, x = MLP
  step = lambda inner: lambda weights, x: inner(weights, x) + loss(weights, jnp.tile(x, (8, 1)))
  alone = compile_step(step(loss), weights, x)
  marked = coopjax.remat(loss, budget=temp_bytes(alone) // 2, engine="hlo", planner="peak")
  fitted = compile_step(step(marked), weights, x)  # what is marked is within the budget by itself: nothing to warn of
  assert temp_bytes(plain("mlp")) < temp_bytes(alone) / 6 and temp_bytes(fitted) <= temp_bytes(alone) / 2
  assert "coop_remat" in fitted.as_text()
  assert_same_bits(fitted(weights, x), alone(weights, x))


def test_plans_do_not_depend_on_what_is_enabled():
  make_plan = lambda: coopjax.plan(*MLP, budget=0.8, engine="hlo", planner="peak")
  alone = make_plan()
  with coopjax.enable(0.5):
    assert dataclasses.replace(make_plan(), planning_s=alone.planning_s) == alone


def test_what_was_jitted_before_is_compiled_anew_and_kept(outcomes):
  step, args = step_of(MLP[0]), MLP[1:]
  in_state = lambda: (step(*args), len(outcomes))[1]
  assert in_state() == 0
  coopjax.enable(0.5)
  assert in_state() == in_state() == 1
  coopjax.disable()
  assert in_state() == 1
  coopjax.enable(0.5)
  assert in_state() == 1  # an equal state: the program is still there
  coopjax.enable(0.6)
  assert in_state() == in_state() == 2


CACHED = """
  import contextlib, json, sys
  import jax, coopjax
  from tests.support import models
  from tests.support.checks import compile_step, temp_bytes
  jax.config.update("jax_compilation_cache_dir", sys.argv[1])
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
  hits = []
  jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("cache_hits")))
  loss, weights, x = models.mlp(depth=8, batch=512)
  found = {}
  def record(name, loss):
    hits.clear()
    found[name] = temp_bytes(compile_step(loss, weights, x)), sum(hits)
  record("plain", loss)
  for budget in (None, 0.7, 0.5):
    with coopjax.enable(budget, planner="peak"):
      record(f"enabled {budget}", loss)
  for share in (0.7, 0.5):
    marked = coopjax.remat(loss, budget=share, engine="hlo", planner="peak")
    record(f"marked {share}", marked)
  with coopjax.enable(0.5, planner="peak"):
    record("enabled, marked", marked)
  record("plain again", loss)
  print(json.dumps(found))
"""


@pytest.mark.sweep
def test_the_persistent_cache_never_skips_a_plan(tmp_path):
  environment = {**os.environ, "JAX_LOGGING_LEVEL": "INFO", "COOPJAX_CACHE_DIR": str(tmp_path / "decisions")}
  runs = []
  for _ in range(2):
    done = subprocess.run(
      [sys.executable, "-c", textwrap.dedent(CACHED), str(tmp_path / "programs")],
      cwd=ROOT,
      env=environment,
      text=True,
      capture_output=True,
      check=False,
      timeout=300,
    )
    assert done.returncode == 0, done.stderr
    runs.append((json.loads(done.stdout), done.stderr.count("coopjax.hook")))
  (first, num_planned), (second, num_planned_again) = runs
  temp = {name: bytes for name, (bytes, _) in first.items()}
  assert temp == {name: bytes for name, (bytes, _) in second.items()}
  for name, (num_bytes, _) in first.items():
    share = next((share for share in (0.5, 0.7) if str(share) in name), 0.5 if "marked" in name else 1.0)
    assert share * 0.8 * temp["plain"] < num_bytes <= share * temp["plain"], name
  assert not any(hits for name, (_, hits) in first.items() if name != "plain again")
  assert all(hits for _, hits in second.values()) and num_planned == 6 and num_planned_again == 0


def hidden(module_bytes):
  """What runs between each asynchronous start and its done, by their names."""
  module, between = Module(module_bytes), {}
  order = sequence(module_bytes)
  by_id = {each.id: each for each in module.instructions}
  for done in module.instructions:
    if done.opcode.endswith("-done"):
      start = by_id[done.operands[0]].name
      between[done.name] = set(order[order.index(start) + 1 : order.index(done.name)])
  return between


@pytest.mark.targets
@pytest.mark.parametrize("name, num_devices, batch", [("gpu:h100:2", 2, 2**13), ("tpu:v5e:2x2", 4, 2**16)])
def test_hardware_that_is_not_there(name, num_devices, batch, outcomes, monkeypatch):
  target = targets.resolve(name)
  target.load()
  mesh = jax.make_mesh((num_devices,), ("data",), devices=target.devices[:num_devices])
  over = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
  loss, weights, _ = models.mlp(depth=8, width=256, batch=8)
  avals = (
    [jax.ShapeDtypeStruct(weight.shape, weight.dtype, sharding=over()) for weight in weights],
    jax.ShapeDtypeStruct((batch, 256), jnp.float32, sharding=over("data")),
  )
  alone = step_of(loss).lower(*avals).compile()
  if compat.hook_platform(target.platform) is None:  # JAX runs no hooks there, and all is as it was
    with coopjax.enable(0.7):
      assert temp_bytes(step_of(loss).lower(*avals).compile()) == temp_bytes(alone) and not outcomes
    return
  came, plan_module = [], hook.plan_module
  monkeypatch.setattr(
    hook, "plan_module", lambda module, *args, **kwargs: (came.append(module), plan_module(module, *args, **kwargs))[1]
  )
  for budget in (None, 0.7):
    with coopjax.enable(budget, planner="peak"):
      planned = step_of(loss).lower(*avals).compile()
    outcome = outcomes[-1]
    assert outcome.fits and temp_bytes(planned) <= (budget or 1.0) * temp_bytes(alone)
    asked_bytes = outcome.module_bytes or module_of(alone)
    final, asked = sequence(module_of(planned), GLUE), sequence(asked_bytes, GLUE)
    common = set(final) & set(asked)  # XLA:TPU adds copies to and from vector memory
    assert len(common) > 20 and [each for each in final if each in common] == [each for each in asked if each in common]
    assert ("coop_remat" in planned.as_text()) == (budget is not None)
    if target.platform == "gpu":
      assert temp_bytes(planned) < temp_bytes(alone) and outcome.module_bytes
      before, after = hidden(came[-1]), hidden(asked_bytes)
      assert before and before.keys() == after.keys() and all(before[each] <= after[each] for each in before)
