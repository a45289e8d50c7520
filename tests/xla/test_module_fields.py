"""A module's plan in its twin of another process."""

import pytest

from coopjax.errors import InvalidProgramError
from coopjax.xla.compile import module_of
from coopjax.xla.module import parse_module, predict_memory
from coopjax.xla.module_fields import with_plan_of, without_labels
from tests.support.scheduled import plain


def test_a_module_with_its_own_plan_is_itself():
  module = module_of(plain("mlp"))
  moved = with_plan_of(module, module)
  assert sorted(moved) == sorted(module) and with_plan_of(moved, moved) == moved
  assert predict_memory(parse_module(moved)).temp_bytes == predict_memory(parse_module(module)).temp_bytes


def test_a_module_without_labels_is_as_large_when_it_runs():
  module = module_of(plain("mlp"))
  bare = without_labels(module)
  assert without_labels(bare) == bare
  assert b"jit(" in module and b"jit(" not in bare
  assert predict_memory(parse_module(bare)).temp_bytes == predict_memory(parse_module(module)).temp_bytes


@pytest.mark.parametrize("end", [-1, -100])
def test_half_a_module_is_none(end):
  with pytest.raises(InvalidProgramError, match="ends within"):
    without_labels(module_of(plain("mlp"))[:end])
