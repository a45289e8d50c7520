"""The planners' benchmark on small programs: every table runs, sums up, and can be shown and kept.

The zoo needs Keras, and omnimalloc is a peer: neither is needed for the suite, so programs of ours and a packing that
wastes nothing stand in for them.
"""

import importlib
import json
import sys
import types

import pytest

from tests.support import ROOT
from tests.support.transformer import transformer

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
  """The module `planners`, on a zoo with one model."""
  zoo, peer = types.ModuleType("zoo"), types.ModuleType("omnimalloc_peer")
  zoo.FASTSA, zoo.COOP, zoo.MODEL = "fastsa", "coop", "model"
  zoo.MODELS = {"tiny": types.SimpleNamespace(batches={"fastsa": (1,), "coop": (1,), "model": (1, 32)})}
  zoo.build = lambda name, batch=None, options=None, learning_rate=None: _with_kinds(transformer(num_layers=2))
  peer.measure = lambda *problem, live_bytes, time_limit_s: {"omnimalloc_fragmentation": 0.0, "omnimalloc_s": 0.0}
  for name, module in (("zoo", zoo), ("omnimalloc_peer", peer)):
    monkeypatch.setitem(sys.modules, name, module)
  monkeypatch.syspath_prepend(BENCHMARKS)
  yield importlib.import_module("planners")
  for name in ("planners", "planner_tables"):
    sys.modules.pop(name, None)


def _with_kinds(program):
  return type(program)(**{**vars(program), "op_kinds": ("dot_general",) * program.num_ops})


@pytest.mark.sweep
def test_every_table_runs(benchmark, monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(benchmark.scale, "SHAPES", ("wide",))
  arguments = "--models tiny --steps 50000000 --exact-steps 50000000 --sizes 200 --out"
  monkeypatch.setattr(sys, "argv", ["planners.py", *arguments.split(), str(tmp_path)])
  benchmark.main()
  shown = capsys.readouterr().out
  for name, table in benchmark.TABLES.items():
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["machine"]["jax"] and written["rows"]
    assert all(line in " ".join(shown.split()) for line in map(str.strip, table.summarize(written["rows"])))
    first = next(iter(table.columns.values())).format(**written["rows"][0])
    assert first in shown
  rows = {name: json.loads((tmp_path / f"{name}.json").read_text())["rows"] for name in benchmark.TABLES}
  for name in ("fastsa", "exact", "coop", "coop_large", "scale"):
    assert "greedy" in {row["planner"] for row in rows[name]}
  assert all(row["greedy_saves"] <= row["saves"] + 1e-9 for row in rows["model"])
  assert all(row["search_fragmentation"] <= row["greedy_fragmentation"] for row in rows["packing"])
  best = {(row["share"]): row["overhead"] for row in rows["fastsa"] if row["planner"] == "auto"}
  assert all(row["overhead"] >= best[row["share"]] - 1e-9 for row in rows["fastsa"] if row["holds"])


def test_unknown_tables_and_models_are_refused(benchmark, monkeypatch, capsys):
  for arguments, fault in ((["fastsaa"], "fastsaa"), (["fastsa", "--models", "vgg99"], "vgg99")):
    monkeypatch.setattr(sys, "argv", ["planners.py", *arguments])
    with pytest.raises(SystemExit):
      benchmark.main()
    assert fault in capsys.readouterr().err
