"""Tests that share what was compiled once are run by one worker: nobody would see it but the clock."""

from unittest import mock

from tests.conftest import group_of, module_of, pytest_collection_modifyitems, pytest_xdist_make_scheduler


def test_a_module_is_one_group():
  assert group_of("tests/api/test_remat.py::test_a[x-1]") == group_of("tests/api/test_remat.py::test_b")
  assert group_of("tests/api/test_remat.py::test_a") != group_of("tests/api/test_nnx.py::test_a")


def test_long_tests_that_share_nothing_are_groups_of_their_own():
  first, second = (group_of(f"tests/api/test_meshes.py::test_each[{name}]") for name in ("plans", "scans"))
  assert first != second
  ids = ("test_goes_wherever_checkpoint_goes[scan]", "test_under_the_new_implementation_of_checkpoint[scan-True]")
  scan, scan_with_flags = (group_of(f"tests/api/test_transforms.py::{each}") for each in ids)
  assert scan == scan_with_flags != group_of("tests/api/test_transforms.py::test_goes_wherever_checkpoint_goes[switch]")


def test_the_scheduler_asks_for_groups(pytestconfig, monkeypatch):
  """Its base class calls `_split_scope`, which is no public name of pytest-xdist."""
  sent = []
  worker = mock.Mock(shutting_down=False, send_runtest_some=sent.extend)
  monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
  monkeypatch.setattr(pytestconfig.option, "loadscopereorder", True)
  scheduler = pytest_xdist_make_scheduler(pytestconfig, None)
  scheduler.add_node(worker)
  paths = "tests/api/test_nnx.py", "tests/api/test_remat.py"
  scheduler.add_node_collection(worker, [f"{paths[i % 3 > 0]}::test_{i}" for i in range(9)])
  scheduler.schedule()
  assert sent == [0, 3, 6]  # in the order of collection, and not the group of most tests first


def test_long_tests_begin():
  items = [mock.Mock(nodeid=f"tests/{path}.py::test") for path in ("api/test_nnx", "planning/test_many_hosts")]
  pytest_collection_modifyitems(items)
  assert [module_of(item.nodeid) for item in items] == ["test_many_hosts", "test_nnx"]
