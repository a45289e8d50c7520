"""The demo and the benchmark at small sizes: what they print and write holds, and faults are told."""

import functools
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.progress

from tests.support import ROOT
from tests.support.models import mlp

SMALL = [
  "--num-layers",
  "2",
  "--width",
  "32",
  "--num-heads",
  "2",
  "--context",
  "32",
  "--batch-size",
  "4",
  "--steps",
  "2",
]


def run_example(
  example: str, directory: pathlib.Path, *arguments: str, is_quick: bool = True
) -> subprocess.CompletedProcess:
  """Runs a script of examples/ in a directory, as users do or with what makes the suite quick."""
  quickly = ["-m", "tests.support.quick"] if is_quick else []
  command = [sys.executable, *quickly, str(ROOT / "examples" / example), *arguments]
  environment = {**os.environ, "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
  return subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment, check=False)


@pytest.fixture
def scripts(monkeypatch):
  """Makes the modules of examples/ and benchmarks/ importable."""
  for directory in ("examples", "benchmarks"):
    monkeypatch.syspath_prepend(ROOT / directory)


@pytest.mark.optimized
def test_demo_holds_its_budgets_with_the_same_bits(tmp_path):
  done = run_example("train_gpt.py", tmp_path, *SMALL, "--budget", "0.3", is_quick=False)
  assert done.returncode == 0, done.stdout + done.stderr
  plain, run = json.loads((tmp_path / "out" / "train_gpt.json").read_text())["runs"]
  assert run["name"] == "30%" and run["temp_bytes"] <= 0.3 * plain["temp_bytes"]
  assert run["losses"] == plain["losses"] and len(run["losses"]) == 2
  assert run["faults"] == [] and run["name"] in done.stdout
  picture = (tmp_path / "out" / "train_gpt.png").read_bytes()
  assert picture.startswith(b"\x89PNG")


@pytest.mark.sweep
def test_demo_fails_with_a_message_on_a_budget_that_cannot_be_held(tmp_path):
  done = run_example("train_gpt.py", tmp_path, *SMALL, "--num-layers", "1", "--budget", "0.001")
  assert done.returncode != 0
  assert "budget" in done.stderr


@pytest.mark.parametrize("budget", ["12 bananas", "1.5"])
def test_demo_fails_with_a_message_on_what_is_no_budget(scripts, monkeypatch, capsys, budget):
  demo = importlib.import_module("train_gpt")
  monkeypatch.setattr(sys, "argv", ["train_gpt.py", *SMALL, "--budget", budget])
  with pytest.raises(SystemExit) as caught:
    demo.main()
  assert caught.value.code and budget in capsys.readouterr().err


@pytest.mark.sweep
def test_llama_holds_a_budget_on_each_of_eight_devices(tmp_path):
  small = ["--layers", "2", "--width", "32", "--context", "32", "--batch", "8", "--heads", "4", "--key-heads", "2"]
  done = run_example("scan_llama.py", tmp_path, *small, "--steps", "2", "--budget", "0.7")
  assert done.returncode == 0, done.stdout + done.stderr
  plain, checkpointed, fitted = (line.rsplit("  ", 1)[0].split() for line in done.stdout.splitlines()[-3:])
  budget, temp = map(float, fitted[2:4])
  assert fitted[:2] == ["coopjax", "70%"] and temp <= budget < float(plain[2]) and checkpointed[0] == "jax.checkpoint"
  assert "on each device of data=4,model=2" in done.stdout and "recomputed" in done.stdout


@pytest.mark.sweep
def test_a_launch_file_plans_trains_and_resumes(tmp_path):
  small = (
    "layers=2",
    "width=16",
    "length=16",
    "vocabulary=32",
    "steps=4",
    "budget=70%",
    "offload_state=true",
    "mesh={fsdp: 2, tensor: 1}",
  )
  done = run_example("launch_file.py", tmp_path, *small)
  assert done.returncode == 0, done.stdout + done.stderr
  policy = (tmp_path / "out" / "launch_file" / "policy.yml").read_text()
  assert "remat_policy: 'custom'" in policy and "mlpwo: " in policy
  assert "(fits)" in done.stdout and "resumed after 2 steps" in done.stdout
  losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+)", done.stdout)}
  assert sorted(losses) == [0, 1, 2, 3] and losses[3] < losses[0]


