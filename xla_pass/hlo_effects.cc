// What an instruction touches besides its operands and its result.
#include <algorithm>

#include "hlo_module.h"

namespace coopjax {
namespace {

// What is neither the device's main memory nor the host's: how much of it there is, no plan models.
bool IsInSmallMemory(const Shape& shape) {
  return (shape.memory_space != kMainMemorySpace && shape.memory_space != kHostMemorySpace) ||
         std::ranges::any_of(shape.tuple_shapes, IsInSmallMemory);
}

}  // namespace

bool HasOwnEffects(const Instruction& instruction) {
  const OpcodeInfo opcode = instruction.info;
  if (!IsGlue(opcode.op) && IsInSmallMemory(*instruction.shape)) return true;
  switch (opcode.op) {
    case Op::kCustomCall:
      return instruction.custom_call_has_side_effect;
    case Op::kOther:  // all that is not known to be harmless
      return !opcode.is_pure && instruction.opcode != "partition-id" && instruction.opcode != "replica-id";
    case Op::kRng: case Op::kSend: case Op::kRecvDone: case Op::kAllReduce: case Op::kAllReduceStart:
    case Op::kAllGatherStart: case Op::kRaggedAllToAll: case Op::kCollectivePermute:
    case Op::kCollectivePermuteStart:
      return true;
    default:
      return false;
  }
}

}  // namespace coopjax
