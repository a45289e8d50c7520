"""The benchmark of the same bits, on a few dozen random programs; it finds a function that sums in another order."""

import importlib
import json
import sys

import jax
import pytest

from tests.support import ROOT, sweeps

BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = range(100, 124)


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  yield importlib.import_module("random_bits")
  sys.modules.pop("random_bits")


@pytest.mark.parametrize("seed", sweeps.all_but(PROGRAMS[:6], PROGRAMS))
def test_xla_is_given_the_same_program(benchmark, seed):
  program = benchmark.RandomProgram.of(seed)
  arguments = program.arguments()
  for way, wrt, _ in benchmark.cases(seed)[seed % 3 :: 3]:
    plain, planned = (
      jax.jit(benchmark.WAYS[way](fn, wrt)).lower(*arguments).as_text()
      for fn in (program, benchmark.within(program, 1.0))
    )
    assert "coopjax-mark" in planned and benchmark.unmarked(planned) == benchmark.unmarked(plain)


@pytest.mark.sweep
@pytest.mark.optimized
def test_rows_are_kept_and_gone_on_from(benchmark, monkeypatch, tmp_path, capsys):
  out = tmp_path / "random_bits.json"
  monkeypatch.setattr(benchmark, "BLOCK", 1)
  for number in (1, 2):
    monkeypatch.setattr(sys, "argv", ["random_bits.py", "--programs", str(number), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
      benchmark.main()
    assert not ended.value.code
    rows = json.loads(out.read_text())["rows"]
    assert {row["first"] for row in rows} == set(range(number)) and not any(row["differing"] for row in rows)
  assert sum(row["smaller"] for row in rows if row["how"] == "bits at 0.7") > 0
  assert " runs, 0 differ" in capsys.readouterr().out


def test_another_order_of_cotangents_is_found(benchmark, monkeypatch):
  """Of the jaxpr that JAX traces by itself: it opens up calls of `jax.numpy`, between which cotangents were summed."""

  def opened(program, budget):
    return lambda *arguments: jax.core.eval_jaxpr(jax.make_jaxpr(program)(*arguments), (), *arguments)[0]

  monkeypatch.setattr(benchmark, "within", opened)
  monkeypatch.setattr(benchmark, "cases", lambda seed: [("gradient", wrt, False) for wrt in benchmark.subsets()])
  assert not all(run.is_same for run in benchmark.runs(seed=8))
