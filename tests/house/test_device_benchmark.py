"""The benchmark for accelerators, without one: it says so; a variant's row; a variant that fails is a row, too."""

import importlib
import sys

import pytest

from tests.support import ROOT

SIZE = [4, 32, 16, 32, 2, 1, 3, "float32", 64]


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  yield importlib.import_module("device")
  for name in ("device", "flash_attention", "ladder_programs", "tables"):
    sys.modules.pop(name, None)


def test_without_an_accelerator_nothing_is_written(benchmark, tmp_path, monkeypatch, capsys):
  out = tmp_path / "device.json"
  monkeypatch.setattr(sys, "argv", ["device.py", "--out", str(out)])
  benchmark.main()
  assert capsys.readouterr().out.strip() == benchmark.NONE_HERE and not out.exists()


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::coopjax.RematNoEffectWarning")  # it fits
def test_rows(benchmark):
  variants = (("full", None, None), ("fits", "hlo", "fits"))
  full, fits = (benchmark.Variant("decoder", *each, SIZE, num_steps=1).run() for each in variants)
  assert full["temp_mib"] < fits["temp_mib"] and full["total_mib"] < fits["total_mib"]
  assert full["loss"] == pytest.approx(fits["loss"], rel=1e-5)  # the same steps
  assert full["step_ms"] > 0 and full["peak_mib"] is None  # the CPU's allocator tells none
  failed = benchmark.in_process(
    benchmark.Variant("decoder", "plain", None, None, [*SIZE[:-2], "float33", 64], num_steps=1)
  )
  assert failed["variant"] == "plain" and "float33" in failed["error"] and "step_ms" not in failed
