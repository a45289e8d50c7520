"""The corpus of captured modules: all of it can be captured, read, reordered and proved, and is the same each time."""

import re

import pytest

from benchmarks import hlo_corpus
from coopjax import _core
from coopjax.xla.module import parse_module, predict_memory, read_step_program
from tests.support.corpus import capture


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
  directory = tmp_path_factory.mktemp("corpus")
  done = capture(directory)
  assert done.returncode == 0, done.stdout + done.stderr
  return {path.stem: path.read_bytes() for path in directory.iterdir()}


def test_every_kind_of_op_is_in_it(modules):
  assert set(modules) == set(hlo_corpus.PROGRAMS)
  everything = b"".join(modules.values())
  for opcode in (
    "while",
    "conditional",
    "call",
    "fusion",
    "sort",
    "fft",
    "custom-call",
    "convolution",
    "dot",
    "scatter",
    "gather",
    "dynamic-slice",
    "dynamic-update-slice",
    "reduce-window",
    "opt-barrier",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
  ):
    assert re.search(rb"\x12" + bytes([len(opcode)]) + opcode.encode(), everything), f"no {opcode} in any module"


@pytest.mark.parametrize("name", hlo_corpus.PROGRAMS)
def test_modules_are_read_reordered_and_proved(modules, name):
  module = parse_module(modules[name])
  program, op_instruction_ids = read_step_program(module)
  assert program.core.check() == ""
  reordered = parse_module(_core.apply_schedule(module, op_instruction_ids, _core.schedule_for_memory(program.core)))
  assert _core.verify_transform(module, reordered) == ""
  assert predict_memory(reordered).argument_bytes == predict_memory(module).argument_bytes


def test_captures_are_the_same_each_time(modules, tmp_path):
  names = list(hlo_corpus.PROGRAMS)[:2]  # JAX's caches, which what came before has filled, shorten stack traces
  assert capture(tmp_path, *names).returncode == 0
  assert all((tmp_path / f"{name}.pb").read_bytes() == modules[name] for name in names)


def test_what_cannot_be_captured_is_named(tmp_path):
  assert not [name for name in hlo_corpus.names(num_devices=1) if name.startswith("sharded")]
  done = capture(tmp_path, "no_such_program")
  assert done.returncode == 2 and "no_such_program" in done.stderr
