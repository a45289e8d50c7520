"""One plan in every process: many requests, planned in jobs of 2, 4 and 8 processes that are in each other's way.

Every process plans every request by itself, with nothing agreed and nothing kept on disk, so that what could make plans
differ has its chance: processes have other priorities, hash seeds and directories, and a busy loop beside them.
Programs are from the corpus, planned by the HLO engine as XLA schedules them, and small losses, for which
`coopjax.remat` chooses by each engine. A request holds if all processes of the job have one digest for it: of the
planned module, or of the choice.

  python benchmarks/one_plan.py                                   # 1,008 plans: 72 requests in 14 processes
  python benchmarks/one_plan.py --processes 2 --requests 12
"""

import argparse
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hlo_corpus
import jax
import jax.numpy as jnp
import tables

from coopjax.budget import Budget
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.module_plan import plan_module
from coopjax.jaxpr.trace import trace
from coopjax.planners.effort import EFFORTS
from coopjax.planning import function_plan
from coopjax.planning.request import Request

ROOT = pathlib.Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "results" / "one_plan.json"
PROCESSES = (2, 4, 8)
SHARE = 0.7
MODULE = "module"  # the HLO engine on a corpus program
CORPUS = (
  "accumulated_step_donated adam_step_donated bf16_autoencoder branches cholesky_gradient cumulative dynamic_slices "
  "embedding_step_donated fft generate_with_cache mlp_gradient mlp_step_donated nested_scans pooling scatters "
  "sort_gradient"
).split()
COLUMNS = {
  "processes": "{processes}",
  "engine": "{engine}",
  "effort": "{effort}",
  "requests": "{requests}",
  "plans": "{plans}",
  "one digest": "{num_alike}",
  "fastest s": "{fastest_s:.1f}",
  "slowest s": "{slowest_s:.1f}",
}


@dataclasses.dataclass(frozen=True)
class Asked:
  """A request of the benchmark: a program, who plans it, and how much effort."""

  program: str
  engine: str
  effort: str


def requests() -> list[Asked]:
  """All of them."""
  by_engine = [(MODULE, name) for name in CORPUS]
  by_engine += [(engine, name) for engine in ("policy", "auto") for name in LOSSES]
  return [Asked(name, engine, effort) for (engine, name), effort in itertools.product(by_engine, EFFORTS)]


def _mlp(weights, x):
  for weight in weights:
    x = jnp.tanh(x @ weight)
  return jnp.mean(x**2)


def _scanned(weights, x):
  return jnp.mean(jax.lax.scan(lambda x, weight: (x + jnp.sin(x @ weight), None), x, jnp.stack(weights))[0] ** 2)


def _gated(weights, x):
  for up, gate in zip(weights[::2], weights[1::2]):
    x = x + jax.nn.silu(x @ up) * (x @ gate)
  return jnp.mean(x**2)


def _attention(weights, x):
  for weight in weights:
    y = x @ weight
    x = x + jax.nn.softmax(y @ y.T / 8) @ y
  return jnp.mean(x**2)


LOSSES = {"mlp": _mlp, "scanned": _scanned, "gated": _gated, "attention": _attention}


def digest_of(asked: Asked) -> str:
  """Plans a request, and says in a few letters what came of it."""
  if asked.engine == MODULE:
    outcome = plan_module(hlo_corpus.capture(asked.program), [Mark(Budget(share=SHARE), effort=asked.effort)])
    told = outcome.module_bytes or outcome.reason.encode()
  else:
    request = Request.checked(
      budget=SHARE,
      planner="auto",
      engine=asked.engine,
      target=None,
      effort=asked.effort,
      time_limit_s=None,
      on_infeasible="best_effort",
    )
    shapes = [jax.ShapeDtypeStruct((32, 32), "float32")] * 6, jax.ShapeDtypeStruct((256, 32), "float32")
    told = repr(function_plan.choose(trace(LOSSES[asked.program], shapes), request)).encode()
  return hashlib.sha256(told).hexdigest()[:16]


def work(num_requests: int) -> None:
  """What one process of a job does: a line of JSON for each request."""
  warnings.simplefilter("ignore")
  hlo_corpus.use_virtual_devices()
  for asked in chosen(num_requests):
    start = time.perf_counter()
    digest = digest_of(asked)
    print(json.dumps([digest, time.perf_counter() - start]), flush=True)


def chosen(num_requests: int) -> list[Asked]:
  """So many requests, spread over all."""
  found = requests()
  num_requests = min(num_requests, len(found))
  return [found[i * len(found) // num_requests] for i in range(num_requests)]


def job(num_processes: int, num_requests: int) -> Iterator[tables.Row]:
  """Runs a job under skewed load: a row per engine and effort."""
  asked = chosen(num_requests)
  with tempfile.TemporaryDirectory() as home, subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
    workers = [_worker(pathlib.Path(home), number, num_requests) for number in range(num_processes)]
    try:
      told = [[json.loads(line) for line in worker.communicate()[0].splitlines()] for worker in workers]
    finally:
      for process in (loop, *workers):
        process.kill()
  if any(worker.returncode or len(lines) != len(asked) for worker, lines in zip(workers, told)):
    raise SystemExit(f"a process of {num_processes} failed")
  by_request = dict(zip(asked, zip(*told), strict=True))
  for key in dict.fromkeys((each.engine, each.effort) for each in asked):
    cells = [cell for each, cell in by_request.items() if (each.engine, each.effort) == key]
    totals_s = [sum(seconds for _, seconds in column) for column in zip(*cells)]
    yield {
      "processes": num_processes,
      "engine": key[0],
      "effort": key[1],
      "requests": len(cells),
      "plans": len(cells) * num_processes,
      "num_alike": sum(len({digest for digest, _ in cell}) == 1 for cell in cells),
      "fastest_s": min(totals_s),
      "slowest_s": max(totals_s),
    }


def _worker(home: pathlib.Path, number: int, num_requests: int) -> subprocess.Popen:
  directory = home / f"process{number}"
  directory.mkdir()
  return subprocess.Popen(
    ["nice", "-n", str(2 * number), sys.executable, __file__, "--work", "--requests", str(num_requests)],
    cwd=directory,
    env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(number), "COOPJAX_CACHE_DIR": ""},
    text=True,
    stdout=subprocess.PIPE,
  )


def main() -> None:
  text, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=text, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--processes", type=int, nargs="+", default=PROCESSES, help="of each job")
  parser.add_argument("--requests", type=int, default=72, help="that each process plans")
  parser.add_argument("--out", type=pathlib.Path, default=OUT)
  parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.work:
    work(arguments.requests)
    return
  before, rows = tables.read(arguments.out), []
  with tables.progress() as progress:
    bar = progress.add_task("jobs", total=len(arguments.processes))
    for num_processes in arguments.processes:
      progress.update(bar, description=f"{num_processes} processes")
      rows.extend(job(num_processes, arguments.requests))
      progress.advance(bar)
      tables.write(arguments.out, rows=tables.merged(before, rows, ("processes",)))
  console = tables.console()
  console.print(tables.table(rows, COLUMNS, "one plan in every process"))
  plans, requested, alike = (sum(row[name] for row in rows) for name in ("plans", "requests", "num_alike"))
  console.print(f"{plans} plans, {alike} of {requested} requests with one digest in all processes of their job")
  sys.exit(alike != requested)


if __name__ == "__main__":
  main()
