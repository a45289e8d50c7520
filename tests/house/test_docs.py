"""README and ``docs/`` do what they say: their scripts and commands are run, in order, in an empty directory.

A block's language says how: ``python`` is a script, on a page ``train.py``, ``sh`` are commands, and ``py`` are lines
beside that script. Blocks of ``text`` or of no language are shown alone.
"""

import importlib
import json
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
import types

import jax
import pytest

import coopjax
from coopjax.cli import main, user_functions
from tests.support import ROOT

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(python|sh|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def run_blocks(tmp_path, monkeypatch, capsys):
  """Runs the blocks of a text. Returns what the commands printed, one by one."""
  scripts = pathlib.Path(sys.executable).parent
  environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}
  monkeypatch.chdir(tmp_path)
  for name in ("argv", "path"):  # of `coopjax run`, the program's own
    monkeypatch.setattr(sys, name, getattr(sys, name)[:])

  def run(command):
    if command.startswith("coopjax "):  # in this process, which has JAX: most of such a command's time is its import
      status = main.main(shlex.split(command, comments=True)[1:])
      return status, *capsys.readouterr()
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr

  def run_blocks(text, names):
    printed = []
    for language, block in _BLOCK.findall(text):
      if language == "python":
        (tmp_path / "train.py").write_text(block)
        sys.modules.pop("train", None)  # of another page
        continue
      if language == "py":
        names.update(runpy.run_path("train.py") | {"coopjax": coopjax} | names)
        exec(block, names)
        coopjax.disable()
        capsys.readouterr()
        continue
      for command in block.splitlines():
        status, out, err = run(command)
        assert status == 0, f"{command}\n{out}\n{err}"
        printed.append(out)
    return printed

  return run_blocks


@pytest.fixture
def run_page(run_blocks):
  """Runs a page: `run_blocks`; `names` are what its ``py`` blocks find beside the script's, and then what they made."""
  return lambda page, names=None: run_blocks((DOCS / page).read_text(), {} if names is None else names)


@pytest.mark.sweep
def test_from_an_out_of_memory_error_to_the_lines(run_page, tmp_path):
  _, lines, _, _, _, diff, check = run_page("out_of_memory.md")
  rows = [line for line in lines.splitlines() if "train.py:" in line]
  assert [row.rpartition(":")[2] for row in rows] == ["10", "6", "9"]  # gelu, softmax, projections
  assert (tmp_path / "report.html").stat().st_size > 10_000
  assert "train.py:6" in diff and "fits" in check


@pytest.mark.sweep
def test_policies_to_paste(run_page):
  trainer = types.SimpleNamespace(main=lambda arguments: runpy.run_path(*arguments, run_name="__main__"))
  names = {"trainer": trainer, "arguments": ["train.py"]}
  run, policy = run_page("policies.md", names)
  plans = [names["plan"], coopjax.RematPlan.load("plan.json"), *names["steps"].plans]
  assert run == "loss 0.0000\n" and len(plans) == 3 and all(plan.fits for plan in plans)
  assert f"```text\n{policy}```" in (DOCS / "policies.md").read_text()


@pytest.mark.sweep
def test_reading_a_dump(run_page, tmp_path):
  printed = run_page("reading_a_dump.md")
  _, headline, lines, scopes, ops, dtypes, costs, _, frontier, plan, explained, _ = printed
  page = (DOCS / "reading_a_dump.md").read_text()
  shown = "\n".join(headline.splitlines()[:3])
  assert shown in page, shown
  assert "train.py:7" in lines and "block_0" in scopes and "fusion" in ops and "f32" in dtypes and "rank" in costs
  assert "75%" in frontier and "(fits)" in plan and explained.splitlines()[0] == plan.splitlines()[0]
  data = (tmp_path / "report.html").read_text()
  assert '"frontier":{' in data and '"decisions":[' in data


@pytest.mark.sweep
def test_how_the_hlo_pass_works(run_page):
  run, _, clones = run_page("how_the_hlo_pass_works.md")
  before, after = map(int, re.search(r"temporaries (\d+) -> (\d+)", run).groups())
  assert after <= 0.5 * before
  assert int(clones.rpartition(":")[2]) > 0


