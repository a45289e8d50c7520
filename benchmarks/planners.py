"""Planners beside each other and beside their peers, on programs that are traced from real models without weights.

  fastsa    FastSA's models at 50% and 25% of the un-rematerialized peak, unit costs
  exact     the optimum of an order beside the heuristics: VGG-11 and ResNet-18 at 90 to 50%
  coop      Coop, its ablations, DTR and DTE on Coop's models
  coop_large  window against loop on graphs of 10,000 to 50,000 ops
  model     MODeL's orders and addresses at batch 1 and 32
  packing   offsets for fixed schedules, beside omnimalloc (PyPI)
  scale     planning time and quality from 10k to 1M ops, six shapes of graph

Every plan is judged by the validator. A plain greedy stands in every table. Writes
benchmarks/results/planners/TABLE.json, where cases stay that are not measured again, and sums up all of it.

  python benchmarks/planners.py                                  # everything: hours on two cores
  python benchmarks/planners.py fastsa --models gpt2 resnet18
"""

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import planner_tables
import scale
import tables
import zoo
from planner_tables import Settings, mean
from tables import Row

from coopjax.planners.effort import DEFAULT_STEPS, EFFORTS

RESULTS = tables.RESULTS / "planners"
CASE = ("model", "batch", "shape", "share")  # of a row, as far as its table has them
SIZED = ("coop_large", "scale")  # tables in which ops belong to a case, too
SCALES = (10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000)  # each and its half


@dataclasses.dataclass(frozen=True)
class Table:
  """A table: where its rows come from, what is shown, and what they come to."""

  rows: Callable[[Settings], Iterator[Row]]
  columns: dict[str, str]
  summarize: Callable[[Sequence[Row]], list[str]]


def _grouped(rows: Sequence[Row], *fields: str) -> Iterator[tuple[tuple, list[Row]]]:
  """Rows that agree in `fields`, in the order these first occur."""
  groups: dict[tuple, list[Row]] = {}
  for row in rows:
    groups.setdefault(tuple(row[field] for field in fields), []).append(row)
  yield from groups.items()


def _sum_up_fastsa(rows: Sequence[Row]) -> list[str]:
  return [
    f"{planner} at {share:.0%}: {sum(row['holds'] for row in group)} of {len(group)} hold the budget, mean memory cut "
    f"{mean(group, 'memory_cut'):.1%} (no plan: more than {mean(group, 'most_cut'):.1%}), mean extra cost "
    f"{mean(group, 'overhead'):.2%}, most {max(row['overhead'] for row in group):.2%}, "
    f"mean {mean(group, 'seconds'):.1f} s"
    for (share, planner), group in _grouped(rows, "share", "planner")
  ]


def _sum_up_exact(rows: Sequence[Row]) -> list[str]:
  proved = {(row["model"], row["share"]) for row in rows if row.get("status") == "optimal"}
  compared = [row for row in rows if (row["model"], row["share"]) in proved and row.get("points_above") is not None]
  return [f"where the optimum is proved ({len(proved)} cases)"] + [
    f"  {planner}: holds {len(group)}, at most {max(row['points_above'] for row in group):.2f} points above"
    for (planner,), group in _grouped(compared, "planner")
  ]


def _sum_up_coop(rows: Sequence[Row]) -> list[str]:
  """Over the cases in which Coop and all of its peers hold the budget."""
  lines = []
  cases = [{row["planner"]: row for row in group} for _, group in _grouped(rows, "model", "share")]
  for ours, theirs in (
    ("coop", "dtr"),
    ("coop", "dte"),
    ("coop, every cost anew", "dtr"),
    ("coop", "dtr, costs reused"),
  ):
    pairs = [
      (case[ours], case[theirs])
      for case in cases
      if case[ours]["holds"] and case[theirs]["holds"] and case[theirs]["evictions"]
    ]
    if pairs:
      mine, others = zip(*pairs, strict=True)
      ratios = sorted(other["candidates"] / max(own["candidates"], 1) for own, other in pairs)
      less = sum(own["fragmentation"] < other["fragmentation"] for own, other in pairs)
      lines.append(
        f"{theirs} over {ours} in {len(pairs)} cases: candidate evaluations {ratios[0]:.2f}x at least, "
        f"{ratios[len(ratios) // 2]:.2f}x in the median; fragmentation less in {less}, on average "
        f"{mean(mine, 'fragmentation'):.2%} against {mean(others, 'fragmentation'):.2%}; overhead "
        f"{mean(mine, 'overhead'):.1%} against {mean(others, 'overhead'):.1%}"
      )
  held = {planner: sum(row["holds"] for row in group) for (planner,), group in _grouped(rows, "planner")}
  return [*lines, "budgets held: " + ", ".join(f"{planner.strip()} {count}" for planner, count in held.items())]


