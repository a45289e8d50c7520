"""What a py_test target runs: pytest on the one file that is named, in the runfiles that Bazel laid out."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent  # not resolved: the links are the sandbox

if __name__ == "__main__":
  os.environ.setdefault("HOME", os.environ["TEST_TMPDIR"])
  os.chdir(ROOT)
  sys.exit(pytest.main([f"tests/{sys.argv[1]}", "-m", "not sweep", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]))
