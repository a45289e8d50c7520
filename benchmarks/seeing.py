"""How fast memory is seen: `coopjax inspect` on a module of 10 MB, and the report of a program of 100,000 steps.

The module is the gradient of an unrolled decoder on the CPU; the command is timed as a user runs it, the interpreter's
start included; beside it stands its CPU time, which a busy machine changes less. The report is opened in headless
Chromium (`.ci/install-browser`): it is interactive when its first picture is drawn and a key has drawn the next. Writes
benchmarks/results/seeing.json.

  python benchmarks/seeing.py      # a minute or two, nearly all of it XLA's
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import jax
import models
import tables

from coopjax.report import html
from tests.support import browser, profiles

NUM_LAYERS, NUM_BUFFERS, NUM_RUNS = 28, 100_000, 5
MB = 1_000_000
COLUMNS = {
  "what": "{what}",
  "size": "{size_mb:.1f} MB",
  "buffers": "{num_buffers:,}",
  "fastest": "{seconds:.2f} s",
  "of it CPU": "{cpu_s:.2f} s",
  "bar": "{bar_s:.0f} s",
}
RESULTS = tables.RESULTS / "seeing.json"


def inspected(directory: pathlib.Path) -> tables.Row:
  """The command on a dump, the fastest of some runs."""
  model = models.decoder(num_layers=NUM_LAYERS, width=16, context=8, batch_size=1, num_heads=1, vocab_size=16)
  jax.jit(jax.value_and_grad(model.loss)).lower(model.params, *model.batch).compile(
    compiler_options={"xla_dump_to": str(directory), "xla_dump_hlo_as_proto": True, "xla_backend_optimization_level": 0}
  )
  (module,) = directory.glob("*after_optimizations.hlo.pb")
  runs = []
  for _ in range(NUM_RUNS):
    start, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", "coopjax.cli", "inspect", str(module)], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
    runs.append((time.perf_counter() - start, cpu_s))
  seconds, cpu_s = min(runs)
  return {
    "what": "coopjax inspect",
    "size_mb": module.stat().st_size / MB,
    "num_buffers": None,
    "seconds": seconds,
    "cpu_s": cpu_s,
    "bar_s": 2.0,
  }


def reported(directory: pathlib.Path) -> tables.Row:
  """The report, from the address to the picture after a key; the fastest of some loads."""
  path = directory / "report.html"
  path.write_text(html.to_html(profiles.profile_with(NUM_BUFFERS)))
  seconds = []
  with browser.browsing(directory / "profile") as page:
    for _ in range(NUM_RUNS):
      start = time.perf_counter()
      page.open(path)
      page.run("document.getElementById('map').focus()")
      page.press("+")
      seconds.append(time.perf_counter() - start)
    if page.errors:
      sys.exit(f"the report has errors: {page.errors}")
  return {
    "what": "report in Chromium",
    "size_mb": path.stat().st_size / MB,
    "num_buffers": NUM_BUFFERS,
    "seconds": min(seconds),
    "cpu_s": None,
    "bar_s": 2.0,
  }


def main() -> None:
  with tempfile.TemporaryDirectory() as directory:
    rows = [inspected(pathlib.Path(directory) / "dump"), reported(pathlib.Path(directory))]
  tables.console().print(tables.table(rows, COLUMNS))
  tables.write(RESULTS, rows=rows)
  print(f"written to {RESULTS}")


if __name__ == "__main__":
  main()
