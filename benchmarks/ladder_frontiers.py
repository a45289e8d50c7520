"""Hand and budget as frontiers: from the results of `hand_ladder`, at equal bytes and at equal FLOPs.

At equal bytes: what a plan at a rung's bytes repeats, over what the rung repeats. At equal FLOPs: the fewest bytes of
the plans (one for each rung's bytes) that repeat no more than the rung does, over the rung's bytes; a rung that repeats
less than all plans has none there. Medians and worst of all rungs. The picture has both frontiers of each program: down
and left is better.

  python benchmarks/ladder_frontiers.py                     # on the CPU, one device, engine auto
  python benchmarks/ladder_frontiers.py --engine policy --mesh fsdp
"""

import argparse
import pathlib
import statistics

import matplotlib.pyplot as plt
import tables

PICTURE = tables.RESULTS / "hand_ladder.png"
COLUMNS = {
  "program": "{program}",
  "rungs": "{num_rungs}",
  "at equal bytes:\nFLOPs, median": "{flops:.2f}",
  "worst": "{worst_flops:.2f}",
  "at equal FLOPs:\nbytes, median": "{bytes:.2f}",
  "worst ": "{worst_bytes:.2f}",
  "not reached": "{num_beyond}",
}


def of_program(rows: list[tables.Row]) -> tables.Row:
  """The row of one program, from its rungs."""
  ratios = [row["ratio"] for row in rows]
  at_its_flops = [(row, [ours["mib"] for ours in rows if ours["gflop"] <= row["hand_gflop"]]) for row in rows]
  by_bytes = [min(found) / row["hand_mib"] for row, found in at_its_flops if found]
  return {
    "program": rows[0]["program"],
    "num_rungs": len(rows),
    "flops": statistics.median(ratios),
    "worst_flops": max(ratios),
    "bytes": statistics.median(by_bytes),
    "worst_bytes": max(by_bytes),
    "num_beyond": len(rows) - len(by_bytes),
  }


def chosen(engine: str, target: str = "cpu", mesh: str = "one") -> list[list[tables.Row]]:
  """The rows of each program that was measured so, at its first size."""
  found: dict[str, list[tables.Row]] = {}
  for row in tables.read(tables.RESULTS / "hand_ladder.json"):
    if (row["engine"], row["target"], row["mesh"]) == (engine, target, mesh) and row["ratio"] is not None:
      of_all = found.setdefault(row["program"], [])
      if not of_all or of_all[0]["size"] == row["size"]:
        of_all.append(row)
  return list(found.values())


def draw(programs: list[list[tables.Row]], path: pathlib.Path) -> None:
  """Both frontiers of each program; bytes over those without a checkpoint, FLOPs over those of the gradient."""
  figure, all_axes = plt.subplots(1, len(programs), figsize=(3.2 * len(programs), 3.2), sharey=True, squeeze=False)
  for axes, rows in zip(all_axes[0], programs, strict=True):
    for title, gflop, mib, style in (("by hand", "hand_gflop", "hand_mib", "o"), ("coopjax", "gflop", "mib", "s-")):
      points = sorted(
        (100 * row[mib] / row["plain_mib"], 100 * row[gflop] / row["forward_and_backward_gflop"]) for row in rows
      )
      axes.plot(*zip(*points, strict=True), style, label=title, markersize=4, linewidth=1)
    axes.set(title=rows[0]["program"].replace("_", " and "), xlabel="temporaries, % of those without")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
  all_axes[0][0].set_ylabel("FLOPs repeated, % of the gradient's")
  all_axes[0][0].legend()
  figure.tight_layout()
  figure.savefig(path, dpi=110)
  plt.close(figure)


def main() -> None:
  first, details = (__doc__ or "").split("\n\n", 1)
  parser = argparse.ArgumentParser(description=first, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--engine", default="auto")
  parser.add_argument("--target", default="cpu")
  parser.add_argument("--mesh", default="one")
  parser.add_argument("--picture", type=pathlib.Path, default=PICTURE)
  arguments = parser.parse_args()
  programs = chosen(arguments.engine, arguments.target, arguments.mesh)
  if not programs:
    parser.error("hand_ladder.json has no such rows")
  tables.console().print(tables.table([of_program(rows) for rows in programs], COLUMNS))
  draw(programs, arguments.picture)
  print(f"wrote {arguments.picture}")


if __name__ == "__main__":
  main()
