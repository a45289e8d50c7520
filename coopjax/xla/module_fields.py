"""The fields of a serialized ``HloModuleProto``, at the top alone: enough to put one module's plan into its twin."""

from collections.abc import Iterator

from coopjax.errors import InvalidProgramError

_PLANNED = (3, 7)  # computations, schedule
_LENGTH_DELIMITED, _FIXED = 2, {1: 8, 5: 4}  # wire types of protocol buffers


def with_plan_of(module_bytes: bytes, planned: bytes) -> bytes:
  """A module with the computations and the schedule of another one, which was planned in another process.

  What is left differs between processes: XLA counts its modules, and tells the paths of source files.

  Raises:
    coopjax.errors.InvalidProgramError: one of them is no serialized message.
  """
  own = (field for number, field in _fields(module_bytes) if number not in _PLANNED)
  return b"".join([*own, *(field for number, field in _fields(planned) if number in _PLANNED)])


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
  """Number and bytes, tag included, of every field."""
  start = 0
  while start < len(message):
    tag, end = _varint(message, start)
    wire_type = tag & 7
    if wire_type == _LENGTH_DELIMITED:
      length, end = _varint(message, end)
      end += length
    elif wire_type in _FIXED:
      end += _FIXED[wire_type]
    else:
      _, end = _varint(message, end)
    if end > len(message):
      raise InvalidProgramError(f"a module that ends within its field {tag >> 3}")
    yield tag >> 3, message[start:end]
    start = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
  """A number, and where it ends."""
  value = shift = 0
  while at < len(message):
    value |= (message[at] & 0x7F) << shift
    shift, at = shift + 7, at + 1
    if not message[at - 1] & 0x80:
      break
  return value, at