@pytest.mark.sweep
def test_folded_layers_train_by_a_policy_from_yaml(tmp_path):
  small = ["--layers", "3", "--width", "16", "--batch", "64", "--steps", "2", "--budget", "0.7"]
  done = run_example("haliax_like.py", tmp_path, *small)
  assert done.returncode == 0, done.stdout + done.stderr
  assert "save_block_internals: [" in done.stdout and "(fits)" in done.stdout
  asked, planned = re.findall(r": losses (.*)", done.stdout)
  assert [float(loss) for loss in asked.split()] == pytest.approx([float(loss) for loss in planned.split()], rel=1e-4)


def test_two_hosts_hold_one_plan(tmp_path):
  done = run_example("two_hosts.py", tmp_path, "--steps", "2")
  assert done.returncode == 0, done.stdout + done.stderr
  stories = dict(re.findall(r"process (\d): (.*)", done.stdout))  # what collectives print may stand on the same line
  assert stories.keys() == {"0", "1"} and len(set(stories.values())) == 1, done.stdout
  assert " 0 clones" not in done.stdout


def test_batches_are_excerpts_of_the_corpus_and_repeat(scripts):
  gpt = importlib.import_module("gpt")
  config = gpt.GPTConfig(num_layers=1, width=32, num_heads=2, context=16, batch_size=2)
  corpus = gpt.read_corpus()
  assert corpus.dtype == "uint8" and len(corpus) > 1_000_000
  first, again = (next(gpt.batches(corpus, config)) for _ in range(2))
  assert first.shape == (2, 17) and (first == again).all()


def test_benchmark_measures_every_variant_of_a_model(scripts, monkeypatch, tmp_path):
  tables, models, bench = map(importlib.import_module, ("tables", "models", "peers"))
  monkeypatch.setattr(bench, "BUDGETS", (0.5,))
  loss, params, x = mlp(depth=8, width=32)
  layers = lambda x, weights: functools.reduce(lambda x, weight: jnp.tanh(x @ weight), weights, x)

  def checkpointed(params, x):
    for i in range(0, len(params), 2):
      x = jax.checkpoint(layers)(x, params[i : i + 2])
    return jnp.mean(x**2)

  decoder = models.decoder(num_layers=2, width=64, context=64, batch_size=4, num_heads=2, vocab_size=64)
  gradients = [jax.grad(fn) for fn in (decoder.loss, decoder.checkpointed_loss)]
  assert len({str(jax.eval_shape(fn, decoder.params, *decoder.batch)) for fn in gradients}) == 1
  model = models.Model("MLP", loss, lambda policy: checkpointed, params, (np.asarray(x),))
  with rich.progress.Progress(disable=True) as progress:
    rows = bench.measure(bench.gradient_case(model, bench.IMAGE_POLICIES), rounds=1, progress=progress)
  plain = rows[0]
  assert plain["variant"] == "no remat" and plain["time_ratio"] == 1 and plain["recomputed_gflop"] == 0
  assert [row["kind"] for row in rows] == ["plain", "xla", "hand", "hand", *["hlo"] * 2, *["policy"] * 2]
  by_hand, half, at_its_bytes = (
    next(row for row in rows if row["variant"] == name)
    for name in (bench.PER_BLOCK, "coopjax hlo 50%", "coopjax hlo at per-block bytes")
  )
  assert by_hand["recomputed_gflop"] > 0 and at_its_bytes["budget_mib"] == by_hand["temp_mib"]
  assert half["holds"] and half["is_bit_identical"] and half["plan_s"] > 0 and half["hook_s"] > 0
  assert "+" in str(list(tables.table(rows, bench.COLUMNS).columns[6].cells))
  bench.draw(rows, tmp_path / "peers.png")
  assert (tmp_path / "peers.png").stat().st_size > 0
  json.dumps(rows)
