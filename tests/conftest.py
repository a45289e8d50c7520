"""What all tests share: kept decisions go into a directory of this run, never into the user's own; fixed seeds; what
one test enables, the next one does not have; and no more compiling and planning than it takes
(`tests/support/quick.py`)."""

import os
import tempfile

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


# Of these, tests share nothing, and are long: they fill up whichever worker is free.
_APART = {"test_docs", "test_examples", "test_meshes"}


def pytest_collection_modifyitems(items):
  """Workers share no memory: a module's tests, which share what was compiled once, are run by one of them."""
  for item in items:
    if item.path.stem not in _APART and not item.get_closest_marker("xdist_group"):
      item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(autouse=True)
def planners_are_tested_as_they_are(request, monkeypatch):
  if request.path.parent.name == "planners":
    from tests.support import quick

    monkeypatch.setattr(quick.auto, "AutoPlanner", quick.ThoroughPlanner)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
  """Before any fixture compiles and plans."""
  from tests.support import quick

  quick.be_quick()
  quick.set_optimizations(any(map(item.get_closest_marker, ("optimized", "targets"))))


def pytest_configure(config):
  directory = tempfile.TemporaryDirectory(
    prefix="coopjax-cache-"
  )  # of each worker: what one plans, another does not skip
  os.environ["COOPJAX_CACHE_DIR"] = directory.name
  config.add_cleanup(directory.cleanup)


@pytest.fixture(autouse=True)
def disabled():
  yield
  import coopjax

  coopjax.disable()


@pytest.fixture
def outcomes(monkeypatch):
  """What the hook did to each program, in order."""
  from coopjax.hlo_engine import hook

  made, plan_module = [], hook.plan_module

  def recording(*args, **kwargs):
    made.append(plan_module(*args, **kwargs))
    return made[-1]

  monkeypatch.setattr(hook, "plan_module", recording)
  return made
