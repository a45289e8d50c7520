"""The benchmark of predicted step times: what it makes of numbers, and one row of a small program."""

import importlib
import sys

import pytest

import coopjax
from tests.support import ROOT


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  yield importlib.import_module("calibrated")
  sys.modules.pop("calibrated")


def test_ranks_are_compared_and_misses_are_factors(benchmark):
  assert benchmark.rank_correlation([1, 2, 3, 4], [10, 20, 30, 400]) == pytest.approx(1)
  assert benchmark.rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
  # ranks 0.5 1.5 2.5 3.5 and 1 1 2.5 3.5: covariance 4.5, variances 5 and 4.5 (each times 4)
  assert benchmark.rank_correlation([1, 2, 3, 4], [7, 7, 8, 9]) == pytest.approx((4.5 / 5) ** 0.5)
  rows = [{"measured_s": 1.0, "stored_s": 4.0}, {"measured_s": 2.0, "stored_s": 2.0}]
  told = benchmark.summary(rows, "stored_s")
  assert told["missed_by"] == pytest.approx(2) and told["figures"] == "stored"


def test_a_plan_is_timed_and_modelled_by_both_sets_of_figures(benchmark):
  profile = coopjax.SpeedProfile("cpu", 4e10, 2e8, 2e9, 2e-6, 1e10, 1e10)  # a tenth of the stored ones
  program = benchmark.programs(1)["products"]
  row = benchmark.measure("products", program, 0.6, profile, repeats=1)
  assert row["engine"] != "none" and row["measured_s"] > 0
  assert 5 * row["stored_s"] < row["calibrated_s"] <= 10 * row["stored_s"]
