"""Scheduled modules of any length, written without a compiler: a chain of layers and the way back through them."""

from tests.support.hlo_proto import encode, pack

F32, SHAPE, ID, OPERANDS, CALLED = 11, 3, 35, 36, 38


def long_module(num_layers: int, length: int = 256, body: int = 0) -> bytes:
  """A module that keeps two values a layer for its backward pass.

  Args:
    num_layers: each has six instructions, four of which need memory.
    length: of the values, in elements.
    body: instructions in a fusion that stands for each elementwise instruction; none without.
  """
  return _Writer(length, body).module(num_layers)


class _Writer:
  def __init__(self, length: int, body: int):
    self.array = encode([(2, F32), (3, pack([length])), (5, encode([(1, pack([0]))]))])
    self.body, self.computations, self.next_id = body, list[bytes](), 1
    self.instructions, self.sequence, self.schedules = list[bytes](), list[int](), list[bytes]()

  def module(self, num_layers: int) -> bytes:
    x = self.parameter()
    kept, values = [], [x]
    for _ in range(num_layers):
      kept.append(self.add("sine", values[-1]))
      values.append(self.add("multiply", kept[-1], values[-1]))
    gradient = values[-1]
    for layer in reversed(range(num_layers)):
      slope = self.add("cosine", values[layer])
      outer = self.add("multiply", gradient, slope)
      inner = self.add("multiply", gradient, kept[layer])
      gradient = self.add("add", outer, inner)
    entry = self.computation("main", self.instructions, gradient)
    program_shape = encode([(1, self.array), (2, self.array), (3, b"x")])
    parts = [(1, b"long"), (2, b"main"), *((3, each) for each in self.computations), (3, entry), (4, program_shape)]
    schedule = encode([(1, encode([(1, self.entry_id), (2, encode([(1, pack(self.sequence))]))]))])
    return encode([*parts, (6, self.entry_id), (7, schedule)])

  def parameter(self) -> int:
    return self._instruction("parameter", (), self.instructions, self.sequence, more=[(9, 0)])

  def add(self, opcode: str, *operands: int) -> int:
    if not self.body:
      return self._instruction(opcode, operands, self.instructions, self.sequence)
    inside: list[bytes] = []
    inputs = [self._instruction("parameter", (), inside, [], more=[(9, i)]) for i in range(len(operands))]
    value = self._instruction(opcode, inputs, inside, [])
    for _ in range(self.body - len(inside)):
      value = self._instruction("negate", [value], inside, [])
    self.computations.append(self.computation(f"fused_{value}", inside, value))
    more = [(11, b"kLoop"), (CALLED, pack([self.entry_id]))]
    return self._instruction("fusion", operands, self.instructions, self.sequence, more=more)

  def computation(self, name: str, instructions: list[bytes], root: int) -> bytes:
    self.entry_id = self._new_id()
    rows = [(2, each) for each in instructions]
    return encode([(1, name.encode()), *rows, (5, self.entry_id), (6, root)])

  def _instruction(self, opcode, operands, instructions, sequence, more=()) -> int:
    made = self._new_id()
    parts = [(1, f"{opcode}.{made}".encode()), (2, opcode.encode()), (SHAPE, self.array), *more, (ID, made)]
    instructions.append(encode([*parts, (OPERANDS, pack(list(operands)))]))
    sequence.append(made)
    return made

  def _new_id(self) -> int:
    self.next_id += 1
    return self.next_id
