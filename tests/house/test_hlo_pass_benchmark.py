"""The HLO pass's benchmark on one small program: rows are what XLA compiles, are kept, and sum up."""

import importlib
import json
import sys

import pytest

from tests.support import ROOT, sweeps

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  module = importlib.import_module("hlo_pass")
  monkeypatch.setattr(module.hlo_corpus, "use_virtual_devices", lambda: None)
  monkeypatch.setattr(module, "BUDGETS", (0.9, 0.5))
  yield module
  ours = {"hlo_pass", "hlo_pass_corpus", "hlo_capture", "hlo_corpus", "temp_bounds"}
  for name in [name for name in sys.modules if name.split(".")[0] in ours]:
    sys.modules.pop(name)


@pytest.mark.sweep
def test_rows_are_kept_and_merged(benchmark, monkeypatch, tmp_path, capsys):
  out = tmp_path / "rows.json"
  for name in ("pad_and_concatenate", "sort_gradient", "pad_and_concatenate"):
    monkeypatch.setattr(sys, "argv", ["hlo_pass.py", "corpus", "schedulers", "--names", name, "--out", str(out)])
    benchmark.main()
  rows = json.loads(out.read_text())["rows"]
  assert len(rows) == 2 * (2 * 2 + 1)
  corpus = [row for row in rows if row["part"] == "corpus"]
  assert all(row["same_bits"] for row in corpus)
  for row in corpus:
    assert row["temp_kib"] == row["predicted_kib"] <= row["before_kib"]
    assert (row["verdict"] == "holds") == (row["temp_kib"] <= row["budget_kib"])
  schedulers = [row for row in rows if row["part"] == "schedulers"]
  assert all(row["temp_kib"] < row["default_kib"] for row in schedulers)
  assert all(0.99 * row["temp_kib"] < row["bound_kib"] <= row["temp_kib"] for row in schedulers)
  assert "outputs differ in 0 cells" in capsys.readouterr().out


BOUNDED = ("branches", "mlp_step_donated", "multiple_outputs", "random_samples")


@pytest.mark.parametrize("name", sweeps.all_but(["branches", "multiple_outputs"], BOUNDED))
def test_bounds_are_below_what_is_reached(benchmark, name):
  # Branches with scratch in their operands' buffers, and temporaries in those of results and of donated arguments.
  module = benchmark.capture(benchmark.hlo_corpus.PROGRAMS[name]().lower())
  reached = [benchmark.order_only(module), benchmark.recompute_order(module, 0)]
  bounds = [
    benchmark.temp_bounds.least_temp_bytes(module, of)
    for of in (benchmark.temp_bounds.of_orders, benchmark.temp_bounds.of_schedules)
  ]
  assert bounds[1] <= bounds[0]
  assert all(bound <= result.after.temp_bytes for bound, result in zip(bounds, reached, strict=True))


def test_many_loops_are_all_planned(benchmark):
  (row,) = benchmark.loop_rows(num_loops=3)
  assert row["planned"] == 3 and 0 < row["share"] <= 0.6 and row["overhead"] > 0


def test_the_largest_op_bounds_every_plan(benchmark):
  program = benchmark.hlo_corpus.PROGRAMS["mlp_gradient"]()
  module = benchmark.capture(program.lower())
  largest = benchmark.largest_op_bytes(module)
  result = benchmark.recompute_order(module, 0)
  assert 0 < largest <= 1.5 * result.after.temp_bytes
  assert result.after.temp_bytes < result.before.temp_bytes
