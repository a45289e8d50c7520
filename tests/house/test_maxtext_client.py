"""The benchmark with MaxText, on a trainer in its manner: a command line of key=value, lowered ahead, then trained."""

import importlib
import json
import os
import sys

import pytest

from tests.support import ROOT

TRAINER = """
import json
import pathlib
import sys
import jax
from tests.support import hand_rungs
from tests.support.checkpointed_steps import arguments, make_step, saving

def main(config):
  chosen = [name for name in hand_rungs.RUNGS["with_context"] if config.get(name) == "device"]
  saved = {"full": (), "minimal": hand_rungs.RUNGS["products"], "custom": chosen}[config["remat_policy"]]
  step, (params, momentum, x) = make_step(saving(*saved)), arguments()
  step.lower(*jax.eval_shape(lambda: (params, momentum, x))).compile()
  with pathlib.Path(config["metrics_file"]).open("w") as metrics:
    params, momentum, loss = step(params, momentum, x)
    print(json.dumps({"learning/loss": float(loss)}), file=metrics)

if __name__ == "__main__":
  main(dict(argument.split("=") for argument in sys.argv[2:]))
"""


@pytest.fixture
def client(monkeypatch, tmp_path):
  """The module `maxtext_client`, where MaxText is that trainer."""
  trainer = tmp_path / "maxtext" / "trainers" / "pre_train" / "train.py"
  trainer.parent.mkdir(parents=True)
  trainer.write_text(TRAINER)
  monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, ROOT))))
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  yield importlib.import_module("maxtext_client")
  for name in ("maxtext_client", "maxtext"):
    sys.modules.pop(name, None)


@pytest.mark.sweep
def test_by_hand_run_and_written_out(client, monkeypatch, tmp_path, capsys):
  out = tmp_path / "maxtext.json"
  monkeypatch.setattr(sys, "argv", ["maxtext_client.py", "--jobs", "cpu", "--rungs", "minimal", "--out", str(out)])
  with pytest.raises(SystemExit) as end:
    client.main()
  assert end.value.code is None
  rows = {row["how"]: row for row in json.loads(out.read_text())["rows"]}
  hand, run, yaml = rows["by hand"], rows["run"], rows["yaml"]
  assert run["planned_bytes"] == run["temp_bytes"] <= hand["temp_bytes"]
  assert run["repeated_gflop"] <= hand["repeated_gflop"]
  written = rows.get("names", run)
  assert "remat_policy: 'custom'" in written["yaml"] and yaml["temp_bytes"] == written["planned_bytes"]
  assert len(hand["losses"]) == 1
  for row in (run, yaml):
    assert row["losses"] == pytest.approx(hand["losses"], rel=1e-5)
  assert "by hand" in capsys.readouterr().out
  with pytest.raises(SystemExit):
    client.main()  # all rows are there: nothing is run
  assert {row["how"]: row for row in json.loads(out.read_text())["rows"]} == rows
  written["planned_bytes"] += 1
  assert client.broken({("cpu", "minimal", how): row for how, row in rows.items()})
