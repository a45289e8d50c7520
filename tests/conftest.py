"""What all tests share: kept decisions go into a directory of this run, never into the user's own; fixed seeds; what
one test enables, the next one does not have; and no more compiling and planning than it takes
(`tests/support/quick.py`)."""

import gc
import os
import re
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# No clock decides: another program may have the machine.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")


# Of these, tests share nothing, and are long: they fill up whichever worker is free.
_APART = {"test_docs", "test_examples", "test_meshes"}
_BY_FIRST_PARAMETER = {"test_transforms"}
_FIRST = {*_APART, *_BY_FIRST_PARAMETER, "test_many_hosts"}  # at the end, a worker would wait for one of them


def module_of(nodeid):
  return os.path.basename(nodeid.partition("::")[0]).removesuffix(".py")


def group_of(nodeid):
  """Workers share no memory: a module's tests, which share what was compiled once, are run by one of them."""
  path, _, name = nodeid.partition("::")
  module = module_of(nodeid)
  if module in _BY_FIRST_PARAMETER and (parameter := re.search(r"\[\w+", name)):
    return path + parameter[0]
  return nodeid if module in _APART else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """By `group_of`: marks and ``--dist=loadgroup`` would want ids that can be changed, which pytest 9.2 has no more."""
  from xdist.scheduler import LoadScopeScheduling

  class Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid):
      return group_of(nodeid)

  config.option.loadscopereorder = False  # groups of many tests are not the long ones
  return Scheduling(config, log)


def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: module_of(item.nodeid) not in _FIRST)


def pytest_collection_finish():
  """What was imported lives as long as the process: the collector need not look at it again and again."""
  gc.collect()
  gc.freeze()


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
  os.environ.pop("COLUMNS", None)  # pytest-xdist says 80, and commands take what a terminal has
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
