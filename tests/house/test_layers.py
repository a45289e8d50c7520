"""The house rules that a reader relies on: which room may import which, and who may touch private JAX."""

import ast
import functools
import graphlib
import subprocess
import sys

import pytest

import coopjax
from tests.support import ROOT

PACKAGE = ROOT / "coopjax"
# The floors, the highest first. What stands on one imports floors below it alone, so the rooms of a floor know nothing
# of each other (the two engines, say). A room is a package or a module at the top of coopjax; "coopjax" is the front
# door, which names the public names and imports them when they are first used, and _core what C++ does.
FLOORS = (
  "__main__",
  "cli",
  "report api enabling linen nnx equinox optimizers calibration",
  "launching",
  "keywords",
  "planning",
  "policy_engine hlo_engine",
  "xla",
  "planners jaxpr memory_profile",
  "program",
  "budget display job progress",
  "errors compat contexts",
  "coopjax _core",
)
FLOOR_OF = {room: number for number, rooms in enumerate(reversed(FLOORS)) for room in rooms.split()}
FILES = sorted(PACKAGE.rglob("*.py"))
# Work where there is no JAX: what is planned with, and what is decided, as data.
WITHOUT_JAX = ("coopjax.program", "coopjax.planners", "coopjax.memory_profile", "coopjax.policy_engine.decisions")


def module_of(path):
  """The dotted name of a file; that of its package for an ``__init__``."""
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
  """The package or module at the top of coopjax that a module belongs to; "coopjax" for the front door itself."""
  return ".".join(module.split(".")[1:2]) or "coopjax"


MODULES = {module_of(path): path for path in FILES} | {"coopjax._core": None}


@functools.cache
def names(path, for_types=True):
  """What a file imports, inside functions too, and what it reaches through a package: "coopjax.plan", "jax.jit".

  Args:
    path: of the file.
    for_types: whether what stands under ``if TYPE_CHECKING`` counts.
  """
  found = set()
  for node in nodes(ast.parse(path.read_text()), for_types):
    if isinstance(node, ast.Import):
      found.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}:{node.lineno}: imports are absolute"
      found.update(f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("coopjax.", "jax.", "jaxlib.")):
      found.add(ast.unparse(node))
  return frozenset(found)


def nodes(node, for_types):
  yield node
  is_for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
  for child in node.orelse if is_for_types and not for_types else ast.iter_child_nodes(node):
    yield from nodes(child, for_types)


def imports(path, for_types=True):
  """Our own modules that a file imports, be it through the front door."""
  return sorted({home_of(name) for name in names(path, for_types) if name.split(".")[0] == "coopjax"})


def home_of(name):
  """The module that a dotted name is or is in: "coopjax.api" for "coopjax.plan"."""
  first = name.split(".")[1:2]
  if first and first[0] in coopjax._HOME_OF:
    return coopjax._HOME_OF[first[0]]
  while name not in MODULES:
    name = name.rpartition(".")[0]
  return name


def test_every_module_stands_in_the_table():
  rooms = {room_of(module) for module in MODULES}
  assert rooms == set(FLOOR_OF), (
    "a new module or package belongs on a floor of the table, and into docs/architecture.md"
  )


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_arrows_only_go_down(path):
  room = room_of(module_of(path))
  for name in imports(path, for_types=room != "coopjax"):  # the door tells type checkers of every public name
    there = room_of(name)
    assert there == room or FLOOR_OF[there] < FLOOR_OF[room], f"{path.relative_to(ROOT)} imports {name}"


def test_no_circle_between_files():
  graph = {module: set(imports(path, for_types=False)) - {module} for module, path in MODULES.items() if path}
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    pytest.fail(" -> ".join(reversed(error.args[1])))


def test_only_compat_touches_private_jax():
  for path in FILES:
    if room_of(module_of(path)) != "compat":
      private = [name for name in names(path) if name.startswith("jax") and "._" in name.replace(".__", ".")]
      assert not private, f"{path.relative_to(ROOT)} uses {private}"
      assert "jax.__version" not in path.read_text().replace("{jax.__version__}", ""), path


def test_what_needs_no_jax_works_without_it():
  modules = [module for module in MODULES if any(f"{module}.".startswith(f"{each}.") for each in WITHOUT_JAX)]
  code = (
    "import importlib, sys\n"
    "sys.modules['jax'] = None\n"
    f"for name in {modules}: importlib.import_module(name)\n"
    "assert not [name for name in sys.modules if name.startswith('jax.')]"
  )
  subprocess.run([sys.executable, "-c", code], check=True)


def test_all_user_contexts_are_made_at_one_moment():
  """With each that comes into being, JAX traces everything once more."""
  assert [module_of(path) for path in FILES if "jax.make_user_context" in names(path)] == ["coopjax.contexts"]
