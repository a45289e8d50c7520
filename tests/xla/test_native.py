"""Beside a genuine XLA: the memory that its BufferAssigner gives modules is what ours predicts, to the byte.

The XLA is the one in a TensorFlow wheel; ``make native-test`` fetches it, builds what links to it, and runs these.
"""

import json
import pathlib
import random
import subprocess

import numpy as np
import pytest

from benchmarks import hlo_corpus
from coopjax import _core
from coopjax.budget import Budget
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.module_plan import plan_module
from coopjax.xla.module import parse_module, predict_memory, read_step_program
from tests.support import ROOT
from tests.support.corpus import capture

pytestmark = pytest.mark.native

BUFFER_ORACLE = ROOT / "build" / "cc" / "native" / "buffer_oracle"
PLANS = {"coop": 0.6, "peak": 0.3, "segments": 0.2}  # planner: share of the temporaries


def random_order(program, seed: int) -> list[int]:
  """An order of the ops that keeps every dependence, and nothing else."""
  rng, order, num_waited_for = random.Random(seed), [], []
  offsets, predecessors = _core.op_predecessors(program.core)
  successors = [[] for _ in range(program.num_ops)]
  for op in range(program.num_ops):
    before = predecessors[offsets[op] : offsets[op + 1]].tolist()
    num_waited_for.append(len(before))
    for predecessor in before:
      successors[predecessor].append(op)
  ready = [op for op, count in enumerate(num_waited_for) if not count]
  while ready:
    op = ready.pop(rng.randrange(len(ready)))
    order.append(op)
    for successor in successors[op]:
      num_waited_for[successor] -= 1
      if not num_waited_for[successor]:
        ready.append(successor)
  assert len(order) == program.num_ops
  return order


def variants(module_bytes: bytes) -> dict[str, bytes]:
  """The module as it came, in other orders, and planned."""
  module = parse_module(module_bytes)
  program, op_instruction_ids = read_step_program(module)
  orders = {"for_memory": _core.schedule_for_memory(program.core)}
  orders |= {f"shuffled_{seed}": np.array(random_order(program, seed), np.int32) for seed in range(3)}
  made = {"as_captured": module_bytes}
  made |= {name: _core.apply_schedule(module, op_instruction_ids, order) for name, order in orders.items()}
  for planner, share in PLANS.items():
    planned = plan_module(module_bytes, [Mark(Budget(share=share), planner, "fast")]).module_bytes
    if planned is not None:
      made[planner] = planned
  return made


@pytest.fixture(scope="module")
def assigned(tmp_path_factory):
  """Every variant of every module, with XLA's own sizes: ``{name: {variant: (bytes, sizes)}}``."""
  directory = tmp_path_factory.mktemp("modules")
  done = capture(directory)
  assert done.returncode == 0, done.stdout + done.stderr
  made = {path.stem: variants(path.read_bytes()) for path in directory.iterdir()}
  for name, modules in made.items():
    for variant, module_bytes in modules.items():
      (directory / f"{name}.{variant}").write_bytes(module_bytes)
  sizes = run_oracle(*(f"{name}.{variant}" for name, modules in made.items() for variant in modules), cwd=directory)
  return {
    name: {variant: (module_bytes, sizes[f"{name}.{variant}"]) for variant, module_bytes in modules.items()}
    for name, modules in made.items()
  }


def run_oracle(*files: str, cwd: pathlib.Path) -> dict[str, dict[str, int]]:
  assert BUFFER_ORACLE.exists(), f"{BUFFER_ORACLE} is not built; `make native-test` builds it"
  done = subprocess.run([BUFFER_ORACLE, *files], cwd=cwd, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.parametrize("name", hlo_corpus.PROGRAMS)
def test_memory_is_what_xla_assigns(assigned, name):
  wrong = {}
  for variant, (module_bytes, sizes) in assigned[name].items():
    predicted = predict_memory(module_bytes)
    ours = {key: getattr(predicted, f"{key}_bytes") for key in sizes}
    if ours != sizes:
      wrong[variant] = f"XLA {sizes}, predicted {ours}"
  assert not wrong


def test_plans_clones_and_orders_are_among_them(assigned):
  planned = [modules for modules in assigned.values() if modules.keys() & PLANS.keys()]
  with_clones = [
    modules
    for modules in planned
    if max(len(module) for module, _ in modules.values()) > len(modules["as_captured"][0])
  ]
  with_orders = [modules for modules in assigned.values() if len({sizes["temp"] for _, sizes in modules.values()}) > 2]
  assert len(planned) >= 30 and len(with_clones) >= 20 and len(with_orders) >= 25


def test_the_oracle_names_what_xla_refuses(tmp_path):
  (tmp_path / "noise").write_bytes(b"\xff\xff")
  with pytest.raises(AssertionError, match="noise.*HloModuleProto"):
    run_oracle("noise", cwd=tmp_path)


def test_the_native_pass_lowers_memory_and_xla_accepts_what_it_leaves(assigned, tmp_path):
  names = ["mlp_gradient", "gpt_step_donated", "scanned_gpt_step_donated", "sharded_ring", "checkpointed_mlp"]
  for name in names:
    (tmp_path / name).write_bytes(assigned[name]["as_captured"][0])
  half = run_oracle("--budget=0.5", *names, cwd=tmp_path)
  before = {name: assigned[name]["as_captured"][1] for name in names}
  for name in names:
    assert half[name]["temp"] <= before[name]["temp"]
    assert {key: half[name][key] for key in ("argument", "output", "alias")}.items() <= before[name].items()
  for name in ("mlp_gradient", "gpt_step_donated", "checkpointed_mlp"):
    assert half[name]["temp"] <= before[name]["temp"] / 2
