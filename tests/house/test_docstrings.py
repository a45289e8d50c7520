"""The examples in public docstrings run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", [
  "coopjax.api", "coopjax.budget", "coopjax.planning.budget_frontier", "coopjax.enabling", "coopjax.jaxpr.step_program",
  "coopjax.xla.targets"])
def test_examples(name):
  found = doctest.testmod(importlib.import_module(name))
  assert found.attempted and not found.failed
