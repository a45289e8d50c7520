"""Capturing the corpus of modules, in a process of its own: `benchmarks/hlo_corpus/` says what is in it."""

import os
import subprocess
import sys

from tests.support import ROOT


def capture(directory, *names):
  command = [sys.executable, "-W", "error", "-m", "benchmarks.hlo_corpus", str(directory), *names]
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # of LLVM; modules stay
  return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
