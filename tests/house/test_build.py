"""What a machine must have is found, or named: ``.ci/find-python`` and ``.ci/make-venv`` against faked machines.

And a release finds in its sdist what it is tried by.
"""

import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.support import ROOT

FIND_PYTHON = ROOT / ".ci" / "find-python"
OLD_PYTHON = '#!/bin/sh\necho "is 3.9, older than 3.12" >&2\nexit 1\n'
PYENV_SHIM = '#!/bin/sh\necho "pyenv: python3.13: command not found" >&2\nexit 127\n'


@pytest.fixture
def machine(tmp_path, monkeypatch):
  """A machine with nothing on its PATH but the tools that the scripts themselves use."""
  programs = tmp_path / "bin"
  programs.mkdir()
  for tool in ("bash", "env", "sort", "head", "cat", "dirname", "sed"):
    (programs / tool).symlink_to(shutil.which(tool))
  for variable in ("CXX", "XDG_DATA_HOME"):
    monkeypatch.delenv(variable, raising=False)
  monkeypatch.setenv("PATH", str(programs))
  monkeypatch.setenv("HOME", str(tmp_path))
  monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
  return programs


def install(path: pathlib.Path, script: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(script)
  path.chmod(0o755)


def run(*command) -> subprocess.CompletedProcess:
  return subprocess.run([*map(str, command)], capture_output=True, text=True, env=dict(os.environ))


def test_a_python_that_only_pyenv_knows_is_found_behind_shims_that_fail(machine, tmp_path):
  for name in ("python3.13", "python3.12"):
    install(machine / name, PYENV_SHIM)
  install(machine / "python3", OLD_PYTHON)
  install(tmp_path / "pyenv" / "versions" / "3.13.0" / "bin" / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
  found = run(FIND_PYTHON)
  assert found.returncode == 0, found.stderr
  assert pathlib.Path(found.stdout.strip()).samefile(sys.executable)


def test_no_python_names_what_was_looked_at_and_what_to_do(machine):
  install(machine / "python3.13", PYENV_SHIM)
  install(machine / "python3", OLD_PYTHON)
  found = run(FIND_PYTHON)
  assert found.returncode == 1 and not found.stdout
  for expected in ("3.12 or newer", "pyenv: python3.13: command not found", "older than 3.12", "make PYTHON="):
    assert expected in found.stderr


def test_another_version_than_asked_for_is_not_taken(machine):
  install(machine / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
  found = run(FIND_PYTHON, "3.99")
  assert found.returncode == 1
  assert "3.99 was asked for" in found.stderr


def test_no_compiler_is_said_before_anything_is_made(machine, tmp_path):
  made = run(ROOT / ".ci" / "make-venv", tmp_path / "venv", "jax", "", "")
  assert made.returncode == 1
  assert "C++20 compiler" in made.stderr and "make CXX=" in made.stderr
  assert not (tmp_path / "venv").exists()


def test_what_cibuildwheel_tries_a_wheel_by_is_in_the_sdist():
  tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
  sdist = tools["scikit-build"]["sdist"]
  tried = re.findall(r"\{project\}/(\S+)", tools["cibuildwheel"]["test-command"])
  assert tried
  for path in tried:
    is_left_out = any(fnmatch.fnmatch(part, each) for part in path.split("/") for each in sdist["exclude"])
    assert (ROOT / path).is_file() and (path in sdist.get("include", []) or not is_left_out), path
