"""Builds and runs the C++ unit tests (``xla_pass/**/*_test.cc``), so that pytest alone covers the whole project."""

import os
import pathlib
import shutil
import subprocess
import sys

from tests.support import ROOT

BUILD = ROOT / "build" / "cc"  # that of `make cc-test`: after it, nothing is left to compile here


def run(program: str, *arguments: str | os.PathLike) -> None:
  # CMake and Ninja may have come as wheels, into the environment that runs this.
  path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
  executable = shutil.which(program, path=path)
  assert executable, f"{program} is not installed; `make` brings it"
  command = [executable, *map(str, arguments)]
  done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
  assert done.returncode == 0, done.stdout + done.stderr


def test_cpp_unit_tests():
  run("cmake", "-S", ROOT / "xla_pass", "-B", BUILD, "-G", "Ninja", "-DCOOPJAX_PYTHON=OFF")
  run("cmake", "--build", BUILD, "--parallel", "2")
  run("ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error")
