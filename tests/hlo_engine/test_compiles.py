"""JAX's compilation cache and exported programs: neither may lose a plan, or what was to be said of it."""

import subprocess
import sys
import textwrap
import warnings

import jax
import pytest
from jax import export
from jax.experimental.compilation_cache import compilation_cache

import coopjax
from coopjax import compat
from coopjax.hlo_engine import hook
from tests.support import ROOT
from tests.support.checks import compile_step, temp_bytes
from tests.support.scheduled import MLP, plain


@pytest.fixture
def hits(tmp_path):
  """JAX keeps what it compiles; one entry for each program that comes from there."""
  found = []
  settings = {"compilation_cache_dir": str(tmp_path), "persistent_cache_min_compile_time_secs": 0.0}
  before = {name: getattr(jax.config, f"jax_{name}") for name in settings}

  def change(values):
    for name, value in values.items():
      jax.config.update(f"jax_{name}", value)
    compilation_cache.reset_cache()

  listener = lambda event, **_: found.append(event) if event.endswith("cache_hits") else None
  jax.monitoring.register_event_listener(listener)
  change(settings)
  yield found
  change(before)
  jax.monitoring.unregister_event_listener(listener)


def compiled(*, budget):
  """A step under a mark, traced anew: JAX has it on disk at most."""
  loss, weights, x = MLP
  fitted = coopjax.remat(loss, budget=budget, engine="hlo", on_infeasible="best_effort")
  return compile_step(lambda weights, x: fitted(weights, x), weights, x)


def told_of(compile_it):
  """What a compile warns of, in the hook or on the way out of the cache."""
  with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    compile_it()
  messages = [str(each.message) for each in told if each.category is coopjax.BudgetExceededWarning]
  return [message for message in messages if message.startswith("the program")]


def test_what_fails_once_is_planned_the_next_time(hits, tmp_path, monkeypatch, caplog):
  compiled(budget=0.8)  # the choice is kept, so that what fails below is the hook
  plan_module = hook.plan_module
  for path in tmp_path.iterdir():
    path.unlink()

  def fail(*_, **__):
    raise MemoryError("not enough for a plan")

  monkeypatch.setattr(hook, "plan_module", fail)
  assert temp_bytes(compiled(budget=0.8)) == temp_bytes(plain("mlp")) and "not enough for a plan" in caplog.text
  monkeypatch.setattr(hook, "plan_module", plan_module)
  assert not hits
  planned = temp_bytes(compiled(budget=0.8))
  assert planned < temp_bytes(plain("mlp")) and not hits
  assert temp_bytes(compiled(budget=0.8)) == planned and len(hits) == 1


def test_a_program_over_its_budget_says_so_wherever_it_comes_from(hits):
  (first,), (second,) = (told_of(lambda: compiled(budget="1 KiB")) for _ in range(2))
  assert len(hits) == 1 and first.endswith("over its budget of 1.00 KiB.")
  assert "from JAX's compilation cache" in second and second.endswith("over its budget of 1.00 KiB")
  hits.clear()
  loss, weights, x = MLP
  for _ in range(2):  # no mark would tell: it is not kept
    with coopjax.enable("1 KiB"):
      (message,) = told_of(lambda: compile_step(lambda weights, x: loss(weights, x), weights, x))
      assert "over its budget of 1.00 KiB" in message
  assert not hits


RUN_EXPORTED = """
  import pathlib, sys
  import jax
  from jax import export
  if sys.argv[1] == "with":
    import coopjax
  for path in map(pathlib.Path, sys.argv[2:]):
    exported = export.deserialize(path.read_bytes())
    shapes, kwargs = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    stats = jax.jit(exported.call).lower(*shapes, **kwargs).compile().memory_analysis()
    print(stats.temp_size_in_bytes)
"""


def test_what_is_refused_is_compiled_no_further_than_to_its_schedule(monkeypatch):
  compile_it, ended = compat.ProgramToCompile.compile, []

  def noting(program):
    try:
      return compile_it(program)
    except jax.errors.JaxRuntimeError:
      ended.append(program.name)
      raise

  loss, weights, x = MLP
  monkeypatch.setattr(compat.ProgramToCompile, "compile", noting)
  fitted = coopjax.remat(loss, budget=64, engine="hlo")
  with pytest.raises(coopjax.BudgetInfeasibleError):
    compile_step(lambda weights, x: fitted(weights, x), weights, x)
  assert len(ended) == 1


@pytest.mark.sweep
def test_exported_programs_are_planned_wherever_coopjax_is_imported(tmp_path, caplog):
  loss, weights, x = MLP
  here, paths = [], []
  for engine in ("hlo", "policy"):
    step = jax.jit(jax.value_and_grad(coopjax.remat(loss, budget=0.8, engine=engine)))
    caplog.clear()
    paths.append(tmp_path / engine)
    paths[-1].write_bytes(export.export(step)(weights, x).serialize())
    assert ("exported with a mark for coopjax" in caplog.text) == (engine == "hlo")
    here.append(temp_bytes(step.lower(weights, x).compile()))

  def elsewhere(how):
    command = [sys.executable, "-c", textwrap.dedent(RUN_EXPORTED), how, *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
    return [int(line) for line in done.stdout.split()]

  by_mark, by_policy = elsewhere("without")
  assert elsewhere("with") == here and by_policy == here[1] and by_mark > here[0]
