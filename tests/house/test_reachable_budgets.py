"""The benchmark of reachable budgets, on two programs."""

import importlib
import json
import sys

import pytest

from tests.support import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  monkeypatch.setenv("XLA_FLAGS", "")  # what it sets itself is for a process of its own
  yield importlib.import_module("reachable_budgets")
  sys.modules.pop("reachable_budgets")


def rows_of(benchmark, monkeypatch, out, *options):
  monkeypatch.setattr(sys, "argv", ["reachable_budgets.py", *options, "--out", str(out)])
  with pytest.raises(SystemExit) as ended:
    benchmark.main()
  return ended.value.code, json.loads(out.read_text())["rows"]


@pytest.mark.parametrize("engine", ["hlo", pytest.param("policy", marks=pytest.mark.sweep)])
def test_what_is_reached_by_hand_and_what_an_error_names_is_held(engine, benchmark, monkeypatch, tmp_path, capsys):
  options = "--models", "residual", "--engines", engine
  code, (row,) = rows_of(benchmark, monkeypatch, tmp_path / "rows.json", *options)
  assert not code and row["holds_hand"] and row["holds_least"]
  assert row["least_got_bytes"] <= row["least_bytes"] < row["hand_got_bytes"] <= row["hand_bytes"] < row["plain_bytes"]
  assert "2 of 2 budgets held, 0 by hand refused" in capsys.readouterr().out


def test_what_only_checkpoints_in_a_loop_reach_the_hlo_engine_refuses(benchmark, monkeypatch, tmp_path, capsys):
  options = "--models", "scanned", "--engines", "hlo"
  code, (row,) = rows_of(benchmark, monkeypatch, tmp_path / "rows.json", *options)
  assert not code and not row["holds_hand"] and row["holds_least"] and "least for the budget by hand" in row["error"]
  assert "1 of 2 budgets held, 1 by hand refused" in capsys.readouterr().out


def test_a_budget_that_is_neither_held_nor_refused_fails_the_run(benchmark, monkeypatch, tmp_path):
  monkeypatch.setattr(benchmark.coopjax, "remat", lambda fn, **_: fn)
  options = "--models", "residual", "--engines", "policy"
  code, (row,) = rows_of(benchmark, monkeypatch, tmp_path / "rows.json", *options)
  assert code and not row["holds_hand"] and row["hand_got_bytes"] == row["plain_bytes"]


def test_there_are_twelve_programs_and_all_engines(benchmark):
  assert len(benchmark.MODELS) == 12 and set(benchmark.ENGINES) == {"auto", "hlo", "policy"}
