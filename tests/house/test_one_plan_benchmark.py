"""The benchmark of one plan in every process, on two requests in two processes."""

import importlib
import json
import sys

import pytest

from tests.support import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  yield importlib.import_module("one_plan")
  for name in [name for name in sys.modules if name == "one_plan" or name.split(".")[0] == "hlo_corpus"]:
    sys.modules.pop(name)


@pytest.mark.sweep
def test_two_processes_have_one_digest_for_each_request(benchmark, monkeypatch, tmp_path, capsys):
  out = tmp_path / "one_plan.json"
  monkeypatch.setattr(sys, "argv", ["one_plan.py", "--processes", "2", "--requests", "2", "--out", str(out)])
  with pytest.raises(SystemExit) as ended:
    benchmark.main()
  assert not ended.value.code
  rows = json.loads(out.read_text())["rows"]
  assert sum(row["num_alike"] for row in rows) == sum(row["requests"] for row in rows) == 2
  assert "4 plans, 2 of 2 requests with one digest" in capsys.readouterr().out


def test_every_engine_and_effort_is_asked(benchmark):
  asked = benchmark.requests()
  assert len(asked) == 72 and set(benchmark.CORPUS) <= set(benchmark.hlo_corpus.PROGRAMS)
  assert {each.engine for each in asked} == {"module", "policy", "auto"}
  assert benchmark.chosen(6) == asked[::12] and benchmark.chosen(1000) == asked