def _sum_up_coop_large(rows: Sequence[Row]) -> list[str]:
  """Over the cases in which both hold the budget."""
  lines = []
  for ours, theirs in (("coop", "dtr, costs reused"), ("coop, every cost anew", "dtr")):
    cases = [{row["planner"]: row for row in group} for _, group in _grouped(rows, "shape", "ops", "share")]
    pairs = [(case[ours], case[theirs]) for case in cases if case[ours]["holds"] and case[theirs]["holds"]]
    for field in ("candidates", "scanned", "searches") if pairs else ():
      ratios = sorted(loop[field] / max(window[field], 1) for window, loop in pairs)
      lines.append(
        f"{theirs} over {ours}, {field}: {ratios[0]:.2f} to {ratios[-1]:.2f}x, median "
        f"{ratios[len(ratios) // 2]:.2f}x, in {len(pairs)} cases"
      )
  return lines


def _sum_up_model(rows: Sequence[Row]) -> list[str]:
  tried = [row for row in rows if row.get("ilp_saves") is not None]
  lines = []
  if tried:
    lines.append(
      f"the ILP alone: {sum(row['ilp_solved'] for row in tried)} of {len(rows)} solved within its gap, "
      f"{len(rows) - len(tried)} too large; saves {mean(tried, 'ilp_saves'):.1%}, where {mean(tried, 'saves'):.1%} are "
      f"saved with heuristics before it, median {sorted(row['ilp_seconds'] for row in tried)[len(tried) // 2]:.1f} s"
    )
  return lines + [
    f"batch {batch}: order alone saves {mean(group, 'saves'):.1%} on average "
    f"(greedy {mean(group, 'greedy_saves'):.1%}), "
    f"median {sorted(row['seconds'] for row in group)[len(group) // 2]:.1f} s, "
    f"{sum(row['is_proven'] for row in group)} of {len(group)} proved, "
    f"fragmentation at most {max(row['fragmentation'] for row in group):.2%}"
    for (batch,), group in _grouped(rows, "batch")
  ]


def _sum_up_packing(rows: Sequence[Row]) -> list[str]:
  return [
    f"{label}: fragmentation 0 in {sum(row[f'{label}_fragmentation'] == 0 for row in rows)} of {len(rows)}, mean "
    f"{mean(rows, f'{label}_fragmentation'):.3%}, {mean(rows, f'{label}_s'):.2f} s"
    for label in ("greedy", "xla", "search", "omnimalloc")
  ]


def _sum_up_scale(rows: Sequence[Row]) -> list[str]:
  lines = []
  for (planner, ops), group in _grouped(rows, "planner", "ops"):
    halves = {(row["shape"], row["share"]): row for row in rows if row["planner"] == planner and 2 * row["ops"] == ops}
    growth = [
      row["overhead"] / half["overhead"] - 1
      for row in group
      if row["holds"] and (half := halves.get((row["shape"], row["share"]))) and half["holds"] and half["overhead"] > 0
    ]
    lines.append(
      f"{planner}, {ops:,} ops: {sum(row['holds'] == 1 for row in group)} of {len(group)} hold the budget, at most "
      f"{max(row['seconds'] for row in group):.1f} s"
      + (f", cost at most {max(growth):+.1%} over that at half the ops" if growth else "")
    )
  return lines


