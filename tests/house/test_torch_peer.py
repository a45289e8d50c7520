"""The benchmark beside PyTorch, with a script in PyTorch's place: all runs step in turn, on the same weights."""

import importlib
import json
import sys

import pytest

from tests.support import ROOT

STANDS_IN = """#!{python}
import json, sys
if sys.argv[1] == "-c":
  print("0.0")
else:
  import numpy as np
  given = np.load(sys.argv[4])
  assert given["blocks/0/mlp_up/kernel"].shape == (256, 1024) and given["batches"].shape == (2, 12, 257)
  print(json.dumps({{"compile_s": 1.0, "saved_mib": 8.0}}), flush=True)
  for _ in sys.stdin:
    print(json.dumps({{"loss": 5.0, "step_s": 0.5}}), flush=True)
"""


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  monkeypatch.setattr(sys, "path", sys.path[:])  # it adds the examples
  yield importlib.import_module("torch_peer")
  for name in ("torch_peer", "gpt", "tables"):
    sys.modules.pop(name, None)


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_rows(benchmark, monkeypatch, tmp_path, capsys):
  torch, out = tmp_path / "torch", tmp_path / "torch_peer.json"
  torch.write_text(STANDS_IN.format(python=sys.executable))
  torch.chmod(0o755)
  arguments = ["--torch", str(torch), "--layers", "1", "--steps", "2", "--budgets", "--out", str(out)]
  monkeypatch.setattr(sys, "argv", ["torch_peer.py", *arguments])
  benchmark.main()
  found = json.loads(out.read_text())
  rows = {row["name"]: row for row in found["rows"]}
  assert found["torch"] == "0.0" and list(rows) == [
    "JAX",
    *(f"PyTorch, {what}" for what in ("budget 100%", "budget 0%", "checkpoint per block")),
  ]
  assert 0 < rows["JAX"]["peak_mib"] <= 1.2 * rows["JAX"]["temp_mib"]  # of what was freed, some was still held
  assert rows["PyTorch, budget 0%"]["time_ratio"] == 1 and "saved" in capsys.readouterr().out
