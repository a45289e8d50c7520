// A lossless view of a serialized xla.HloModuleProto.
//
// The view parses only what planning needs; everything else stays as the bytes it came in, so a
// module that is emitted unchanged is identical to the byte, and an instruction that is cloned keeps
// every field that this project has never heard of. Field numbers are those of xla/service/hlo.proto.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/id_index.h"
#include "hlo/opcode.h"
#include "hlo/shape.h"

namespace coopjax::hlo {

// Edges are indices: of instructions (`operands`, `control_predecessors`) and of computations (`called`), all of which
// stand before. An HloModule keeps the lists, as it keeps the shapes.
struct Instruction {
  int64_t id = 0;                           // unique in the module
  std::string_view name;
  std::string_view opcode;                  // "fusion", "dot", "get-tuple-element", ...
  OpcodeInfo info;                          // of the opcode
  int32_t computation = -1;                 // index into HloModule::computations
  const Shape* shape = nullptr;
  std::span<const int32_t> operands;
  std::span<const int32_t> control_predecessors;
  std::span<const int32_t> called;
  int64_t parameter_number = -1;
  int64_t tuple_index = -1;                 // of get-tuple-element
  std::string_view fusion_kind;
  std::string_view custom_call_target;
  bool custom_call_has_side_effect = false;
  // output_operand_aliasing of fusions and custom-calls: (output index path, operand number, operand index path)
  struct OutputOperandAlias {
    std::vector<int64_t> output_index;
    int64_t operand_number = 0;
    std::vector<int64_t> operand_index;
  };
  std::vector<OutputOperandAlias> output_operand_aliasing;
  std::string_view raw;                     // the serialized HloInstructionProto, inside the module's bytes
};

// Stands for the index of a module's entry computation.
inline constexpr int32_t kEntryComputation = -1;

struct Computation {
  int64_t id = 0;
  std::string_view name;
  int64_t root_id = 0;
  std::ranges::iota_view<int32_t, int32_t> instructions;  // indices into HloModule::instructions, in proto order
  std::vector<int64_t> sequence;            // scheduled instruction ids; empty if not in the schedule
  std::string_view raw;
};

// input_output_alias entry: output index path, parameter number, parameter index path, kind (1 may, 2 must)
struct InputOutputAlias {
  std::vector<int64_t> output_index;
  int64_t parameter_number = 0;
  std::vector<int64_t> parameter_index;
  int32_t kind = 0;
};

struct Module {
  std::string bytes;                        // the module as it came; every string_view points in here
  std::string_view name;
  int64_t id = 0;
  std::vector<Instruction> instructions;    // of all computations
  std::vector<Computation> computations;    // callees first, as XLA requires
  int32_t entry = -1;                       // index of the entry computation
  std::vector<InputOutputAlias> input_output_aliases;
  bool is_scheduled = false;
  std::string_view stack_frames;            // the serialized StackFrameIndexProto, see hlo/metadata.h
  std::string_view attributes;              // the serialized FrontendAttributes of all of it
  IdIndex instruction_index, computation_index;   // by id
  std::deque<Shape> shapes;                 // that instructions point to, each once
  std::deque<std::vector<int32_t>> lists;   // see Keep

  // The list where it stays as long as the module.
  std::span<const int32_t> Keep(std::span<const int32_t> list);
  const Instruction& by_id(int64_t id) const { return instructions[instruction_index.Find(id)]; }
  const Computation& entry_computation() const { return computations[entry]; }
  std::vector<int64_t> InstructionIds(std::span<const int32_t> indices) const;
  std::vector<int64_t> ComputationIds(std::span<const int32_t> indices) const;
};

// A name in a message.
std::string Quoted(std::string_view name);

// Parses a module; nullptr and one sentence in `error` when the bytes are not a scheduled
// HloModuleProto that this view understands. Never throws, never reads out of bounds.
std::unique_ptr<Module> ParseModule(std::string bytes, std::string* error);

}  // namespace coopjax::hlo
