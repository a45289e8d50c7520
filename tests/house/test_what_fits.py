"""The benchmark of what fits, small and on a CPU, whose memory is made as small: batches, rows, and what is kept."""

import functools
import importlib
import json
import sys

import pytest

from coopjax import Budget
from tests.support import ROOT


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  monkeypatch.setenv("COOPJAX_CACHE_DIR", str(tmp_path / "plans"))
  yield importlib.import_module("what_fits")
  for name in ("what_fits", "flash_attention", "ladder_programs", "tables"):
    sys.modules.pop(name, None)


@pytest.mark.sweep
def test_the_largest_batches(benchmark, tmp_path, monkeypatch, capsys):
  size = benchmark.Size(0, 32, 32, 64, 4, 2, 2, vocabulary=64)
  job = benchmark.Job("decoder", size, mesh="fsdp", target="cpu")
  plain = benchmark.ByHand(job.at_batch(2), benchmark.ladder_programs.PLAIN).row()
  limit = int(plain["total_gib"] * benchmark.GIB)
  monkeypatch.setattr("coopjax.xla.device_budget.fitting_bytes", lambda target: limit)
  monkeypatch.setattr(benchmark, "PER_DEVICE", (2, 4))
  monkeypatch.setattr(benchmark, "planned", functools.cache(benchmark.planned))  # at one batch for two rows
  monkeypatch.setitem(benchmark.JOBS, "1B", job)
  assert benchmark.allowed(Budget.parse("fits"), benchmark.targets.resolve("cpu")).limit_bytes == limit
  out = tmp_path / "what_fits.json"
  monkeypatch.setattr(sys, "argv", ["what_fits.py", "--jobs", "1B", "--rungs", "full", "--out", str(out)])
  benchmark.main()
  rows = json.loads(out.read_text())["rows"]
  assert [row["policy"] for row in rows] == ["coopjax", "full", "coopjax, same batch"]
  assert "tokens/s" in capsys.readouterr().out and all(row["batch"] == 4 for row in rows)
  assert all(row["total_gib"] * benchmark.GIB <= limit and row["tokens_per_s"] > 0 for row in rows)
  monkeypatch.setattr(benchmark, "largest", lambda job, policy: pytest.fail("kept rows are not measured again"))
  benchmark.main()
