#include "fuzz/symbolic_run.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "hlo/module.h"
#include "hlo/opcode.h"
#include "hlo/wire.h"

namespace coopjax::fuzz {
namespace {

uint64_t Mix(uint64_t hash, uint64_t more) {
  hash ^= more + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  return hash * 0xbf58476d1ce4e5b9;
}
uint64_t HashOf(std::string_view bytes) { return std::hash<std::string_view>()(bytes); }

// What an instruction does, whatever it is called and whoever its operands are.
uint64_t HashOfKind(const hlo::Instruction& instruction) {
  hlo::WireReader reader(instruction.raw);
  hlo::WireField field;
  uint64_t hash = 1;
  while (reader.Next(&field)) {
    const bool is_name_or_edge = field.number == 1 || (field.number >= 35 && field.number <= 38);
    if (!is_name_or_edge) hash = Mix(hash, HashOf(field.raw));
  }
  return hash;
}

// Computations callees first: one pass. The order in which a computation lists its instructions means nothing, its
// sequence does.
std::vector<uint64_t> HashComputations(const hlo::Module& module) {
  std::vector<uint64_t> hashes, of_instruction(module.instructions.size());
  for (const hlo::Computation& computation : module.computations) {
    uint64_t sum = 0;
    for (const int32_t i : computation.instructions) {
      const hlo::Instruction& instruction = module.instructions[i];
      uint64_t hash = HashOfKind(instruction);
      for (const int32_t operand : instruction.operands) hash = Mix(hash, of_instruction[operand]);
      for (const int32_t callee : instruction.called) hash = Mix(hash, hashes[callee]);
      of_instruction[i] = hash;
      sum += hash;
    }
    uint64_t hash = Mix(sum, of_instruction[module.instruction_index.Find(computation.root_id)]);
    for (const int64_t id : computation.sequence) hash = Mix(hash, of_instruction[module.instruction_index.Find(id)]);
    hashes.push_back(hash);
  }
  return hashes;
}

class Memory {
 public:
  explicit Memory(const HloAlias& alias) : alias_(alias), contents_(alias.num_buffers(), 0) {}

  // Of all arrays of an instruction, tables of tuples included.
  uint64_t Read(int32_t instruction) const {
    uint64_t hash = 3;
    ForEachValue(instruction, [&](hlo::Node, int32_t value) { hash = Mix(hash, contents_[alias_.buffer_of(value)]); });
    return hash;
  }
  // Of the values that the instruction defines.
  void Write(int32_t instruction, uint64_t hash) {
    const HloDataflow& dataflow = alias_.dataflow();
    ForEachValue(instruction, [&](hlo::Node node, int32_t value) {
      if (dataflow.definition(value) != node) return;
      contents_[alias_.buffer_of(value)] = Mix(hash, node - alias_.graph().node_base(instruction));
    });
  }
  std::vector<uint64_t> ContentsOf(int32_t instruction) const {
    std::vector<uint64_t> contents;
    ForEachValue(instruction, [&](hlo::Node node, int32_t value) {
      if (!alias_.graph().shape(node).is_tuple()) contents.push_back(contents_[alias_.buffer_of(value)]);
    });
    return contents;
  }

 private:
  template <typename Visit>
  void ForEachValue(int32_t instruction, Visit visit) const {
    const hlo::Graph& graph = alias_.graph();
    for (hlo::Node node = graph.node_base(instruction); node < graph.node_end(instruction); ++node) {
      const int32_t value = alias_.dataflow().value_at(node);
      if (value != HloDataflow::kNoValue) visit(node, value);
    }
  }

  const HloAlias& alias_;
  std::vector<uint64_t> contents_;
};

}  // namespace

SymbolicResult SymbolicRun(const HloAnalysis& analysis) {
  const hlo::Graph& graph = analysis.graph;
  const hlo::Module& module = graph.module();
  const std::vector<uint64_t> callees = HashComputations(module);
  Memory memory(*analysis.alias);
  SymbolicResult result;
  const auto run = [&](int32_t i) {
    const hlo::Instruction& instruction = graph.instruction(i);
    uint64_t hash = HashOfKind(instruction);
    if (instruction.opcode == "parameter") hash = Mix(hash, static_cast<uint64_t>(instruction.parameter_number));
    if (!hlo::IsGlue(graph.op(i))) {  // glue hands on where arrays lie, and reads none
      for (const int32_t operand : graph.operands(i)) hash = Mix(hash, memory.Read(operand));
      for (const int32_t callee : instruction.called) hash = Mix(hash, callees[callee]);
      result.computed[std::string(instruction.name)] = hash;
    }
    memory.Write(i, hash);
  };
  // Parameters lie in memory before the first instruction runs, wherever the sequence has them.
  for (const int32_t i : graph.sequence(module.entry)) {
    if (graph.instruction(i).opcode == "parameter") run(i);
  }
  for (const int32_t i : graph.sequence(module.entry)) {
    if (graph.instruction(i).opcode != "parameter") run(i);
  }
  result.outputs = memory.ContentsOf(graph.root(module.entry));
  return result;
}

bool IsSame(const SymbolicResult& before, const SymbolicResult& after) {
  return before.outputs == after.outputs && std::ranges::all_of(after.computed, [&](const auto& entry) {
           auto original = before.computed.find(entry.first);
           if (original == before.computed.end()) {
             original = before.computed.find(entry.first.substr(0, entry.first.rfind(".coop_remat")));
           }
           return original != before.computed.end() && original->second == entry.second;
         });
}

}  // namespace coopjax::fuzz
