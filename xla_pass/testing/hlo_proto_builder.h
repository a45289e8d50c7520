// Small serialized HloModuleProtos for unit tests of what reads and writes bytes (testing/hlo_builder.h makes
// modules without any). Computations are begun callees first, the last one is the entry; each is
// scheduled in the order in which its instructions were added.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/module.h"
#include "hlo/wire.h"
#include "testing/expect.h"

namespace coopjax::testing {

inline std::string ArrayShape(int32_t element_type, const std::vector<int64_t>& dimensions,
                              std::string_view layout_fields = "") {
  std::string shape, layout;
  hlo::AppendVarintField(2, element_type, &shape);
  hlo::AppendPackedField(3, dimensions, &shape);
  std::vector<int64_t> minor_to_major;
  for (int64_t i = static_cast<int64_t>(dimensions.size()) - 1; i >= 0; --i) minor_to_major.push_back(i);
  hlo::AppendPackedField(1, minor_to_major, &layout);
  layout += layout_fields;
  hlo::AppendBytesField(5, layout, &shape);
  return shape;
}
inline std::string F32(const std::vector<int64_t>& dimensions) { return ArrayShape(11, dimensions); }
inline std::string TupleShape(const std::vector<std::string>& elements) {
  std::string shape;
  hlo::AppendVarintField(2, 13, &shape);
  for (const std::string& element : elements) hlo::AppendBytesField(4, element, &shape);
  return shape;
}

struct Extra {
  std::vector<int64_t> control = {}, called = {};
  std::string fields = "";  // serialized fields with numbers above 38, appended as they are
};

class HloProtoBuilder {
 public:
  int64_t Begin(std::string_view name, bool is_scheduled = true) {
    const int64_t id = static_cast<int64_t>(computations_.size()) + 1;
    computations_.push_back({std::string(name), id, is_scheduled, {}, {}, 0});
    return computations_.back().id;
  }
  // Adds an instruction named like its opcode and its number; the last one added is the root.
  int64_t Add(std::string_view opcode, std::string_view shape, const std::vector<int64_t>& operands = {},
              const Extra& extra = {}) {
    return AddNumbered(opcode, shape, operands, extra, 0, 0);
  }
  int64_t Parameter(int64_t number, std::string_view shape) {
    return AddNumbered("parameter", shape, {}, {}, 9, number);
  }
  int64_t Element(std::string_view shape, int64_t tuple, int64_t index) {
    return AddNumbered("get-tuple-element", shape, {tuple}, {}, 13, index);
  }
  // The parameter gives its buffer to an output.
  void Alias(const std::vector<int64_t>& output_index, int64_t parameter_number) {
    std::string entry;
    hlo::AppendPackedField(1, output_index, &entry);
    hlo::AppendVarintField(2, parameter_number, &entry);
    hlo::AppendBytesField(1, entry, &aliases_);
  }
  // Computations that are not scheduled are in the schedule all the same, with empty sequences, as on TPU.
  void ListUnscheduled() { lists_unscheduled_ = true; }
  // Serialized fields of the module, appended as they are.
  void AppendModuleFields(std::string_view fields) { module_fields_ += fields; }

  std::string Build() const {
    std::string module, schedule;
    hlo::AppendBytesField(1, "test", &module);
    for (const Computation& computation : computations_) {
      hlo::AppendBytesField(3, Serialize(computation), &module);
      if (!computation.is_scheduled && !lists_unscheduled_) continue;
      std::string sequence, entry;
      if (computation.is_scheduled) hlo::AppendPackedField(1, computation.ids, &sequence);
      hlo::AppendVarintField(1, computation.id, &entry);
      hlo::AppendBytesField(2, sequence, &entry);
      hlo::AppendBytesField(1, entry, &schedule);
    }
    hlo::AppendVarintField(6, computations_.back().id, &module);
    hlo::AppendBytesField(7, schedule, &module);
    if (!aliases_.empty()) hlo::AppendBytesField(8, aliases_, &module);
    return module + module_fields_;
  }

 private:
  struct Computation {
    std::string name;
    int64_t id;
    bool is_scheduled;
    std::vector<std::string> instructions;
    std::vector<int64_t> ids;
    int64_t root;
  };

  static std::string Serialize(const Computation& computation) {
    std::string out;
    hlo::AppendBytesField(1, computation.name, &out);
    for (const std::string& instruction : computation.instructions) hlo::AppendBytesField(2, instruction, &out);
    hlo::AppendVarintField(5, computation.id, &out);
    hlo::AppendVarintField(6, computation.root, &out);
    return out;
  }

  int64_t AddNumbered(std::string_view opcode, std::string_view shape, const std::vector<int64_t>& operands,
                      const Extra& extra, uint32_t number_field, int64_t number) {
    Computation& computation = computations_.back();
    const int64_t id = computation.id << 32 | static_cast<int64_t>(computation.ids.size());
    std::string out;
    hlo::AppendBytesField(1, std::string(opcode) + "." + std::to_string(++num_instructions_), &out);
    hlo::AppendBytesField(2, opcode, &out);
    hlo::AppendBytesField(3, shape, &out);
    if (number != 0) hlo::AppendVarintField(number_field, number, &out);  // proto3 leaves zeros out
    hlo::AppendVarintField(35, id, &out);
    hlo::AppendPackedField(36, operands, &out);
    hlo::AppendPackedField(37, extra.control, &out);
    hlo::AppendPackedField(38, extra.called, &out);
    computation.instructions.push_back(out + extra.fields);
    computation.ids.push_back(id);
    computation.root = id;
    return id;
  }

  std::vector<Computation> computations_;
  std::string aliases_, module_fields_;
  int num_instructions_ = 0;
  bool lists_unscheduled_ = false;
};

// The module that these bytes are; anything else fails the test.
inline std::unique_ptr<hlo::Module> Parsed(const std::string& bytes) {
  std::string error;
  auto module = hlo::ParseModule(bytes, &error);
  EXPECT_EQ(error, "");
  return module;
}

}  // namespace coopjax::testing
