// A lossless view of a serialized xla.HloModuleProto.
//
// The view parses only what planning needs; everything else stays as the bytes it came in, so a
// module that is emitted unchanged is identical to the byte, and an instruction that is cloned keeps
// every field that this project has never heard of. Field numbers are those of xla/service/hlo.proto.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace coopjax {

// Of a layout; others are small memories on the device, such as a TPU's vector memory (1) and flags (2).
inline constexpr int64_t kMainMemorySpace = 0, kHostMemorySpace = 5;

// An xla::Shape. Tuples have `is_tuple` and children; arrays have dimensions and a layout.
struct Shape {
  int32_t element_type = 0;                 // xla::PrimitiveType; 13 = TUPLE, 17 = TOKEN, 14 = OPAQUE
  std::vector<int64_t> dimensions;
  std::vector<int64_t> minor_to_major;
  int64_t memory_space = kMainMemorySpace;  // layout.memory_space
  bool has_layout_extras = false;           // tiles, element_size_in_bits and the like: sizes need care
  int64_t element_size_in_bits = 0;         // 0: that of the type
  int64_t tail_alignment_elements = 1;      // the padded element count is a multiple of this
  bool is_dynamic = false;                  // some dimension is only an upper bound
  std::vector<std::vector<int64_t>> tiles;
  std::vector<Shape> tuple_shapes;

  bool is_tuple() const { return element_type == 13; }
  bool is_token() const { return element_type == 17; }
  bool is_array() const { return !is_tuple() && !is_token() && element_type != 14 && element_type != 0; }
  int64_t num_elements() const;
  // Bytes of the buffer at this node alone: an array's padded bytes, 8 per element of a tuple (its
  // table of pointers), 0 for a token. Sub-byte types (s4, u4, s2 ...) are as XLA:CPU stores them.
  int64_t byte_size() const;
};

struct Instruction {
  int64_t id = 0;                           // unique in the module
  std::string name;
  std::string opcode;                       // "fusion", "dot", "get-tuple-element", ...
  Shape shape;
  std::vector<int64_t> operand_ids;
  std::vector<int64_t> control_predecessor_ids;
  std::vector<int64_t> called_computation_ids;
  int64_t parameter_number = -1;
  int64_t tuple_index = -1;                 // of get-tuple-element
  std::string fusion_kind;
  std::string custom_call_target;
  bool custom_call_has_side_effect = false;
  // output_operand_aliasing of fusions and custom-calls: (output index path, operand number, operand index path)
  struct OutputOperandAlias {
    std::vector<int64_t> output_index;
    int64_t operand_number = 0;
    std::vector<int64_t> operand_index;
  };
  std::vector<OutputOperandAlias> output_operand_aliasing;
  std::string op_name;                      // metadata.op_name: the name-scope path
  std::string source_file;
  int32_t source_line = 0;
  std::string_view raw;                     // the serialized HloInstructionProto, inside the module's bytes
  int32_t computation = -1;                 // index into HloModule::computations
};

// Stands for the index of a module's entry computation.
inline constexpr int32_t kEntryComputation = -1;

struct Computation {
  int64_t id = 0;
  std::string name;
  int64_t root_id = 0;
  std::vector<int32_t> instructions;        // consecutive indices into HloModule::instructions, in proto order
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

struct HloModule {
  std::string bytes;                        // the module as it came; every string_view points in here
  std::string name;
  int64_t id = 0;
  std::vector<Instruction> instructions;    // of all computations
  std::vector<Computation> computations;    // callees first, as XLA requires
  int32_t entry = -1;                       // index of the entry computation
  std::vector<InputOutputAlias> input_output_aliases;
  bool is_scheduled = false;
  std::unordered_map<int64_t, int32_t> instruction_index;   // id -> index
  std::unordered_map<int64_t, int32_t> computation_index;

  const Instruction& by_id(int64_t instruction_id) const { return instructions[instruction_index.at(instruction_id)]; }
  const Computation& entry_computation() const { return computations[entry]; }
};

// Parses a module; nullptr and one sentence in `error` when the bytes are not a scheduled
// HloModuleProto that this view understands. Never throws, never reads out of bounds.
std::unique_ptr<HloModule> ParseHloModule(std::string bytes, std::string* error);

// What a clone or a rewritten instruction changes; every other field is copied from `original.raw`.
struct InstructionEdit {
  int64_t id = 0;
  std::string name;
  std::vector<int64_t> operand_ids;
  std::vector<int64_t> control_predecessor_ids;
  std::vector<int64_t> called_computation_ids;
};
std::string EmitInstruction(const Instruction& original, const InstructionEdit& edit);

// The module with some computations' instruction lists replaced or added (each the serialized
// instructions, in order) and with new schedules. What is not named is emitted byte for byte.
struct ComputationEdit {
  int32_t computation = -1;                 // index of the computation rewritten, or cloned from
  bool is_clone = false;                    // a new computation, inserted just before `insert_before`
  int64_t new_id = 0;                       // clones only
  std::string new_name;                     // clones only
  int64_t new_root_id = -1;                 // -1: unchanged
  std::vector<std::string> instructions;    // serialized HloInstructionProtos; string copies
  std::vector<int64_t> sequence;            // empty: this computation has no entry in the schedule
  int32_t insert_before = -1;               // clones only: index of an original computation
};
std::string EmitHloModule(const HloModule& module, const std::vector<ComputationEdit>& edits);

}  // namespace coopjax