_IN_ARENA = {
  "planner": "{planner}",
  "holds": "{holds}",
  "extra cost": "{overhead:.1%}",
  "evictions": "{evictions:,}",
  "searches": "{searches:,}",
  "candidates": "{candidates:,}",
}
TABLES = {
  "fastsa": Table(
    planner_tables.fastsa,
    {
      "model": "{model}",
      "ops": "{ops:,}",
      "budget": "{share:.0%}",
      "planner": "{planner}",
      "holds": "{holds}",
      "memory cut": "{memory_cut:.1%}",
      "at most": "{most_cut:.1%}",
      "forced by": "{forced_by:s}",
      "extra cost": "{overhead:.2%}",
      "at least": "{least_overhead:.2%}",
      "s": "{seconds:.1f}",
    },
    _sum_up_fastsa,
  ),
  "exact": Table(
    planner_tables.exact,
    {
      "model": "{model}",
      "ops": "{ops:,}",
      "budget": "{share:.0%}",
      "planner": "{planner}",
      "holds": "{holds}",
      "status": "{status:s}",
      "memory": "{peak_share:.1%}",
      "extra cost": "{overhead:.2%}",
      "order's bound": "{order_bound:.2%}",
      "points above": "{points_above:.2f}",
      "s": "{seconds:.1f}",
    },
    _sum_up_exact,
  ),
  "coop": Table(
    planner_tables.coop,
    {
      "model": "{model}",
      "budget": "{share:.0%}",
      **_IN_ARENA,
      "fragmentation": "{fragmentation:.2%}",
      "of heap": "{heap_fragmentation:.2%}",
      "s": "{seconds:.2f}",
    },
    _sum_up_coop,
  ),
  "coop_large": Table(
    planner_tables.coop_large,
    {
      "shape": "{shape}",
      "ops": "{ops:,}",
      "budget": "{share:.0%}",
      **_IN_ARENA,
      "scanned": "{scanned:,}",
      "fragmentation": "{fragmentation:.2%}",
      "s": "{seconds:.2f}",
    },
    _sum_up_coop_large,
  ),
  "model": Table(
    planner_tables.model,
    {
      "model": "{model}",
      "batch": "{batch}",
      "ops": "{ops:,}",
      "saves": "{saves:.1%}",
      "greedy": "{greedy_saves:.1%}",
      "gap": "{gap:.2%}",
      "proved": "{is_proven}",
      "fragmentation": "{fragmentation:.2%}",
      "greedy's": "{greedy_fragmentation:.2%}",
      "s": "{seconds:.1f}",
      "ILP's ops": "{ilp_ops:,.0f}",
      "ILP saves": "{ilp_saves:.1%}",
      "ILP's gap": "{ilp_gap:.2%}",
      "ILP s": "{ilp_seconds:.1f}",
    },
    _sum_up_model,
  ),
  "packing": Table(
    planner_tables.packing,
    {
      "model": "{model}",
      "budget": "{share:.0%}",
      "buffers": "{buffers:,}",
      "greedy": "{greedy_fragmentation:.2%}",
      "XLA's rule": "{xla_fragmentation:.2%}",
      "search": "{search_fragmentation:.2%}",
      "omnimalloc": "{omnimalloc_fragmentation:.2%}",
      "greedy s": "{greedy_s:.2f}",
      "search s": "{search_s:.2f}",
      "omnimalloc s": "{omnimalloc_s:.2f}",
    },
    _sum_up_packing,
  ),
  "scale": Table(
    lambda settings: scale.rows(settings.sizes, settings.max_steps, settings.announce),
    {
      "shape": "{shape}",
      "ops": "{ops:,}",
      "budget": "{share:.0%}",
      "planner": "{planner}",
      "holds": "{holds:.0f}",
      "extra cost": "{overhead:.2%}",
      "at least": "{least_overhead:.2%}",
      "steps": "{steps:,.0f}",
      "s": "{seconds:.2f}",
      "us/op": "{us_per_op:.1f}",
      "GiB": "{rss_gib:.2f}",
    },
    _sum_up_scale,
  ),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("tables", nargs="*", choices=[*TABLES, []], metavar="TABLE", help=f"of {', '.join(TABLES)}")
  parser.add_argument("--models", nargs="+", choices=zoo.MODELS, metavar="MODEL", help="of the zoo; by default all")
  parser.add_argument("--steps", type=int, default=6 * DEFAULT_STEPS, help="of one plan; of about 10 ns")
  parser.add_argument("--effort", choices=EFFORTS, help="in place of --steps, as many as requests get")
  parser.add_argument("--exact-steps", type=int, default=90 * DEFAULT_STEPS, help="of one exact plan")
  parser.add_argument(
    "--sizes", nargs="+", type=int, default=SCALES, metavar="OPS", help="of programs in `scale` and `coop_large`"
  )
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder for the JSON")
  arguments = parser.parse_args()

  console = tables.console()
  with tables.progress() as progress:
    for name in arguments.tables or TABLES:
      bar = progress.add_task(name, total=None)
      settings = Settings(
        tuple(arguments.models) if arguments.models else None,
        arguments.steps,
        arguments.exact_steps,
        announce=lambda text: progress.update(bar, description=f"{name}: {text}"),
        effort=arguments.effort,
        sizes=tuple(arguments.sizes),
      )
      path, rows, measured = arguments.out / f"{name}.json", [], []
      before = tables.read(path)
      for row in TABLES[name].rows(settings):
        measured.append(row)
        rows = tables.merged(before, measured, CASE + ("ops",) * (name in SIZED))
        tables.write(path, rows=rows)  # what was measured stays, whatever comes
      progress.remove_task(bar)
      console.print(tables.table(rows, TABLES[name].columns, title=name))
      console.print("\n".join(TABLES[name].summarize(rows)), highlight=False)
      console.print(f"written to {path}\n")


if __name__ == "__main__":
  main()
