"""A slow, obvious reader and writer of serialized HLO modules: an oracle, and a way to break modules on purpose."""

import dataclasses

GLUE = {
  "parameter",
  "constant",
  "bitcast",
  "tuple",
  "get-tuple-element",
  "opt-barrier",
  "add-dependency",
  "after-all",
  "domain",
}
# Field numbers of HloModuleProto, HloComputationProto and HloInstructionProto.
MODULE_COMPUTATIONS, MODULE_ENTRY_ID, MODULE_SCHEDULE = 3, 6, 7
COMPUTATION_NAME, COMPUTATION_INSTRUCTIONS, COMPUTATION_ID, COMPUTATION_ROOT = 1, 2, 5, 6
NAME, OPCODE, LITERAL, ID, OPERANDS, CONTROL, CALLED = 1, 2, 8, 35, 36, 37, 38


def _varint(data: bytes, at: int) -> tuple[int, int]:
  value = shift = 0
  while True:
    byte = data[at]
    at += 1
    value |= (byte & 127) << shift
    shift += 7
    if byte < 128:
      return value, at


def _encode_varint(value: int) -> bytes:
  out = bytearray()
  while value >= 128:
    out.append(value & 127 | 128)
    value >>= 7
  return bytes([*out, value])


def fields(message: bytes) -> list[tuple[int, int | bytes]]:
  """(field number, value) in order: an int for a varint, bytes for everything else that HLO uses."""
  result, at = [], 0
  while at < len(message):
    tag, at = _varint(message, at)
    if tag & 7 == 0:
      value, at = _varint(message, at)
    else:
      assert tag & 7 == 2, "a wire type that computations and schedules do not use"
      size, at = _varint(message, at)
      value, at = message[at : at + size], at + size
    result.append((tag >> 3, value))
  return result


def encode(parts: list[tuple[int, int | bytes]]) -> bytes:
  """The inverse of `fields`."""
  out = bytearray()
  for number, value in parts:
    if isinstance(value, int):
      out += _encode_varint(number << 3) + _encode_varint(value)
    else:
      out += _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value
  return bytes(out)


def unpack(packed: bytes) -> list[int]:
  values, at = [], 0
  while at < len(packed):
    value, at = _varint(packed, at)
    values.append(value)
  return values


def pack(values: list[int]) -> bytes:
  return b"".join(map(_encode_varint, values))


@dataclasses.dataclass
class Instruction:
  id: int
  name: str
  opcode: str
  operands: list[int]
  control: list[int]
  called: list[int]


class Module:
  """The entry computation of a module as data that can be changed and encoded again."""

  def __init__(self, data: bytes):
    self.parts = fields(data)
    entry_id = dict(self.parts)[MODULE_ENTRY_ID]
    computations = [
      (at, fields(value)) for at, (number, value) in enumerate(self.parts) if number == MODULE_COMPUTATIONS
    ]
    self.entry_at, self.entry = next((at, c) for at, c in computations if dict(c).get(COMPUTATION_ID, 0) == entry_id)
    self.root = dict(self.entry)[COMPUTATION_ROOT]
    self.opcodes = {}  # computation id -> opcodes, root last
    for _, computation in computations:
      rows = [dict(fields(value)) for number, value in computation if number == COMPUTATION_INSTRUCTIONS]
      rows.sort(key=lambda row: row.get(ID, 0) == dict(computation)[COMPUTATION_ROOT])
      self.opcodes[dict(computation).get(COMPUTATION_ID, 0)] = [row[OPCODE].decode() for row in rows]
    self.schedule_at = next(at for at, (number, _) in enumerate(self.parts) if number == MODULE_SCHEDULE)
    self.sequences = [fields(value) for _, value in fields(self.parts[self.schedule_at][1])]
    self.entry_sequence_at = next(at for at, s in enumerate(self.sequences) if dict(s).get(1, 0) == entry_id)

  @property
  def instructions(self) -> list[Instruction]:
    return [parse_instruction(value) for number, value in self.entry if number == COMPUTATION_INSTRUCTIONS]

  @property
  def sequence(self) -> list[int]:
    return unpack(dict(fields(dict(self.sequences[self.entry_sequence_at])[2]))[1])

  @sequence.setter
  def sequence(self, ids: list[int]) -> None:
    entry_id = dict(self.sequences[self.entry_sequence_at])[1]
    self.sequences[self.entry_sequence_at] = [(1, entry_id), (2, encode([(1, pack(ids))]))]

  def replace(self, instruction_id: int, number: int, value: int | bytes) -> None:
    """Sets one field, which must be there, of one entry instruction."""
    for at, (kind, raw) in enumerate(self.entry):
      if kind == COMPUTATION_INSTRUCTIONS and dict(fields(raw)).get(ID, 0) == instruction_id:
        parts = fields(raw)
        assert number in dict(parts)
        self.entry[at] = (kind, encode([(n, value if n == number else v) for n, v in parts]))

  def encode(self) -> bytes:
    parts = list(self.parts)
    parts[self.entry_at] = (MODULE_COMPUTATIONS, encode(self.entry))
    parts[self.schedule_at] = (MODULE_SCHEDULE, encode([(1, encode(s)) for s in self.sequences]))
    return encode(parts)


def parse_instruction(raw: bytes) -> Instruction:
  row = dict(fields(raw))
  ids = {number: unpack(row.get(number, b"")) for number in (OPERANDS, CONTROL, CALLED)}
  name, opcode = row[NAME].decode(), row[OPCODE].decode()
  return Instruction(row.get(ID, 0), name, opcode, ids[OPERANDS], ids[CONTROL], ids[CALLED])
