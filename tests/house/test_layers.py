"""The house rules that a reader relies on: which layer may import which, and who may touch private JAX."""

import ast
import subprocess
import sys
from tests.support import ROOT

PACKAGE = ROOT / "coopjax"
# A layer may import itself and those before it. Deferred imports (inside functions) count too, but for the one door
# that RematPlan.apply and its policy decisions need.
LAYERS = ["errors", "display", "budget", "memory_profile", "program", "planners", "remat_plan", "compat", "jaxpr", "xla",
          "enabling", "cache", "request", "unplanned", "choice", "decision", "steps", "modelled", "step_plan", "api",
          "references", "budget_frontier", "arguments", "blocks", "linen", "nnx", "report", "user_functions", "progress",
          "planning_commands", "cli"]
FREE = {("remat_plan", "api"), ("remat_plan", "jaxpr")}


def imports(path):
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(path):
  return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_arrows_never_turn_back():
  for path in PACKAGE.rglob("*.py"):
    for name in imports(path):
      parts = name.split(".")
      if parts[0] == "coopjax" and len(parts) > 1 and parts[1] in LAYERS and layer(path) in LAYERS:
        here, there = layer(path), parts[1]
        assert LAYERS.index(there) <= LAYERS.index(here) or (here, there) in FREE, f"{path} imports {name}"


def test_only_compat_touches_private_jax():
  for path in PACKAGE.rglob("*.py"):
    if path.name != "compat.py":
      assert not [name for name in imports(path) if "._" in name and name.startswith("jax")], path
      assert "jax.__version" not in path.read_text().replace("{jax.__version__}", ""), path


def test_programs_and_planners_work_without_jax():
  code = (
    "import sys; sys.modules['jax'] = None\n"
    "from coopjax.program import cost, explain, liveness, step_program, validate\n"
    "from coopjax.planners import auto, base, coop, peak\n"
    "assert not [name for name in sys.modules if name.startswith('jax.')]"
  )
  subprocess.run([sys.executable, "-c", code], check=True)

