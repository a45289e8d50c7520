"""A memory report as one HTML file that works offline: what lies where and when, and which line made it."""

import dataclasses
import html
import importlib.resources
import json
import math
from typing import Any

from coopjax.memory_profile import MemoryProfile
from coopjax.planning.budget_frontier import Frontier
from coopjax.planning.remat_plan import RematPlan

_TEXTS = ("name", "type", "kind", "memory", "op", "source", "module_path", "layer", "argument")
_NUMBERS = ("num_bytes", "padding_bytes", "allocation", "offset", "memory_space", "start", "end", "cost_s", "cost_rank")
_MAX_DECISIONS = 500


def to_html(
  profile: MemoryProfile,
  after: MemoryProfile | None = None,
  *,
  plan: RematPlan | None = None,
  frontier: Frontier | None = None,
  budget_bytes: int | None = None,
) -> str:
  """The report of one program, or of one before and after a change.

  Args:
    profile: from :func:`coopjax.inspect`, with its buffers.
    after: a second profile, shown by a toggle.
    plan: whose decisions are listed.
    frontier: drawn and listed.
    budget_bytes: of temporaries, drawn as a line; the plan's by default.

  Returns:
    HTML without any reference to another file. Size: about 60 bytes a buffer.
  """
  shown = {"": profile} if after is None else {"before": profile, "after": after}
  data: dict[str, Any] = {
    "programs": [_packed(each, label) for label, each in shown.items()],
    "budget_bytes": plan.budget_bytes if budget_bytes is None and plan is not None else budget_bytes,
  }
  if plan is not None:
    data["plan"] = {
      "headline": plan.headline(),
      "decisions": [
        {**dataclasses.asdict(decision), "layer": decision.layer} for decision in plan.decisions[:_MAX_DECISIONS]
      ],
    }
  if frontier is not None:
    data["frontier"] = frontier.to_dict()
  part = lambda name: importlib.resources.files("coopjax.report").joinpath(name).read_text(encoding="utf-8")
  page = part("report.html").replace(
    "__SCRIPT__", part("report_plan.js") + part("report_groups.js") + part("report.js")
  )
  text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
  return page.replace("__TITLE__", html.escape(profile.name)).replace("__DATA__", text)


def _packed(profile: MemoryProfile, label: str) -> dict[str, Any]:
  """A profile as columns; texts, many of them equal, as numbers into a table."""
  number_of: dict[str, int] = {}
  columns: dict[str, list[Any]] = {
    name: [number_of.setdefault(getattr(buffer, name), len(number_of)) for buffer in profile.buffers] for name in _TEXTS
  }
  stacks: dict[tuple[str, ...], int] = {}
  columns["stack"] = [stacks.setdefault(buffer.frames, len(stacks)) for buffer in profile.buffers]
  for name in _NUMBERS:
    columns[name] = [getattr(buffer, name) for buffer in profile.buffers]
  columns["cost_s"] = [None if math.isnan(cost) else float(f"{cost:.4g}") for cost in columns["cost_s"]]
  totals = {
    name: getattr(profile, name)
    for name in (
      "name",
      "temp_bytes",
      "argument_bytes",
      "output_bytes",
      "alias_bytes",
      "total_bytes",
      "peak_live_bytes",
      "fragmentation",
      "peak_step",
      "is_predicted",
    )
  }
  return {
    **totals,
    "label": label,
    "live_bytes": profile.live_bytes,
    "columns": columns,
    "texts": list(number_of),
    "stacks": list(stacks),
  }