@pytest.mark.sweep
def test_training_from_an_error_to_a_job(run_page):
  names = {
    "abstract_state": jax.ShapeDtypeStruct(
      (8, 8), "float32", sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
  }
  plan, policy, losses, run, fitting, figures = run_page("train_an_llm.md", names)
  assert "(fits)" in plan and "region layer, 6 a step" in plan
  assert policy.startswith("remat_policy: 'custom'") and "largest: a batch of 16" in fitting
  assert run == losses and losses.startswith("loss 4.8") and "flops_per_s" in figures
  assert names["state"].sharding.memory_kind == "pinned_host" and names["optimizer"].init


def test_the_readme_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
  """In one session; the first block alone is what `.ci/try-readme` runs in an environment with the wheel."""
  monkeypatch.chdir(tmp_path)
  readme, names = (ROOT / "README.md").read_text(), {"__name__": "readme"}
  for language, text in _BLOCK.findall(readme):
    if language == "python":
      exec(compile(text, "README.md", "exec"), names)
  lines = dict(re.findall(r"^(\w+) ([\d.]+ MiB) of temporaries", capsys.readouterr().out, re.MULTILINE))
  assert f"It prints {lines['step']} for `step` and {lines['fitted_step']} for `fitted_step`." in readme
  assert names["plan"].fits and names["fitted_step"](names["weights"], names["x"])


def test_the_readmes_commands_see_memory(run_blocks, tmp_path):
  script = re.search(r"^```python\n.*?^```$", (DOCS / "reading_a_dump.md").read_text(), re.MULTILINE | re.DOTALL)[0]
  (commands,) = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
  first, rest = commands.split("\n", 1)
  in_order = f"{script}\n```sh\n{first}\ncp -r dump other_dump\n{rest}```\n"
  _, _, inspected, _, compared, _ = run_blocks(in_order, {})
  assert "train.py:7" in inspected and "peak_live" in compared
  assert (tmp_path / "report.html").exists() and (tmp_path / "frontier.svg").exists()


def test_every_block_is_run_or_shown_alone():
  for page in (ROOT / "README.md", *DOCS.glob("*.md")):
    fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
    assert set(fences[::2]) <= {"python", "sh", "py", "text", ""} and set(fences[1::2]) <= {""}, page


def test_the_readme_says_what_the_results_say(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  readme_tables = importlib.import_module("readme_tables")
  readme = (ROOT / "README.md").read_text()
  assert readme_tables.filled(readme) == readme
  assert readme_tables.filled(readme.replace("| none |  |", "| 100% |  |")) == readme


@pytest.fixture(scope="module")
def train(tmp_path_factory):
  """A script, a dump of it and what else the commands read."""
  directory = tmp_path_factory.mktemp("json")
  (directory / "train_json.py").write_text(
    "import jax, jax.numpy as jnp\n"
    "def loss(weights, x):\n"
    "  for weight in weights:\n"
    "    x = jnp.tanh(x @ weight)\n"
    "  return jnp.mean(x**2)\n"
    "def args_for(batch=512):\n"
    "  return [jnp.eye(64)] * 6, jax.ShapeDtypeStruct((batch, 64), jnp.float32)\n"
  )
  loss = user_functions.load_function(f"{directory}/train_json.py:loss")
  weights, x = user_functions.load_beside(f"{directory}/train_json.py:loss", "args_for")()
  options = {"xla_dump_to": str(directory / "dump"), "xla_dump_hlo_as_proto": True}
  jax.jit(jax.grad(loss)).lower(weights, x).compile(compiler_options=options)
  return directory


JSON_COMMANDS = {
  "inspect": "inspect dump",
  "check": "check dump --budget 1GiB",
  "diff": "diff dump dump",
  "report": "report dump",
  "explain": "plan train_json.py:loss --args args_for --budget 0.6 --engine hlo --planner peak",
  "frontier": "frontier train_json.py:loss --args args_for --budget 0.6 --engine hlo --planner peak",
  "fit": "fit train_json.py:loss --args-for-batch args_for --batches 64 --budget 1GiB --engine hlo --planner peak",
  "calibrate": "calibrate --repeats 1",
}


@pytest.mark.parametrize("command", JSON_COMMANDS)
def test_json_is_what_the_page_says(train, monkeypatch, capsys, command):
  page = (DOCS / "command_line.md").read_text()
  assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == list(JSON_COMMANDS)
  section = page.split(f"### {command}\n")[1].partition("\n### ")[0]
  names = [
    name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.*?)`", cell)
  ]
  monkeypatch.chdir(train)
  assert main.main([*shlex.split(JSON_COMMANDS[command]), "--json"]) == 0
  printed = json.loads(capsys.readouterr().out)
  assert set(printed) == {name for name in names if "[]" not in name}
  for rows in {name.partition("[]")[0] for name in names if "[]" in name}:
    said = {name.partition("[].")[2] for name in names if name.startswith(f"{rows}[]")}
    assert printed[rows] and set(printed[rows][0]) == said


def test_every_page_links_to_what_is_there():
  for page in (ROOT / "README.md", *DOCS.glob("*.md")):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
      assert (page.parent / target).exists(), f"{page.name}: {target}"
