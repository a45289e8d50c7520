"""Decisions kept on disk: found by the next process, never trusted blindly, never in the way."""

import gzip
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import warnings

import jax
import pytest

import coopjax
from coopjax.planning import cache, files, function_plan
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from tests.support import ROOT, models
from tests.support.checks import assert_same_bits, compile_step, temp_bytes

KEY = cache.Key("fingerprint", "request", "environment")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  """A directory of each test's own, and a process that remembers nothing."""
  monkeypatch.setenv("COOPJAX_CACHE_DIR", str(tmp_path / "kept"))
  monkeypatch.setattr(function_plan, "_choices", function_plan.KeptChoices())
  return tmp_path / "kept"


def entry_of(home):
  (path,) = home.iterdir()
  return path


def altered(path, **changes):
  """Changes an entry as somebody does who knows of the checksum."""
  entry = {**json.loads(path.read_text()), **changes}
  path.write_text(json.dumps({**entry, "checksum": cache._checksum(entry["fields"])}))


def as_pipe(path):
  path.unlink()
  os.mkfifo(path)


def run_python(code, **environment):
  return subprocess.Popen(
    [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
    cwd=ROOT,
    text=True,
    env={**os.environ, **environment},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  )


def output_of(process):
  out, err = process.communicate(timeout=300)
  assert not process.returncode, err
  return out


@pytest.mark.sweep
def test_a_second_process_makes_no_planning_compile(home):
  code = """
    import coopjax
    from coopjax.planning import function_plan
    from tests.support import models
    from tests.support.checks import compile_step, temp_bytes
    choose, calls = function_plan.choose_anew, []
    function_plan.choose_anew = lambda *args, **kwargs: calls.append(1) or choose(*args, **kwargs)
    loss, params, x = models.mlp(depth=8, batch=512)
    print(temp_bytes(compile_step(loss, params, x)))
    for engine in ("auto", "policy"):
      fitted = compile_step(coopjax.remat(loss, budget=0.7, engine=engine), params, x)
      print(len(calls), temp_bytes(fitted), fitted.as_text().count("coop_remat"), fitted.as_text().count(" dot("))
  """
  first, second = (output_of(run_python(code)).splitlines() for _ in range(2))
  assert len(list(home.iterdir())) == 2
  plain = int(first[0])
  assert second[0] == first[0]
  for line, again, num_calls in zip(first[1:], second[1:], (1, 2), strict=True):
    assert line.split()[0] == str(num_calls) and again.split() == ["0", *line.split()[1:]]
    assert int(again.split()[1]) <= 0.75 * plain  # a share is of fn with all its gradients
  assert int(second[1].split()[2]) > 0  # the HLO engine cloned instructions


def test_a_kept_choice_is_carried_out_with_the_same_bits(home, monkeypatch):
  loss, params, x = models.mlp(depth=8, batch=512)
  fitted = coopjax.remat(loss, budget=0.7, engine="policy")
  first = compile_step(fitted, params, x)
  monkeypatch.setattr(function_plan, "_choices", function_plan.KeptChoices())
  monkeypatch.setattr(function_plan, "choose_anew", lambda *args, **kwargs: pytest.fail("planned again"))
  second = compile_step(fitted, params, x)
  plain = compile_step(loss, params, x)
  assert temp_bytes(second) == temp_bytes(first) <= 0.75 * temp_bytes(plain)
  assert second.as_text().count(" dot(") == first.as_text().count(" dot(") > plain.as_text().count(" dot(")
  assert_same_bits(second(params, x), first(params, x))


PLAN_TWO = """
  import coopjax, jax
  from coopjax.xla import compile
  from tests.support import models
  compile_it, calls = compile._compile, []
  compile._compile = lambda *args: calls.append(1) or compile_it(*args)
  loss, params, x = models.mlp(depth=8, batch=512)
  fitted = coopjax.remat(loss, budget=0.9)
  step = jax.jit(lambda params, x: jax.grad(fitted)(params, x), donate_argnums=0)
  for fn, engine in ((loss, "hlo"), (step, "policy")):
    plan = coopjax.plan(fn, params, x, budget=0.7, engine=engine)
    assert plan.fits and plan.measured.temp_bytes < plan.baseline.temp_bytes
    print(len(calls), plan.to_json().partition('"planning_s"')[0])
    calls.clear()
"""


def test_a_second_process_compiles_a_plan_once(home):
  first, second = (output_of(run_python(PLAN_TWO)).splitlines() for _ in range(2))
  assert len(list(home.iterdir())) == 2
  for line, again in zip(first, second, strict=True):
    assert int(line.split()[0]) > 1 and again.split()[0] == "1"
    assert again.split()[1:] == line.split()[1:]


def test_a_kept_plan_that_no_longer_holds_is_made_anew(home):
  loss, params, x = models.mlp(depth=8, batch=512)
  plan = lambda budget: coopjax.plan(loss, params, x, budget=budget, engine="policy")
  first = plan(0.7)
  entry = json.loads(entry_of(home).read_text())
  entry["fields"]["policy"]["regions"] = []
  altered(entry_of(home), fields=entry["fields"])
  assert plan(0.7) == first
  assert json.loads(entry_of(home).read_text())["fields"]["policy"]["regions"]
  altered(entry_of(home), fields={**entry["fields"], "decisions": None})
  with pytest.warns(coopjax.CacheWarning, match="planned anew"):
    assert plan(0.7) == first


@pytest.mark.parametrize(
  "spoil",
  [
    lambda path: path.write_text(""),
    lambda path: path.write_bytes(path.read_bytes()[:40]),
    lambda path: path.write_bytes(b"\xff\x00 no text"),
    lambda path: path.write_text("[1, 2]"),
    lambda path: path.write_text("{}"),
    lambda path: path.write_text(path.read_text().replace('"environment"', '"elsewhere"')),
    lambda path: path.write_text(path.read_text().replace('"mark": "m"', '"mark": "n"')),  # the checksum tells
    lambda path: path.write_text("[" * 100_000),
    lambda path: path.write_bytes(gzip.compress(bytes(10_000_000))),
    lambda path: os.truncate(path, files.MAX_BYTES + 1),  # no bytes on the disk
    as_pipe,  # nobody writes to it
    lambda path: altered(path, format=99),
    lambda path: altered(path, fields={"mark": 3, "decisions": None, "held": None, "alone": None}),
    lambda path: altered(path, fields={"mark": None}),
    lambda path: altered(path, fields={"mark": None, "decisions": {"regions": [{}]}, "held": None, "alone": None}),
    lambda path: altered(path, fields={"mark": None, "decisions": "none", "held": None, "alone": None}),
  ],
)
def test_corrupt_entries_are_ignored_with_a_warning(home, spoil):
  cache.store(KEY, {"mark": "m", "decisions": None, "held": None, "alone": None})
  assert cache.load(KEY, function_plan.Choice.from_json) == function_plan.Choice("m")
  spoil(entry_of(home))
  with pytest.warns(coopjax.CacheWarning, match="planned anew"):
    assert cache.load(KEY, function_plan.Choice.from_json) is None
  cache.store(KEY, {"mark": "m", "decisions": None, "held": None, "alone": None})
  assert cache.load(KEY, function_plan.Choice.from_json) == function_plan.Choice("m")


def test_a_team_can_read_entries_and_plans(home, tmp_path):
  outer = os.umask(0o027)
  try:
    cache.store(KEY, {"mark": "m", "decisions": None, "held": None, "alone": None})
    loss, params, x = models.mlp(depth=4, batch=256)
    coopjax.plan(loss, params, x, budget=0.9, engine="policy").save(tmp_path / "plan.json")
  finally:
    os.umask(outer)
  assert {path.stat().st_mode & 0o777 for path in (*home.iterdir(), tmp_path / "plan.json")} == {0o640}


def test_a_corrupt_entry_costs_a_plan_and_nothing_else(home, monkeypatch):
  loss, params, x = models.mlp(depth=8, batch=512)
  fitted = coopjax.remat(loss, budget=0.5)
  first = compile_step(fitted, params, x)
  entry_of(home).write_text("{")
  monkeypatch.setattr(function_plan, "_choices", function_plan.KeptChoices())
  with pytest.warns(coopjax.CacheWarning, match="ignoring"):
    second = compile_step(fitted, params, x)
  assert temp_bytes(second) == temp_bytes(first)
  json.loads(entry_of(home).read_text())  # mended


def test_choices_survive_the_way_through_json(home):
  decisions = PolicyDecisions((Region(None, (Segment(0, 3, True, ((1, 0), (2, 1))), Segment(3, 9))), Region(4, ())))
  Choice = function_plan.Choice
  for kept in (Choice(), Choice("mark"), Choice(None, decisions), Choice("mark", decisions)):
    request = function_plan.Request.checked(
      budget=0.5, planner="auto", engine="auto", target=None, effort="normal", time_limit_s=None, on_infeasible="error"
    )
    function_plan.KeptChoices().put(("fingerprint", request), kept, holds_budget=True)
    assert function_plan.KeptChoices().get(("fingerprint", request)) == kept
    assert function_plan.KeptChoices().get(("other", request)) is None


def test_only_what_holds_its_budget_is_kept(home):
  loss, params, x = models.mlp(depth=4, batch=256)
  with pytest.warns(coopjax.BudgetExceededWarning):
    compile_step(coopjax.remat(loss, budget="1 KiB", engine="hlo", on_infeasible="best_effort"), params, x)
  with pytest.warns(coopjax.RematNoEffectWarning):
    compile_step(coopjax.remat(loss, budget="1 TiB"), params, x)
  assert not home.exists()


@pytest.mark.parametrize(
  "change",
  [
    lambda patch: patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " --xla_cpu_enable_fast_math=false"),
    lambda patch: patch.setattr(cache.contexts, "code_digest", lambda: "another version"),
    lambda patch: patch.setattr(cache, "_package_versions", lambda: {"jax": "1.0"}),
    lambda patch: patch.setattr(jax, "device_count", lambda: 8),
    lambda patch: patch.setattr(cache, "FORMAT_VERSION", 99),
  ],
)
def test_another_version_flag_or_device_is_another_key(monkeypatch, change):
  key = lambda: cache.Key("fingerprint", "request", cache.environment())
  cache.store(key(), {"mark": "m", "decisions": None, "held": None, "alone": None})
  assert cache.load(key(), function_plan.Choice.from_json)
  change(monkeypatch)
  with warnings.catch_warnings():
    warnings.simplefilter("error")  # such entries are strangers, not corrupt
    assert cache.load(key(), function_plan.Choice.from_json) is None


