"""The walls of ``xla_pass``: which folder may include which, and that Bazel's files say the same.

Reads sources and BUILD files as text: nothing is compiled.
"""

import functools
import pathlib
import re

from tests.support import ROOT

XLA_PASS = ROOT / "xla_pass"
# Folder -> its floor; a second number is a floor within `planners`. A file includes its own folder's and what lies on
# lower floors. Tests (*_test.cc) stand beside fuzz/, wherever they lie.
LAYERS = {
  "base": (0,),
  "program": (1,),
  "packing": (2,),
  "hlo": (2,),
  "planners/moves": (2, 0),
  "planners/orders": (2, 0),
  "planners/bounds": (2, 0),
  "planners/coop": (2, 1),
  "planners/fastsa": (2, 1),
  "planners/peak": (2, 1),
  "planners/saving": (2, 1),
  "planners/segments": (2, 1),
  "planners/improve": (2, 2),
  "buffers": (3,),
  "verify": (3,),
  "bridge": (4,),
  "pass": (5,),
  "testing": (6,),
  "python": (7,),
  "native": (7,),
  "fuzz": (7,),
}
TESTS = (7,)
# More walls than the floors make. The verifier shares no code with what it judges; only tests include testing/.
WALLS = {"hlo": {"base"}, "verify": {"base", "hlo"}}
USERS_OF_TESTING = {"testing", "fuzz"}
NOT_IN_BAZEL = {"python", "native", "fuzz"}  # nanobind's, a TensorFlow wheel's, Clang's
FOREIGN = ("xla/", "absl/")  # what native/ includes of XLA

SOURCES = sorted([*XLA_PASS.rglob("*.h"), *XLA_PASS.rglob("*.cc")])


def folder_of(path: pathlib.Path | str) -> str:
  """The folder of a source, or of an include, seen from xla_pass."""
  path = pathlib.PurePath(path)
  return (path.relative_to(XLA_PASS) if path.is_absolute() else path).parent.as_posix()


def is_test(path: pathlib.Path) -> bool:
  return path.name.endswith("_test.cc")


@functools.cache
def includes(path: pathlib.Path) -> list[str]:
  """What a file includes in quotes, written from xla_pass."""
  found = re.findall(r'^\s*#\s*include\s+"(.+)"', path.read_text(), re.MULTILINE)
  return [name for name in found if not name.startswith(FOREIGN)]


def lies_below(there: str, here: str) -> bool:
  """Whether a file of folder `here` may include one of another folder, `there`."""
  if here.startswith("planners/") and there.startswith("planners/"):
    return LAYERS[there] < LAYERS[here]
  return LAYERS[there][0] < LAYERS[here][0]


def may_include(path: pathlib.Path, there: str) -> bool:
  here = folder_of(path)
  if here == there:
    return True
  if is_test(path):
    return LAYERS[there] < TESTS
  if there == "testing":
    return here in USERS_OF_TESTING
  return lies_below(there, here) and there in WALLS.get(here, LAYERS)


def unlisted(paths: list[pathlib.Path]) -> set[str]:
  """Folders that the table does not know: a file that lies in none has no floor."""
  return {folder_of(path) for path in paths} - set(LAYERS)


def test_every_folder_has_a_floor():
  assert len(SOURCES) > 200
  assert not unlisted(SOURCES)
  assert {folder_of(path) for path in SOURCES} == set(LAYERS), "the table names what is gone"


def test_includes_are_written_from_xla_pass():
  for path in SOURCES:
    for name in includes(path):
      assert (XLA_PASS / name).is_file(), f"{path} includes {name}, which is no path from xla_pass"


def test_includes_only_go_down():
  wrong = [
    f"{path.relative_to(XLA_PASS)} includes {name}"
    for path in SOURCES
    for name in includes(path)
    if not may_include(path, folder_of(name))
  ]
  assert not wrong, wrong


def test_the_walls_hold_back_what_they_should():
  for source, there in [
    ("verify/verify.cc", "bridge"),
    ("verify/verify.cc", "program"),
    ("hlo/graph.h", "program"),
    ("planners/peak/planner.cc", "planners/coop"),
    ("planners/moves/lowering.cc", "planners/peak"),
    ("planners/coop/planner.cc", "packing"),
    ("buffers/heap.cc", "testing"),
    ("python/module.cc", "testing"),
    ("pass/inner_planner_test.cc", "python"),
  ]:
    assert not may_include(XLA_PASS / source, there), (source, there)
  for source, there in [
    ("verify/verify_test.cc", "bridge"),
    ("planners/improve/exchange_search.cc", "planners/moves"),
    ("fuzz/module_fuzz.cc", "testing"),
  ]:
    assert may_include(XLA_PASS / source, there), (source, there)
  assert unlisted([XLA_PASS / "foo.cc", XLA_PASS / "rooms" / "foo.h", XLA_PASS / "base" / "csr.h"]) == {".", "rooms"}


def units() -> list[pathlib.Path]:
  """The .cc files that have something to declare."""
  own = [path for path in SOURCES if path.suffix == ".cc" and not is_test(path)]
  return [path for path in own if folder_of(path) not in NOT_IN_BAZEL]


def defined(source: str) -> set[str]:
  """Names of the functions that a .cc file defines for others: at the start of a line, in no nameless namespace."""
  source = re.sub(r"^namespace \{$.*?^\}  // namespace$", "", source, flags=re.MULTILINE | re.DOTALL)
  other = "using|static|template|namespace|struct|class"
  return set(re.findall(rf"^(?!{other})\w[\w:<>,*& ]*?(\w+)\(", source, re.MULTILINE))


def test_units_declare_in_headers_of_their_names():
  for path in units():
    header = path.with_suffix(".h")
    assert header.is_file(), f"{path} has no header of its name"
    assert includes(path)[0] == header.relative_to(XLA_PASS).as_posix(), f"{path} includes its header first"
    for name in defined(path.read_text()):
      assert re.search(rf"\b{name}\b", header.read_text()), f"{path} defines {name}, which another header declares"


def test_one_file_looks_at_the_clock():
  clocks = re.compile(r"<chrono>|_clock\b|<ctime>|gettimeofday")
  assert [path for path in SOURCES if clocks.search(path.read_text())] == [XLA_PASS / "base" / "stopwatch.h"]


def labels(build: str, argument: str) -> set[str]:
  """The folders in a list of labels that a BUILD file passes as `argument`."""
  listed = re.search(rf"\b{argument} = \[(.*?)\]", build, re.DOTALL)
  return set(re.findall(r'"//xla_pass/([^":]+)"', listed[1])) if listed else set()


def test_bazel_lists_what_is_included():
  """``deps`` and ``test_deps`` of every folder are what its files and its tests include."""
  for folder in set(LAYERS) - NOT_IN_BAZEL:
    build = re.sub(r"\btest_deps\b", "deps_of_tests", (XLA_PASS / folder / "BUILD").read_text())
    for argument, tests in [("deps", False), ("deps_of_tests", True)]:
      paths = [path for path in SOURCES if folder_of(path) == folder and is_test(path) == tests]
      included = {folder_of(name) for path in paths for name in includes(path)} - {folder}
      assert labels(build, argument) == included, f"{folder}/BUILD, {argument}: {sorted(included)}"


def test_bazel_knows_every_folder():
  build = (XLA_PASS / "BUILD").read_text()
  assert set(re.findall(r'"//xla_pass/([^":]+):files"', build)) == set(LAYERS) - NOT_IN_BAZEL
  assert set(re.findall(r'"(\w+)/\*"', build)) == NOT_IN_BAZEL
