"""Plans know no clock and no dice of the process: what could bring them in is imported where it decides nothing."""

import re

from tests.support import ROOT

# Seconds that are shown: they end in fields of results.
SHOWS_SECONDS = {
  "cli/progress.py",
  "hlo_engine/module_plan.py",
  "planning/function_plan.py",
  "planning/kept.py",
  "planning/step_plan.py",
}


def files_with(pattern, folder, *suffixes):
  paths = (path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
  found = (path for path in paths if re.search(pattern, path.read_text(), re.MULTILINE))
  return {path.relative_to(ROOT / folder).as_posix() for path in found}


def test_one_header_of_the_core_looks_at_a_clock():
  assert files_with(r"<chrono>|<ctime>|std::random_device|\bclock\(|\bgetpid\(", "xla_pass", ".h", ".cc") == {
    "base/stopwatch.h"
  }


def test_python_looks_at_a_clock_to_show_seconds_alone():
  found = files_with(r"^ *(import|from) time\b", "coopjax", ".py")
  assert {path for path in found if not path.startswith("planners/")} <= SHOWS_SECONDS
  assert not files_with(r"\btime\.(time|monotonic|process_time|sleep)\b", "coopjax", ".py") - SHOWS_SECONDS


def test_nothing_is_drawn_from_the_process():
  assert not files_with(r"^ *(import|from) (uuid|random|secrets)\b|\bos\.getpid\b", "coopjax", ".py")
