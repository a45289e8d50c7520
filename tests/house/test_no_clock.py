"""Plans know no clock and no dice of the process: what could bring them in is imported where it decides nothing."""

import re

from tests.support import ROOT


def files_with(pattern, folder, *suffixes):
  paths = (path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
  found = (path for path in paths if re.search(pattern, path.read_text(), re.MULTILINE))
  return {path.relative_to(ROOT / folder).as_posix() for path in found}


def test_one_header_of_the_core_looks_at_a_clock():
  assert files_with(r"<chrono>|<ctime>|std::random_device|\bclock\(|\bgetpid\(", "xla_pass", ".h", ".cc") == {
    "base/stopwatch.h"
  }


def test_one_module_of_the_package_looks_at_a_clock():
  assert files_with(r"^ *(import|from) time\b", "coopjax", ".py") == {"program/stopwatch.py"}


def test_nothing_is_drawn_from_the_process():
  assert not files_with(r"^ *(import|from) (uuid|random|secrets)\b|\bos\.getpid\b", "coopjax", ".py")