def test_processes_that_write_at_once_never_see_half_an_entry(home):
  code = """
    import os
    from coopjax.planning import cache
    for turn in range(60):
      for name in ("shared", f"{os.getpid()}.{turn}"):
        key = cache.Key(name, "request", "environment")
        cache.store(key, {"text": "x" * 20_000})
        assert cache.load(key, lambda fields: fields["text"]) == "x" * 20_000
  """
  for process in [run_python(code) for _ in range(3)]:
    output_of(process)
  assert not [path for path in home.iterdir() if path.suffix != ".json"]


def test_the_oldest_entries_go(home, monkeypatch):
  monkeypatch.setattr(cache, "MAX_ENTRIES", 3)
  home.mkdir()
  (home / "notes.json").write_text("not ours")
  keys = [cache.Key(str(i), "", "") for i in range(5)]
  load = lambda key: cache.load(key, lambda fields: fields["i"])
  for i, key in enumerate(keys[:3]):
    cache.store(key, {"i": i})
    os.utime(home / cache._name(key), (i, i))
  assert load(keys[0]) == 0  # a hit makes it new
  for i in (3, 4):
    cache.store(keys[i], {"i": i})
  assert [load(key) for key in keys] == [0, None, None, 3, 4]
  assert (home / "notes.json").exists()


def test_a_directory_that_cannot_be_written_is_one_warning(tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("COOPJAX_CACHE_DIR", str(tmp_path / "file" / "below"))
  with pytest.warns(coopjax.CacheWarning, match="COOPJAX_CACHE_DIR"):
    cache.store(KEY, {})
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    cache.store(KEY, {})
    assert cache.load(KEY, dict) is None
  monkeypatch.setenv("COOPJAX_CACHE_DIR", str(tmp_path / "file"))
  with pytest.warns(coopjax.CacheWarning, match="it is no directory"):
    cache.store(KEY, {})


def test_where_entries_lie(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  assert cache.directory() is None
  cache.store(KEY, {})
  assert cache.load(KEY, dict) is None and not list(tmp_path.iterdir())
  monkeypatch.delenv("COOPJAX_CACHE_DIR")
  assert cache.directory() == tmp_path / "coopjax"
  monkeypatch.delenv("XDG_CACHE_HOME")
  assert cache.directory() == pathlib.Path.home() / ".cache" / "coopjax"
