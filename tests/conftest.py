"""What all tests share: kept decisions go into a directory of this run, never into the user's own; fixed seeds; what
one test enables, the next one does not have; and no more compiling and planning than it takes
(`tests/support/quick.py`)."""

import os
import tempfile

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(autouse=True, scope="session")
def quick_trials():
  from tests.support import quick

  quick.compile_trials_quickly()


@pytest.fixture(autouse=True)
def quick_plans(request, monkeypatch):
  if request.path.parent.name != "planners":
    from tests.support import quick

    monkeypatch.setattr(quick.auto, "AutoPlanner", quick.AutoPlanner)


@pytest.fixture(scope="module")
def quick_compiles():
  """For modules whose tests look at bytes, or compare numbers within rounding: the same HLO, no fast code."""
  from tests.support.checks import flags

  with flags(jax_disable_most_optimizations=True):
    yield


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
