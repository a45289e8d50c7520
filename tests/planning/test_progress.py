"""The line on a terminal while planning takes long."""

import io
import sys

import jax
import pytest

import coopjax
from coopjax import progress
from tests.support import models


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_a_line_on_a_terminal_tells_what_takes_long(monkeypatch):
  """Planned for in a jit, which no command line is around; what planning does is told inside of the first line."""
  told, screen = [], Terminal()
  monkeypatch.setattr(sys, "stderr", screen)
  monkeypatch.setattr(progress, "_AFTER_S", 0.0)
  monkeypatch.setattr("rich.progress.Progress.update", lambda self, task, **fields: told.append(fields))
  loss, weights, x = models.mlp(depth=8, width=32, batch=256)
  fitted = coopjax.remat(loss, budget=0.7, engine="policy")
  jax.jit(jax.grad(fitted)).lower(weights, x)
  assert f"planning {loss.__name__}" in screen.getvalue() and {"note": "compiling trial 1"} in told
  with progress.shown("outer"), progress.shown("inner"):
    progress.note("[half] of\x1b it")
  assert (
    "outer" in screen.getvalue() and "inner" not in screen.getvalue() and told[-1] == {"note": r"\[half] of\x1b it"}
  )


def test_a_line_comes_late_goes_with_what_it_tells_of_and_is_for_terminals(monkeypatch):
  for screen in (Terminal(), io.StringIO()):
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(KeyError), progress.shown("planning"):
      raise KeyError
    with progress.shown("planning"):
      progress.note("soon there")
    assert "planning" not in screen.getvalue() and not progress._lines
