"""Fields of a serialized ``HloModuleProto``: enough to put one module's plan into its twin in another process.

Modules of one program differ between processes in what does not matter: XLA counts its modules, and names the frames
of the Python stack that each instruction was traced under, which differ where processes were started differently.
"""

from collections.abc import Callable, Iterator

from coopjax.errors import InvalidProgramError

_COMPUTATIONS, _SCHEDULE, _STACK_FRAMES = 3, 7, 17  # of a module; instructions refer to frames by their numbers
_INSTRUCTIONS = 2  # of a computation
_LABELS = (7, 68)  # of an instruction: metadata, frontend attributes (marks, which name the version of coopjax)
_PROGRAM_SHAPE, _RESULT = 4, 2  # of a module, of that
_ELEMENTS, _LAYOUT, _MEMORY_SPACE, _HOST = 4, 5, 8, b"\x05"  # of a shape, of its layout, and what that says of the host
_LENGTH_DELIMITED, _FIXED = 2, {1: 8, 5: 4}  # wire types of protocol buffers


def with_plan_of(module_bytes: bytes, planned: bytes) -> bytes:
  """A module with the computations and the schedule of another one, which was planned in another process.

  Raises:
    coopjax.errors.InvalidProgramError: one of them is no serialized message.
  """
  moved = (_COMPUTATIONS, _SCHEDULE, _STACK_FRAMES)
  own = (field for number, field, _ in _fields(module_bytes) if number not in moved)
  return b"".join([*own, *(field for number, field, _ in _fields(planned) if number in moved)])


def without_labels(module_bytes: bytes) -> bytes:
  """A module without what processes may have labelled differently: to compare modules of two of them.

  Raises:
    coopjax.errors.InvalidProgramError: it is no serialized message.
  """
  bare = lambda instruction: b"".join(field for number, field, _ in _fields(instruction) if number not in _LABELS)
  module = b"".join(field for number, field, _ in _fields(module_bytes) if number != _STACK_FRAMES)
  return _changed(module, _COMPUTATIONS, lambda computation: _changed(computation, _INSTRUCTIONS, bare))


def has_results_on_host(module_bytes: bytes) -> bool:
  """Whether a result of the program lies in the host's memory, as its caller sees it.

  Raises:
    coopjax.errors.InvalidProgramError: it is no serialized message.
  """
  shapes = (_contents(shape, _RESULT) for shape in _contents(module_bytes, _PROGRAM_SHAPE))
  return any(_is_on_host(result) for results in shapes for result in results)


def _is_on_host(shape: bytes) -> bool:
  spaces = (_contents(layout, _MEMORY_SPACE) for layout in _contents(shape, _LAYOUT))
  return any(_HOST in space for space in spaces) or any(map(_is_on_host, _contents(shape, _ELEMENTS)))


def _contents(message: bytes, wanted: int) -> list[bytes]:
  return [content for number, _, content in _fields(message) if number == wanted]


def _changed(message: bytes, changed: int, change: Callable[[bytes], bytes]) -> bytes:
  """A message with its fields of one number, messages themselves, changed."""
  parts = []
  for number, field, content in _fields(message):
    if number == changed:
      content = change(content)
      field = _written(number << 3 | _LENGTH_DELIMITED) + _written(len(content)) + content
    parts.append(field)
  return b"".join(parts)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
  """Number, bytes and content of every field: all of its bytes, and what is between its length and its end."""
  start = 0
  while start < len(message):
    tag, content = _varint(message, start)
    wire_type = tag & 7
    if wire_type == _LENGTH_DELIMITED:
      length, content = _varint(message, content)
      end = content + length
    elif wire_type in _FIXED:
      end = content + _FIXED[wire_type]
    else:
      _, end = _varint(message, content)
    if end > len(message):
      raise InvalidProgramError(f"a module that ends within its field {tag >> 3}")
    yield tag >> 3, message[start:end], message[content:end]
    start = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
  """A number, and where it ends."""
  value = shift = 0
  while at < len(message):
    value |= (message[at] & 0x7F) << shift
    shift, at = shift + 7, at + 1
    if not message[at - 1] & 0x80:
      return value, at
  raise InvalidProgramError("a module that ends within a number")


def _written(value: int) -> bytes:
  """A number, as `_varint` reads it."""
  written = bytearray()
  while value > 0x7F:
    written.append(value & 0x7F | 0x80)
    value >>= 7
  return bytes([*written, value])
