"""Finds and reads what XLA dumps of a compiled program (``--xla_dump_to``), or the program itself.

Read are, each also gzipped:

- an ``HloProto`` (``*.after_optimizations.hlo.pb``, with ``--xla_dump_hlo_as_proto``): module and buffer assignment;
- HLO text (``*.after_optimizations.txt``), with the ``*-buffer-assignment.txt`` beside it if there is one;
- a ``*-buffer-assignment.txt`` alone: sizes and offsets, but no source lines and no live ranges;
- a serialized ``HloModuleProto``;
- a directory of such files: several modules, of which one is taken.
"""

import dataclasses
import gzip
import os
import pathlib
import re

from coopjax import _core, compat
from coopjax.budget import format_bytes
from coopjax.errors import DumpError
from coopjax.xla.buffer_assignment import Allocation, BufferAssignment, LogicalBuffer, module_of_hlo_proto

_FINAL = re.compile(
  r"^(?P<name>(?:module_\d+\.)?[^.]+)\.(?:.*[._])?after_optimizations"
  r"(?P<what>\.hlo\.pb|\.txt|-buffer-assignment\.txt)(?:\.gz)?$"
)
_PREFERENCE = (".hlo.pb", ".txt", "-buffer-assignment.txt")
_EXPECTED = (
  "expected a directory that --xla_dump_to wrote, or a *after_optimizations.hlo.pb, "
  "*after_optimizations.txt or *-buffer-assignment.txt in it"
)
_ENTRY = re.compile(r"^ENTRY ", re.MULTILINE)
_ALLOCATION = re.compile(r"allocation (\d+): size (\d+)(.*):$")
_VALUE = re.compile(r" value: <(\d+) (.+?)(?:\{([\d,]*)\})?(?: \(phi\))? @(\d+)> \(size=(\d+),offset=(\d+)\): (.*)$")
_COLOR, _PARAMETER = re.compile(r"\bcolor (\d+)"), re.compile(r"\bparameter (\d+)")


