"""The pages of ``docs/`` do what they say: their scripts and commands are run, in order, in an empty directory."""

import os
import pathlib
import re
import subprocess
import sys

DOCS = pathlib.Path(__file__).parent.parent / "docs"
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.M | re.S)


def run_page(page, directory):
  """Runs a page: the python block is ``train.py``, sh blocks are run. Returns what the commands printed, one by one."""
  scripts = pathlib.Path(sys.executable).parent
  environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}
  printed = []
  for language, text in _BLOCK.findall((DOCS / page).read_text()):
    if language == "python":
      (directory / "train.py").write_text(text)
      continue
    for command in text.splitlines():
      done = subprocess.run(command, shell=True, cwd=directory, env=environment, capture_output=True, text=True)
      assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
      printed.append(done.stdout)
  return printed


def test_from_an_out_of_memory_error_to_the_lines(tmp_path):
  _, lines, _, _, _, diff, check = run_page("out_of_memory.md", tmp_path)
  rows = [line for line in lines.splitlines() if "train.py:" in line]
  assert [row.rpartition(":")[2] for row in rows] == ["10", "6", "9"]  # gelu, softmax, projections
  assert (tmp_path / "report.html").stat().st_size > 10_000
  assert "train.py:6" in diff and "fits" in check
