"""The benchmark of planning time, on trivial programs."""

import importlib
import json
import sys

import pytest

from tests.support import ROOT

MODULES = ("planning_time", "hand_ladder", "ladder_programs", "reachable_budgets", "models", "tables", "backends")


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "examples")
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  monkeypatch.setenv("XLA_FLAGS", "")  # what it sets itself is for a process of its own
  yield importlib.import_module("planning_time")
  for name in MODULES:
    sys.modules.pop(name, None)


def rows_of(benchmark, monkeypatch, out, *options):
  monkeypatch.setattr(sys, "argv", ["planning_time.py", *options, "--out", str(out)])
  benchmark.main()
  return json.loads(out.read_text())["rows"]


@pytest.mark.sweep
def test_rows_say_what_planning_adds_and_are_kept(benchmark, monkeypatch, tmp_path, capsys):
  options = "--programs", "8 products", "--budgets", "0.5", "--engines"
  (hlo,) = rows_of(benchmark, monkeypatch, tmp_path / "rows.json", *options, "hlo")
  assert (hlo["num_compiles"], hlo["num_schedules"], hlo["num_modules"]) == (0, 0, 1)  # in the hook alone
  assert hlo["planning_s"] > hlo["compiles_s"] == 0 and hlo["ratio"] < hlo["xla_ratio"]
  again, policy = rows_of(benchmark, monkeypatch, tmp_path / "rows.json", *options, "hlo", "policy")
  assert again == hlo
  assert policy["num_modules"] == policy["num_compiles"] == 0 and policy["num_schedules"] >= 2
  assert "add no more than the first call" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:no plan brings")
@pytest.mark.parametrize("engine", ["hlo", "auto", "policy"])
def test_trivial_programs_are_planned_in_no_time(engine, benchmark):
  benchmark.measure(benchmark.WARM_UP, engine, 0.5, (1.0, 1.0))
  row = benchmark.measure("sine", engine, 0.5, benchmark.as_it_is("sine"))
  assert row["num_compiles"] + row["num_schedules"] <= 3 and row["num_modules"] <= 4


def test_every_example_that_plans_is_measured(benchmark):
  # The model of train_gpt, and its table; and launch files, whose steps have regions already.
  not_models = {"gpt", "side_by_side", "haliax_like", "launch_file"}
  assert {path.stem for path in (ROOT / "examples").glob("*.py")} - not_models <= set(benchmark.PROGRAMS)