@dataclasses.dataclass(frozen=True)
class Dump:
  """One compiled program.

  Attributes:
    name: of the module, as the file's name gives it.
    path: of the file.
    module: parsed, with its schedule, or None.
    assignment: XLA's buffer assignment, or None. With neither schedule nor assignment there is no dump.
    types: of the logical buffers by id, where `assignment` was read from text.
  """

  name: str
  path: str
  module: _core.HloModule | None
  assignment: BufferAssignment | None
  types: dict[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DumpFile:
  """A file that holds a final module.

  Attributes:
    name: of the module: "module_0016.jit_step".
    path: of the file.
    num_bytes: its size on disk.
  """

  name: str
  path: pathlib.Path
  num_bytes: int


def list_modules(directory: str | pathlib.Path) -> list[DumpFile]:
  """The final modules in a dump directory, the largest file first; of several forms of one, the one that says most."""
  found: dict[str, tuple[int, DumpFile]] = {}
  for path in pathlib.Path(directory).iterdir():
    match = _FINAL.match(path.name)
    if match and path.is_file():
      rank = _PREFERENCE.index(match["what"])
      file = DumpFile(match["name"], path, path.stat().st_size)
      found[file.name] = min(found.get(file.name, (rank, file)), (rank, file), key=lambda entry: entry[0])
  return sorted((file for _, file in found.values()), key=lambda file: (-file.num_bytes, file.name))


def read(path: str | os.PathLike[str], module: str | None = None) -> Dump:
  """Reads a dump.

  Args:
    path: a file or a directory.
    module: of a directory, the module whose name contains this; the largest by default.

  Raises:
    coopjax.DumpError: nothing there, or nothing of the kind that is read; the message says what was expected and found.
  """
  path = pathlib.Path(path)
  if not path.exists():
    raise DumpError(f"{path} does not exist: {_EXPECTED}")
  if not path.is_dir():
    if module is not None:
      raise DumpError(f"module={module!r} chooses from a directory, and {path} is a file")
    return _read_file(path)
  files = list_modules(path)
  if not files:
    inside = sorted(entry.name for entry in path.iterdir())
    found = f"{len(inside)} other files, {', '.join(inside[:3])} for one" if inside else "nothing"
    raise DumpError(f"{path} holds no final module (found {found}): {_EXPECTED}")
  chosen = [file for file in files if module is None or module in file.name]
  if not chosen:
    raise DumpError(
      f"no module in {path} is called {module!r}: there are {', '.join(file.name for file in files[:10])}"
    )
  return _read_file(chosen[0].path)


def _read_file(path: pathlib.Path) -> Dump:
  data = _content(path)
  match = _FINAL.match(path.name)
  name = match["name"] if match else path.name.removesuffix(".gz").partition(".")[0]
  if not data:
    raise DumpError(f"{path} is empty: {_EXPECTED}")
  head = data[:4096].lstrip()
  if head.startswith(b"BufferAssignment:"):
    return Dump(name, str(path), None, *_assignment_of_text(data.decode(errors="replace"), path))
  if head.startswith(b"HloModule"):
    return Dump(name, str(path), _module_of_text(data.decode(errors="replace"), path), _assignment_beside(path))
  return _read_proto(data, name, path)


def _content(path: pathlib.Path) -> bytes:
  data = path.read_bytes()
  if data[:2] != b"\x1f\x8b":
    return data
  try:
    return gzip.decompress(data)
  except (OSError, EOFError) as error:
    raise DumpError(f"{path} is a damaged gzip file ({error}): {_EXPECTED}") from error


def _read_proto(data: bytes, name: str, path: pathlib.Path) -> Dump:
  """An ``HloProto``, or a bare ``HloModuleProto``."""
  faults = []
  for is_hlo_proto in (True, False):
    try:
      module = _core.HloModule(module_of_hlo_proto(data) if is_hlo_proto else data)
      assignment = BufferAssignment.from_hlo_proto(data) if is_hlo_proto else None
    except ValueError as error:
      faults.append(str(error))
    else:
      has_assignment = assignment is not None and assignment.allocations
      return Dump(name, str(path), module, assignment if has_assignment else None)
  raise DumpError(
    f"{path} ({format_bytes(len(data))}) is neither an HloProto nor an HloModuleProto with a schedule: "
    f"{faults[0]}; {_EXPECTED}"
  )


def _module_of_text(text: str, path: pathlib.Path) -> _core.HloModule:
  try:
    if _ENTRY.search(text) is None:  # jaxlib's parser takes the last computation that is there for it
      raise ValueError("no ENTRY computation")
    return _core.HloModule(compat.hlo_proto_of_text(text))
  except (ValueError, RuntimeError) as error:  # jaxlib's parser raises RuntimeErrors
    reason = str(error).strip().splitlines()[0][:200]
    raise DumpError(
      f"{path} is HLO text that can't be read to its end, or has no schedule ({reason}): {_EXPECTED}"
    ) from error


def _assignment_beside(path: pathlib.Path) -> BufferAssignment | None:
  """Of the ``*-buffer-assignment.txt`` that XLA writes next to the text of a module."""
  stem = path.name.removesuffix(".gz").removesuffix(".txt")
  for name in (f"{stem}-buffer-assignment.txt", f"{stem}-buffer-assignment.txt.gz"):
    if (beside := path.with_name(name)).exists():
      return _assignment_of_text(_content(beside).decode(errors="replace"), beside)[0]
  return None


def _assignment_of_text(text: str, path: pathlib.Path) -> tuple[BufferAssignment, dict[int, str]]:
  """The assignment that XLA printed, and the types of its logical buffers by id."""
  buffers: dict[int, LogicalBuffer] = {}
  allocations: list[tuple[tuple[int, int, str], list[tuple[int, int, int]]]] = []
  types: dict[int, str] = {}
  for line in text.splitlines():
    if match := _ALLOCATION.match(line):
      allocations.append(((int(match[1]), int(match[2]), match[3]), []))
    elif allocations and (match := _VALUE.match(line)):
      buffer_id, color, num_bytes, offset = (int(match[i]) for i in (1, 4, 5, 6))
      index = tuple(int(i) for i in match[3].split(",") if i) if match[3] else ()
      buffers[buffer_id] = LogicalBuffer(buffer_id, num_bytes, 0, match[2], index, color)
      types[buffer_id] = match[7]
      allocations[-1][1].append((buffer_id, offset, num_bytes))
  if not allocations:
    raise DumpError(f"{path} names no allocations after its first line: {_EXPECTED}")
  rows = [
    _allocation(*head, assigned, all(types[buffer_id].startswith("(") for buffer_id, _, _ in assigned))
    for head, assigned in allocations
  ]
  return BufferAssignment(tuple(buffers.values()), tuple(rows)), types


def _allocation(index: int, num_bytes: int, attributes: str, assigned: list, is_tuple: bool) -> Allocation:
  parameter, color = _PARAMETER.search(attributes), _COLOR.search(attributes)
  return Allocation(
    index=index,
    bytes=num_bytes,
    is_thread_local="thread-local" in attributes,
    is_tuple=is_tuple,
    is_entry_parameter=parameter is not None,
    is_constant=", constant" in attributes,
    maybe_live_out="maybe-live-out" in attributes,
    parameter_number=int(parameter[1]) if parameter else -1,
    color=int(color[1]) if color else 0,
    assigned=tuple(assigned),
  )
