"""Rooms of the tests: those of the package, and `support` for whatever two test files share."""

import re

from tests.support import ROOT

TESTS = ROOT / "tests"
# In the text, not only where Python imports: tests hand code to other processes, too.
IMPORTS_A_TEST = re.compile(r"\b(?:from|import) tests\.[\w.]*\btest_\w+|\bfrom tests\.\w+ import .*\btest_\w+")


def test_no_test_file_imports_another():
  found = {str(path.relative_to(ROOT)): IMPORTS_A_TEST.findall(path.read_text()) for path in TESTS.rglob("*.py")}
  assert not {path: imports for path, imports in found.items() if imports}


def test_what_tests_share_lies_in_support():
  at_the_door = {TESTS / name for name in ("__init__.py", "conftest.py", "bazel_main.py")}
  shared = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_") and path not in at_the_door]
  assert {path.parent for path in shared if path.name != "__init__.py"} == {TESTS / "support"}
