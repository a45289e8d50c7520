"""The benchmark of the hand's rungs, small: its programs do what they say, its counts are right, a run makes rows."""

import importlib
import json
import sys

import jax
import jax.numpy as jnp
import pytest

from tests.support import ROOT, sweeps
from tests.support.checks import assert_close

MODULES = ("flash_attention", "ladder_programs", "backends", "tables", "hand_ladder")
SIZE = {"batch": 2, "length": 16, "width": 32, "hidden": 48, "heads": 4, "key_heads": 2, "layers": 4}


@pytest.fixture(scope="module")
def benchmark():
  """The module `hand_ladder`."""
  sys.path.insert(0, str(ROOT / "benchmarks"))
  yield importlib.import_module("hand_ladder")
  sys.path.remove(str(ROOT / "benchmarks"))
  for name in MODULES:
    sys.modules.pop(name, None)


def program(benchmark, name):
  return benchmark.Program(name, benchmark.Size(**SIZE))


def test_the_kernel_is_attention(benchmark):
  attention, flash = benchmark.ladder_programs.attention, benchmark.ladder_programs.flash_attention
  arrays = [jax.random.normal(jax.random.key(heads), (2, 16, heads, 8)) for heads in (4, 2, 2)]

  def gradient(fn):
    return jax.jit(jax.value_and_grad(lambda *arrays: jnp.sin(fn(*arrays)).sum(), argnums=(0, 1, 2)))(*arrays)

  assert_close(gradient(flash), gradient(lambda *arrays: attention(*arrays, is_causal=True)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
  "name", sweeps.all_but(["decoder", "flash"], ["decoder", "flash", "moe", "encoder_decoder", "unrolled"])
)
def test_higher_rungs_repeat_less(benchmark, name):
  bench = benchmark.Bench(program(benchmark, name), "cpu")
  rungs = ["nested", "full", "minimal", "minimal_with_context"]
  traced = {rung: bench.traced(bench.program.loss(benchmark.RUNGS[rung])).products for rung in rungs}
  plain = bench.traced(bench.program.loss()).products
  assert sorted(traced.values(), reverse=True) == list(traced.values())
  assert traced["nested"] > traced["full"] > traced["minimal"] >= traced["minimal_with_context"] >= plain


def test_full_repeats_the_forward_products(benchmark):
  bench = benchmark.Bench(program(benchmark, "decoder"), "cpu")
  repeated = bench.traced(bench.program.loss(benchmark.RUNGS["full"])).products
  repeated -= bench.traced(bench.program.loss()).products
  projections = 32 * (32 + 2 * 16 + 32)  # query, key, value, out
  of_tokens = projections + 2 * 32 * 48  # the gradient does not read what the feed-forward layer's last product made
  attention = 2 * 16 * 32  # scores and context of one token
  assert repeated == 4 * 2 * 16 * 2.0 * (of_tokens + attention)


@pytest.mark.sweep
def test_a_run_makes_rows(benchmark, monkeypatch, tmp_path, capsys):
  out = tmp_path / "rows.json"
  size = [word for name, value in SIZE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
  chosen = ["--programs", "decoder", "--rungs", "full", "--engines", "policy", "--out", str(out)]
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  monkeypatch.setattr(sys, "argv", ["hand_ladder.py", *chosen, *size])
  benchmark.main()
  (row,) = json.loads(out.read_text())["rows"]
  assert row["temp_bytes"] <= row["hand_bytes"] and row["num_compiles"] >= 1 and row["hand_gflop"] > 0
  assert "at most the hand's at" in capsys.readouterr().out
