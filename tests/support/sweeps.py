"""Of parametrized tests `make test` runs the cases that tell most for their time; the others have the mark `sweep`."""

import pytest


def all_but(kept, cases):
  """`cases` as `pytest.mark.parametrize` takes them, each one argument; sweeps, but for those that are `kept`."""
  cases = list(cases)
  unknown = [case for case in kept if case not in cases]
  assert not unknown, unknown
  return [case if case in kept else pytest.param(case, marks=pytest.mark.sweep) for case in cases]


# Budgets of random programs, each with examples of its own.
of_each_share = pytest.mark.parametrize("share", all_but([0.7], [1.0, 0.85, 0.7, 0.5, 0.3]))
