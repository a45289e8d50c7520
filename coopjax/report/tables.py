"""Memory profiles as rows of text: what the command line, notebooks and explanations show."""

from collections.abc import Callable, Sequence

from coopjax.budget import format_bytes
from coopjax.errors import printable
from coopjax.memory_profile import Buffer, MemoryProfile

UNITS = {"auto": 0, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SORTS: dict[str, Callable[[Buffer], tuple]] = {
  "size": lambda buffer: (-buffer.num_bytes, buffer.start),
  "start": lambda buffer: (buffer.start, -buffer.num_bytes),
  "live": lambda buffer: (buffer.start - buffer.end, -buffer.num_bytes),
  "cost": lambda buffer: (buffer.cost_rank < 0, buffer.cost_rank, -buffer.num_bytes),
}
BUFFER_COLUMNS = ("bytes", "share", "kind", "type", "steps", "recompute", "rank", "source", "scope", "buffer")
DIFF_COLUMNS = ("before", "after", "change", "of")
GROUP_COLUMNS = ("bytes", "share", "buffers", "largest", "of")
ARGUMENT_COLUMNS = ("bytes", "share", "type", "argument")
SPARE_COLUMNS = ("buffer", "rank", "scope", "recompute", "steps", "buffers", "kind", "largest")  # on a narrow terminal


def in_units(num_bytes: int, units: str = "auto") -> str:
  """Bytes for people: in a unit of ``UNITS``, "auto" the one that fits each number."""
  if units not in UNITS:
    raise ValueError(f"units={units!r}: one of {', '.join(UNITS)}")
  if units in ("auto", "B"):
    return format_bytes(num_bytes) if units == "auto" else f"{num_bytes:,} B"
  return f"{num_bytes / UNITS[units]:,.2f} {units}"


def headline(profile: MemoryProfile, units: str = "auto") -> list[str]:
  """The totals, in two or three lines."""
  size = lambda num_bytes: in_units(num_bytes, units)
  name, modelled = printable(profile.name) or "program", " (modelled)" if profile.is_predicted else ""
  lines = [
    f"{name}: {size(profile.total_bytes)} in total{modelled}",
    f"  arguments {size(profile.argument_bytes)} + outputs {size(profile.output_bytes)} + temporaries "
    f"{size(profile.temp_bytes)} - aliased {size(profile.alias_bytes)}"
    + (f"; {size(profile.host_bytes)} in the host's memory" if profile.host_bytes else ""),
  ]
  if profile.peak_live_bytes:
    lines.append(
      f"  at the peak, step {profile.peak_step} of {len(profile.live_bytes)}, {size(profile.peak_live_bytes)} "
      f"of the temporaries are live; fragmentation {profile.fragmentation:.1%}"
    )
  return lines


def buffer_rows(profile: MemoryProfile, sort: str = "size", units: str = "auto") -> list[tuple[str, ...]]:
  """The buffers at the peak, a row each under ``BUFFER_COLUMNS``.

  Args:
    profile: the profile.
    sort: one of ``SORTS``: by size, by start, by length of the live range, by cost per byte to bring back.
    units: one of ``UNITS``.
  """
  if sort not in SORTS:
    raise ValueError(f"sort={sort!r}: one of {', '.join(SORTS)}")
  buffers = sorted(profile.at_peak(), key=SORTS[sort])
  return [
    (
      in_units(buffer.num_bytes, units),
      _share(buffer.num_bytes, _at_peak(profile)),
      buffer.kind,
      buffer.type,
      f"{buffer.start}..{buffer.end - 1}" if buffer.start >= 0 else "",
      _duration(buffer.cost_s),
      str(buffer.cost_rank) if buffer.cost_rank >= 0 else "never",
      buffer.source,
      buffer.module_path,
      buffer.name,
    )
    for buffer in buffers
  ]


def argument_rows(profile: MemoryProfile, units: str = "auto") -> list[tuple[str, ...]]:
  """The arguments, a row each under ``ARGUMENT_COLUMNS``."""
  return [
    (
      in_units(buffer.num_bytes, units),
      _share(buffer.num_bytes, profile.argument_bytes),
      buffer.type,
      buffer.argument,
    )
    for buffer in profile.arguments
  ]


def group_rows(
  profile: MemoryProfile, buffers: Sequence[Buffer], by: str, units: str = "auto"
) -> list[tuple[str, ...]]:
  """What buffers of a profile come to, a row a group under ``GROUP_COLUMNS``."""
  whole = profile.argument_bytes if buffers and buffers[0].argument else _at_peak(profile)
  return [
    (
      in_units(group.num_bytes, units),
      _share(group.num_bytes, whole),
      str(group.num_buffers),
      f"{in_units(group.largest.num_bytes, units)} {group.largest.type}",
      group.key,
    )
    for group in profile.grouped(buffers, by)
  ]


def diff_rows(before: MemoryProfile, after: MemoryProfile, by: str, units: str = "auto") -> list[tuple[str, ...]]:
  """The totals of two profiles and what differs at their peaks, the largest change first, under ``DIFF_COLUMNS``."""
  size = lambda num_bytes: in_units(num_bytes, units)
  row = lambda old, new, of: (size(old), size(new), ("+" if new > old else "") + size(new - old), of)
  totals = [
    row(getattr(before, f"{name}_bytes"), getattr(after, f"{name}_bytes"), name)
    for name in ("total", "argument", "output", "alias", "temp", "peak_live")
  ]
  at_peak = lambda profile: {group.key: group.num_bytes for group in profile.grouped(profile.at_peak(), by)}
  old, new = at_peak(before), at_peak(after)
  changed = [key for key in {**old, **new} if old.get(key, 0) != new.get(key, 0)]
  changed.sort(key=lambda key: (-abs(new.get(key, 0) - old.get(key, 0)), key))
  return totals + [row(old.get(key, 0), new.get(key, 0), key) for key in changed]


def _at_peak(profile: MemoryProfile) -> int:
  return profile.peak_live_bytes or profile.temp_bytes


def _share(num_bytes: int, whole: int) -> str:
  return f"{num_bytes / whole:.1%}" if whole else ""


def _duration(seconds: float) -> str:
  if seconds != seconds:  # nan: it can't be made again
    return ""
  return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
