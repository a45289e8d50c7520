"""The benchmark that trains inside budgets, on a few steps of a tiny model: resumed midway, with the same bits."""

import importlib
import json
import sys

import pytest

from tests.support import ROOT


@pytest.mark.sweep
def test_runs_inside_budgets_are_resumed_with_the_same_bits(monkeypatch, tmp_path, capsys):
  for directory in ("examples", "benchmarks"):
    monkeypatch.syspath_prepend(ROOT / directory)
  training_run = importlib.import_module("training_run")
  monkeypatch.setattr(training_run, "in_process", training_run.train)  # one start of JAX is enough here
  sizes = ["--num-layers", "2", "--width", "32", "--context", "32", "--batch-size", "4"]
  out = tmp_path / "run.json"
  monkeypatch.setattr(sys, "argv", ["training_run.py", "--steps", "10", "--budget", "0.6", *sizes, "--out", str(out)])
  training_run.main()
  plain, fitted = json.loads(out.read_text())["rows"]
  assert len(plain["losses"]) == 10 and plain["losses"][0] > plain["losses"][-1]
  assert fitted["num_processes"] == 2 and not fitted["num_other_bits"] and "losses" not in fitted
  assert fitted["temp_bytes"] <= 0.6 * plain["temp_bytes"] and fitted["within_budget"]
  assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG") and "60%" in capsys.readouterr().out
