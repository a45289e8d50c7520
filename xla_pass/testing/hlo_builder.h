// Hand-made HloModules for unit tests: computations callees first, instructions in schedule order.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hlo/module.h"

namespace coopjax::testing {

inline hlo::Shape F32(std::vector<int64_t> dimensions) {
  hlo::Shape shape;
  shape.element_type = 11;
  for (int64_t k = static_cast<int64_t>(dimensions.size()) - 1; k >= 0; --k) shape.minor_to_major.push_back(k);
  shape.dimensions = std::move(dimensions);
  return shape;
}

inline hlo::Shape TupleOf(std::vector<hlo::Shape> elements) {
  hlo::Shape shape;
  shape.element_type = 13;
  shape.tuple_shapes = std::move(elements);
  return shape;
}

inline hlo::Shape Token() {
  hlo::Shape shape;
  shape.element_type = 17;
  return shape;
}

class HloBuilder {
 public:
  // Everything added from here on belongs to this computation. Returns its id.
  int64_t Begin(const std::string& name) {
    hlo::Computation& computation = module_.computations.emplace_back();
    computation.id = static_cast<int64_t>(module_.computations.size());
    computation.name = Owned(name);
    const int32_t first = num_instructions();
    computation.instructions = {first, first};
    module_.computation_index.Add(computation.id, computation_index());
    return computation.id;
  }

  // The id of the new instruction, which becomes the root until another one is added.
  int64_t Add(const std::string& opcode, const hlo::Shape& shape, const std::vector<int64_t>& operands = {},
              const std::vector<int64_t>& called = {}) {
    const int32_t index = num_instructions();
    hlo::Instruction& instruction = module_.instructions.emplace_back();
    instruction.id = 100 + index;
    instruction.name = Owned(opcode + "." + std::to_string(index));
    instruction.opcode = Owned(opcode);
    instruction.info = hlo::LookUpOpcode(opcode);
    instruction.shape = &module_.shapes.emplace_back(shape);
    instruction.operands = Indices(operands, module_.instruction_index);
    Calls(called);
    instruction.computation = computation_index();
    module_.instruction_index.Add(instruction.id, index);
    hlo::Computation& computation = module_.computations.back();
    computation.instructions = {computation.instructions.front(), index + 1};
    computation.sequence.push_back(instruction.id);
    computation.root_id = instruction.id;
    return instruction.id;
  }

  int64_t Parameter(int64_t number, const hlo::Shape& shape) {
    const int64_t id = Add("parameter", shape);
    last().parameter_number = number;
    return id;
  }
  int64_t Element(int64_t tuple, int64_t index) {
    const int64_t id = Add("get-tuple-element", module_.by_id(tuple).shape->tuple_shapes[index], {tuple});
    last().tuple_index = index;
    return id;
  }
  int64_t LoopFusion(const hlo::Shape& shape, std::vector<int64_t> operands, int64_t computation) {
    const int64_t id = Add("fusion", shape, std::move(operands), {computation});
    last().fusion_kind = "kLoop";
    return id;
  }
  // Of the last instruction.
  void Calls(const std::vector<int64_t>& computations) {
    last().called = Indices(computations, module_.computation_index);
  }
  void Follows(const std::vector<int64_t>& predecessors) {
    last().control_predecessors = Indices(predecessors, module_.instruction_index);
  }
  // Attributes that only the serialized instruction holds.
  void SetRaw(std::string raw) { last().raw = Owned(std::move(raw)); }
  void SetAttributes(std::string attributes) { module_.attributes = Owned(std::move(attributes)); }
  void Donate(int64_t parameter_number, std::vector<int64_t> output_index) {
    module_.input_output_aliases.push_back({std::move(output_index), parameter_number, {}, 1});
  }

  hlo::Instruction& last() { return module_.instructions.back(); }
  // Fusions and reducers have no schedule.
  void EndEmbedded() { module_.computations.back().sequence.clear(); }
  // The module, whose entry is the computation begun last.
  const hlo::Module& Finish() {
    module_.entry = computation_index();
    module_.is_scheduled = true;
    return module_;
  }
  int32_t index(int64_t id) const { return module_.instruction_index.Find(id); }

 private:
  int32_t computation_index() const { return static_cast<int32_t>(module_.computations.size()) - 1; }

  int32_t num_instructions() const { return static_cast<int32_t>(module_.instructions.size()); }
  std::string_view Owned(std::string text) { return texts_.emplace_back(std::move(text)); }
  std::span<const int32_t> Indices(const std::vector<int64_t>& ids, const IdIndex& index) {
    std::vector<int32_t> indices;
    for (const int64_t id : ids) indices.push_back(index.Find(id));
    return module_.Keep(indices);
  }

  hlo::Module module_;
  std::deque<std::string> texts_;
};

}  // namespace coopjax::testing
