"""The benchmark of JAX's own policies, on one program of its forty-four; all of them are traced."""

import importlib
import json
import sys

import jax
import pytest

from tests.support import ROOT

pytestmark = pytest.mark.sweep


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  monkeypatch.setenv("XLA_FLAGS", "")  # what it sets itself is for a process of its own
  yield importlib.import_module("hand_policies")
  sys.modules.pop("hand_policies")


def test_a_recurrent_net_repeats_no_more_than_by_hand(benchmark, monkeypatch, tmp_path, capsys):
  out = tmp_path / "rows.json"
  options = "--programs", "recurrent", "--engines", "policy", "--out", str(out)
  monkeypatch.setattr(sys, "argv", ["hand_policies.py", *options])
  monkeypatch.delitem(benchmark.POLICIES, "products without batch")  # of this program, all products
  benchmark.main()
  rows = json.loads(out.read_text())["rows"]
  assert [row["policy"] for row in rows] == list(benchmark.POLICIES)
  assert all(row["ratio"] <= 1.005 and row["mib"] <= row["hand_mib"] < row["plain_mib"] for row in rows)
  assert f"{len(rows)} of {len(rows)} at most 1.00, 0 refused" in capsys.readouterr().out


def test_rows_of_other_programs_stay(benchmark, monkeypatch, tmp_path):
  out, known = tmp_path / "rows.json", {"program": "unet", "policy": "products", "engine": "auto", "ratio": 0.5}
  benchmark.tables.write(out, rows=[known])
  monkeypatch.setattr(sys, "argv", ["hand_policies.py", "--programs", "recurrent", "--out", str(out)])
  monkeypatch.setattr(benchmark, "POLICIES", {"everything": jax.checkpoint_policies.everything_saveable})
  benchmark.main()
  assert json.loads(out.read_text())["rows"] == [known]


def test_programs_are_what_they_say(benchmark):
  assert len(benchmark.PROGRAMS) == 44
  for name, make in benchmark.PROGRAMS.items():
    if name not in ("sharded", "pipeline", "one_device", "partly_manual"):  # over four devices
      loss, arguments = make(lambda layer: layer)
      assert benchmark.flops(loss, arguments) > 0
