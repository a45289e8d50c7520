"""What is written about the code is true: the examples in docstrings run, and the paths that texts name exist."""

import doctest
import functools
import importlib
import re
import shutil
import subprocess

import pytest

from tests.support import ROOT, sweeps

PACKAGE = ROOT / "coopjax"
XLA_PASS = ROOT / "xla_pass"
EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE))
TEXTS = (
  "*.py",
  "*.pyi",
  "*.h",
  "*.cc",
  "*.md",
  "*.txt",
  "*.toml",
  "*.yaml",
  "*.html",
  "*.js",
  "BUILD",
  "Makefile",
  ".ci/*",
)
# From the root of the checkout; results are written, so they need not be there.
TOPS = r"xla_pass|coopjax|tests|docs|examples|benchmarks(?!/results)|bazel|\.ci"
FROM_ROOT = re.compile(rf"(?<![\w/.-])(?:{TOPS})/[\w.*/-]*\w")
# From xla_pass, as includes are written.
ROOMS = "|".join(sorted(path.name for path in XLA_PASS.iterdir() if path.is_dir()))
FROM_XLA_PASS = re.compile(rf"(?<![\w/.-])(?:{ROOMS})/[\w/]+\.(?:h|cc)\b")
BARE = re.compile(r"(?<![\w/.*<-])[a-z]\w*\.(?:h|cc)\b|(?<=`)\w+\.py(?=`)")
NOT_OURS = {
  "foo.h",
  "foo.cc",
  "foo.py",
  "train.py",
  "hlo_alias_analysis.cc",
  "hlo_live_range.cc",
}  # examples; files of XLA's


@functools.cache
def texts():
  """Every tracked file that people write, path and text; of a checkout without git, every such file but built ones."""
  listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *TEXTS]
  names = shutil.which("git") and subprocess.run(listing, cwd=ROOT, capture_output=True, text=True).stdout.split()
  if not names:
    found = (path.relative_to(ROOT) for pattern in TEXTS for path in ROOT.rglob(pattern))
    names = [str(path) for path in found if path.parts[0] not in ("build", "out") and path.parts[0][:5] != ".venv"]
  return {name: (ROOT / name).read_text() for name in sorted(set(names)) if (ROOT / name).is_file()}


def absent(pattern, base, suffixes=("",)):
  """Where a path is named that is not there: "file:line: path"."""
  found = []
  for name, text in texts().items():
    if not name.endswith(tuple(suffixes)):
      continue
    for number, line in enumerate(text.splitlines(), 1):
      found += [f"{name}:{number}: {path}" for path in pattern.findall(line) if not any(base.glob(path))]
  return found


@pytest.mark.parametrize(
  "path",
  sweeps.all_but([path for path in EXAMPLES if path.stem not in ("batch_search", "budget_frontier")], EXAMPLES),
  ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_examples(path):
  name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
  found = doctest.testmod(importlib.import_module(name))
  assert found.attempted and not found.failed


def test_examples_are_found():
  assert {"api.py", "budget.py", "enabling.py"} <= {path.name for path in EXAMPLES}


def test_paths_from_the_root_exist():
  assert not absent(FROM_ROOT, ROOT)


def test_paths_from_xla_pass_exist():
  assert not absent(FROM_XLA_PASS, XLA_PASS, (".h", ".cc", "README.md", "architecture.md", "CONTRIBUTING.md"))


def test_files_that_are_named_without_a_folder_exist():
  """What a C++ file or a docstring calls ``foo.h`` or ``foo.py`` is the name of some file of ours."""
  ours = {name.rpartition("/")[2] for name in texts()} | NOT_OURS
  found = [
    f"{name}:{number}: {file}"
    for name, text in texts().items()
    if name.endswith((".py", ".h", ".cc"))
    for number, line in enumerate(text.splitlines(), 1)
    for file in BARE.findall(line)
    if file not in ours
  ]
  assert not found
