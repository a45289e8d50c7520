"""Both frontiers from rows of the ladder: ratios by hand, a picture of what is stored."""

import importlib
import sys

import pytest

from tests.support import ROOT


@pytest.fixture
def benchmark(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  yield importlib.import_module("ladder_frontiers")
  for name in ("ladder_frontiers", "tables"):
    sys.modules.pop(name, None)


def test_fewest_bytes_at_a_rungs_flops(benchmark):
  fields = ("program", "ratio", "hand_mib", "hand_gflop", "mib", "gflop")
  rows = [
    dict(zip(fields, values, strict=True))
    for values in (
      ("made", 0.5, 10.0, 8.0, 9.0, 4.0),
      ("made", 1.0, 20.0, 3.0, 20.0, 3.0),
      ("made", 1.0, 40.0, 1.0, 40.0, 2.0),
    )
  ]
  row = benchmark.of_program(rows)
  # 9 MiB repeat 4 of the first rung's 8; the second's 3 take 20 MiB, as by hand; none repeats as little as the third.
  assert (row["bytes"], row["worst_bytes"], row["num_beyond"]) == (0.95, 1.0, 1)
  assert (row["flops"], row["worst_flops"], row["num_rungs"]) == (1.0, 1.0, 3)


def test_the_stored_rows_are_drawn(benchmark, tmp_path, monkeypatch, capsys):
  picture = tmp_path / "ladder.png"
  monkeypatch.setattr(sys, "argv", ["ladder_frontiers.py", "--picture", str(picture)])
  benchmark.main()
  assert picture.read_bytes().startswith(b"\x89PNG") and "encoder_decoder" in capsys.readouterr().out
  monkeypatch.setattr(sys, "argv", ["ladder_frontiers.py", "--target", "none"])
  with pytest.raises(SystemExit):
    benchmark.main()
