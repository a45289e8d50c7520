"""The benchmark that shows a refactoring changes no planned module: written twice it agrees, and it sees what
differs.
"""

import importlib
import json
import sys

import pytest

from tests.support import ROOT

BENCHMARKS = ROOT / "benchmarks"
NAME = "cumulative"


@pytest.fixture(scope="module")
def benchmark():
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("planned_modules")
    patch.setattr(module.hlo_corpus, "use_virtual_devices", lambda: None)
    patch.setattr(module, "BUDGETS", (0.9, 0.5))
    yield module
  for name in [name for name in sys.modules if name == "planned_modules" or name.split(".")[0] == "hlo_corpus"]:
    sys.modules.pop(name)


@pytest.fixture(scope="module")
def contents(benchmark, tmp_path_factory):
  """What is written twice of the same program's digests, from one captured module."""
  directory = tmp_path_factory.mktemp("modules")
  (directory / f"{NAME}.pb").write_bytes(benchmark.hlo_corpus.capture(NAME))
  files = directory / "before.json", directory / "after.json"
  with pytest.MonkeyPatch.context() as patch:
    for file in files:
      run(benchmark, patch, "write", file, "--modules", directory, "--names", NAME)
  return {file.name: file.read_text() for file in files}


@pytest.fixture
def written(contents, tmp_path):
  """Two files of each test's own."""
  for name, text in contents.items():
    (tmp_path / name).write_text(text)
  return [tmp_path / name for name in contents]


def run(benchmark, monkeypatch, *arguments):
  monkeypatch.setattr(sys, "argv", ["planned_modules.py", *map(str, arguments)])
  benchmark.main()


def compared(benchmark, monkeypatch, *files):
  """The exit status of a comparison."""
  with pytest.raises(SystemExit) as ended:
    run(benchmark, monkeypatch, "compare", *files)
  return ended.value.code


def test_the_same_code_gives_the_same_digests(benchmark, monkeypatch, written, capsys):
  assert compared(benchmark, monkeypatch, *written) == 0
  assert "6 planned modules are the same" in capsys.readouterr().out
  rows = json.loads(written[0].read_text())["rows"]
  assert {row["changes"] for row in rows} == {"order", "clones", "both"}
  assert any(row["sha256"] for row in rows) and all(row["temp_bytes"] > 0 for row in rows)


@pytest.mark.parametrize(
  ("change", "shown"),
  [
    (lambda rows: rows[1].update(sha256="0" * 64), "sha256"),
    (lambda rows: rows[1].update(recompute_cost_s=1.0), "recompute_cost_s"),
    (lambda rows: rows[1].update(module_sha256="0" * 64), "module that came in"),
    (lambda rows: rows.pop(1), "missing"),
  ],
)
def test_a_cell_that_differs_is_shown(benchmark, monkeypatch, written, capsys, change, shown):
  contents = json.loads(written[1].read_text())
  change(contents["rows"])
  written[1].write_text(json.dumps(contents))
  assert compared(benchmark, monkeypatch, *written) == 1
  out = capsys.readouterr().out
  assert shown in out and f"{NAME}" in out and "1 of" in out


def test_a_file_that_is_not_there_is_an_error(benchmark, monkeypatch, written, tmp_path):
  assert "has no rows" in compared(benchmark, monkeypatch, written[0], tmp_path / "absent.json")
