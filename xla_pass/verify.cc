#include "verify.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "buffer_order.h"
#include "hlo_opcode.h"
#include "wire.h"

namespace coopjax {
namespace {

constexpr std::string_view kCloneSuffix = ".coop_remat";

// What a clone may change: name, id, operands, control predecessors, called computations.
bool IsCloneSpecificField(uint32_t number) { return number == 1 || (number >= 35 && number <= 38); }
// Of an instruction, a computation, or the module: the parts that are compared by themselves.
bool IsComparedApart(uint32_t number) { return number == 1 || number == 2 || number == 5 || number == 6; }
bool IsRewrittenModuleField(uint32_t number) { return number == 3 || number == 7; }

// Whether two messages have the same fields in the same order, those with `is_ignored` numbers aside.
template <typename Predicate>
bool SameFields(std::string_view a, std::string_view b, Predicate is_ignored) {
  WireReader reader_a(a), reader_b(b);
  WireField field_a, field_b;
  for (;;) {
    bool has_a = reader_a.Next(&field_a), has_b = reader_b.Next(&field_b);
    while (has_a && is_ignored(field_a.number)) has_a = reader_a.Next(&field_a);
    while (has_b && is_ignored(field_b.number)) has_b = reader_b.Next(&field_b);
    if (!has_a || !has_b) return has_a == has_b && reader_a.ok() && reader_b.ok();
    if (field_a.raw != field_b.raw) return false;
  }
}

bool SameFieldsButOperands(const Instruction& a, const Instruction& b) {
  return a.raw == b.raw || SameFields(a.raw, b.raw, IsCloneSpecificField);
}

std::string Quoted(const Instruction& instruction) { return "'" + instruction.name + "'"; }

// What a module's computations do, callees included.
class Purity {
 public:
  explicit Purity(const HloModule& module);
  // A pure array operation or a forwarding one, fit to run twice.
  bool MayRunTwice(const Instruction& instruction) const;
  // Touches something besides its operands and its result.
  bool HasEffects(const Instruction& instruction) const;

 private:
  bool WritesInPlace(const Instruction& instruction) const;

  const HloModule& module_;
  std::vector<uint8_t> is_pure_, has_effects_, is_in_place_;  // [computation]
};

Purity::Purity(const HloModule& module) : module_(module) {
  for (const Computation& computation : module.computations) {
    const auto at = [&](int32_t i) -> const Instruction& { return module.instructions[i]; };
    is_pure_.push_back(std::ranges::all_of(computation.instructions, [&](int32_t i) {
      const Op op = LookUpOpcode(at(i).opcode).op;
      return op == Op::kParameter || op == Op::kConstant || op == Op::kDynamicUpdateSlice || op == Op::kScatter ||
             MayRunTwice(at(i));
    }));
    has_effects_.push_back(std::ranges::any_of(computation.instructions, [&](int32_t i) { return HasEffects(at(i)); }));
    is_in_place_.push_back(WritesInPlace(module.by_id(computation.root_id)));
  }
}

// Whether the result, or an element of a tuple of results, is an update of some other array.
bool Purity::WritesInPlace(const Instruction& instruction) const {
  std::vector<const Instruction*> worklist = {&instruction};
  std::unordered_set<const Instruction*> seen;
  while (!worklist.empty()) {
    const Instruction& source = *worklist.back();
    worklist.pop_back();
    if (!seen.insert(&source).second) continue;
    const Op op = LookUpOpcode(source.opcode).op;
    if (op == Op::kDynamicUpdateSlice || op == Op::kScatter || !source.output_operand_aliasing.empty()) return true;
    if (op == Op::kFusion) {
      for (const int64_t id : source.called_computation_ids) {
        if (is_in_place_[module_.computation_index.at(id)]) return true;
      }
    }
    if (op == Op::kTuple || op == Op::kGetTupleElement || op == Op::kBitcast) {
      for (const int64_t id : source.operand_ids) worklist.push_back(&module_.by_id(id));
    }
  }
  return false;
}

bool Purity::MayRunTwice(const Instruction& instruction) const {
  const OpcodeInfo opcode = LookUpOpcode(instruction.opcode);
  switch (opcode.op) {
    case Op::kOptimizationBarrier: case Op::kAddDependency:
      return true;
    case Op::kParameter: case Op::kConstant: case Op::kDynamicUpdateSlice: case Op::kScatter:
      return false;
    default:
      break;
  }
  if (!opcode.is_pure || instruction.shape.is_token()) return false;
  if (opcode.op == Op::kFusion && WritesInPlace(instruction)) return false;
  return std::ranges::all_of(instruction.called_computation_ids,
                             [&](int64_t id) { return is_pure_[module_.computation_index.at(id)]; });
}

bool Purity::HasEffects(const Instruction& instruction) const {
  const OpcodeInfo opcode = LookUpOpcode(instruction.opcode);
  bool has_effects = false;
  switch (opcode.op) {
    case Op::kCustomCall:
      has_effects = instruction.custom_call_has_side_effect;
      break;
    case Op::kOther:
      has_effects = !opcode.is_pure && instruction.opcode != "partition-id" && instruction.opcode != "replica-id";
      break;
    case Op::kRng: case Op::kSend: case Op::kRecvDone: case Op::kAllReduce: case Op::kRaggedAllToAll:
    case Op::kAllGatherStart: case Op::kAllReduceStart: case Op::kCollectivePermute: case Op::kCollectivePermuteStart:
      has_effects = true;
      break;
    default:
      break;
  }
  return has_effects || std::ranges::any_of(instruction.called_computation_ids, [&](int64_t id) {
           return has_effects_[module_.computation_index.at(id)] != 0;
         });
}

class TransformVerifier {
 public:
  TransformVerifier(const HloModule& before, const HloModule& after) : before_(before), after_(after), purity_(before) {}
  std::string Verify();

 private:
  std::string CheckComputations() const;
  std::string CheckNames() const;
  std::string CheckCallers() const;
  std::string CheckEntry();
  std::string CheckInstruction(const Instruction& instruction);
  std::string CheckClone(const Instruction& clone, const Instruction& original) const;
  const Instruction* OriginalOf(const Instruction& instruction) const;
  bool SameComputation(const Computation& clone, const Computation& original) const;
  std::string CheckControlSuccessors() const;
  std::string CheckEffects() const;

  bool IsNew(const Instruction& instruction) const { return !before_.instruction_index.contains(instruction.id); }
  bool IsNew(const Computation& computation) const { return !before_.computation_index.contains(computation.id); }

  const HloModule& before_;
  const HloModule& after_;
  const Purity purity_;
  std::unordered_map<std::string_view, const Instruction*> entry_names_;  // of `before`
  std::unordered_map<int64_t, int64_t> origin_;  // entry instruction id in `after` -> id in `before`
};

std::string TransformVerifier::Verify() {
  if (!SameFields(before_.bytes, after_.bytes, IsRewrittenModuleField)) return "something besides computations and schedule changed";
  if (before_.entry_computation().id != after_.entry_computation().id) return "another computation is the entry";
  std::string fault = CheckComputations();
  if (fault.empty()) fault = CheckNames();
  if (fault.empty()) fault = CheckCallers();
  if (fault.empty()) fault = CheckEntry();
  if (fault.empty()) fault = CheckControlSuccessors();
  if (fault.empty()) fault = CheckEffects();
  if (fault.empty()) fault = CheckBufferOrder(after_);
  return fault;
}

// All computations but the entry are there as they were. (New ones are compared where they are called.)
std::string TransformVerifier::CheckComputations() const {
  for (const Computation& computation : before_.computations) {
    const auto found = after_.computation_index.find(computation.id);
    if (found == after_.computation_index.end()) return "computation '" + computation.name + "' is missing";
    const Computation& now = after_.computations[found->second];
    const bool is_entry = found->second == after_.entry;
    const bool is_same = is_entry ? computation.name == now.name && SameFields(computation.raw, now.raw, IsComparedApart)
                                  : computation.raw == now.raw && computation.sequence == now.sequence;
    if (!is_same) return "computation '" + computation.name + "' changed";
  }
  return "";
}

std::string TransformVerifier::CheckNames() const {
  std::unordered_set<std::string_view> names;
  for (const Computation& computation : before_.computations) names.insert(computation.name);
  for (const Instruction& instruction : before_.instructions) names.insert(instruction.name);
  for (const Computation& computation : after_.computations) {
    if (IsNew(computation) && !names.insert(computation.name).second) return "the name '" + computation.name + "' is taken";
  }
  for (const Instruction& instruction : after_.instructions) {
    if (IsNew(instruction) && !names.insert(instruction.name).second) return "the name " + Quoted(instruction) + " is taken";
  }
  return "";
}

// A new computation has one caller; no other computation has gained or lost one.
std::string TransformVerifier::CheckCallers() const {
  std::unordered_map<int64_t, int32_t> num_callers;
  for (const Instruction& instruction : before_.instructions) {
    for (const int64_t id : instruction.called_computation_ids) --num_callers[id];
  }
  for (const Instruction& instruction : after_.instructions) {
    for (const int64_t id : instruction.called_computation_ids) ++num_callers[id];
  }
  for (const Computation& computation : after_.computations) {
    const auto found = num_callers.find(computation.id);
    const int32_t gained = found == num_callers.end() ? 0 : found->second;
    if (gained != (IsNew(computation) ? 1 : 0)) return "computation '" + computation.name + "' has the wrong number of callers";
  }
  return "";
}

std::string TransformVerifier::CheckEntry() {
  for (const int32_t i : before_.entry_computation().instructions) {
    const Instruction& instruction = before_.instructions[i];
    entry_names_[instruction.name] = &instruction;
  }
  size_t num_originals = 0;
  for (const int32_t i : after_.entry_computation().instructions) {
    const Instruction& instruction = after_.instructions[i];
    if (std::string fault = CheckInstruction(instruction); !fault.empty()) return fault;
    num_originals += !IsNew(instruction);
  }
  if (num_originals != before_.entry_computation().instructions.size()) return "an instruction is missing";
  if (origin_.at(after_.entry_computation().root_id) != before_.entry_computation().root_id) return "the root changed";
  return "";
}

std::string TransformVerifier::CheckInstruction(const Instruction& instruction) {
  const Instruction* original = OriginalOf(instruction);
  if (original == nullptr) return Quoted(instruction) + " is no copy of any instruction";
  if (!SameFieldsButOperands(instruction, *original)) return Quoted(instruction) + " differs from " + Quoted(*original);
  if (instruction.operand_ids.size() != original->operand_ids.size()) return Quoted(instruction) + " has other operands";
  for (size_t k = 0; k < instruction.operand_ids.size(); ++k) {
    // Operands stand before their users, so their origins are known.
    if (origin_.at(instruction.operand_ids[k]) != original->operand_ids[k]) {
      return "operand " + std::to_string(k) + " of " + Quoted(instruction) + " is not what " + Quoted(*original) + " reads";
    }
  }
  origin_[instruction.id] = original->id;
  if (IsNew(instruction)) return CheckClone(instruction, *original);
  const bool is_same = instruction.name == original->name &&
                       instruction.control_predecessor_ids == original->control_predecessor_ids &&
                       instruction.called_computation_ids == original->called_computation_ids;
  return is_same ? "" : Quoted(instruction) + " changed";
}

// By id, or for a clone by the name that it claims.
const Instruction* TransformVerifier::OriginalOf(const Instruction& instruction) const {
  if (!IsNew(instruction)) {
    const Instruction& original = before_.by_id(instruction.id);
    return original.computation == before_.entry ? &original : nullptr;
  }
  const size_t suffix = instruction.name.rfind(kCloneSuffix);
  if (suffix == std::string::npos) return nullptr;
  const auto found = entry_names_.find(std::string_view(instruction.name).substr(0, suffix));
  return found == entry_names_.end() ? nullptr : found->second;
}

std::string TransformVerifier::CheckClone(const Instruction& clone, const Instruction& original) const {
  if (!purity_.MayRunTwice(original)) return Quoted(original) + " must not run twice";
  const auto& called = clone.called_computation_ids;
  if (called.size() != original.called_computation_ids.size()) return Quoted(clone) + " calls something else";
  for (size_t k = 0; k < called.size(); ++k) {
    const Computation& callee = after_.computations[after_.computation_index.at(called[k])];
    const Computation& original_callee = before_.computations[before_.computation_index.at(original.called_computation_ids[k])];
    if (!IsNew(callee) || !SameComputation(callee, original_callee)) return Quoted(clone) + " calls something else";
  }
  return "";
}

// Equal up to ids and names, callees included. (The parser bounds how deeply calls nest, and
// CheckCallers that this visits a clone once.)
bool TransformVerifier::SameComputation(const Computation& clone, const Computation& original) const {
  if (clone.instructions.size() != original.instructions.size() || clone.sequence.size() != original.sequence.size()) return false;
  if (!SameFields(clone.raw, original.raw, IsComparedApart)) return false;
  std::unordered_map<int64_t, int64_t> ids;
  const auto same_ids = [&](const std::vector<int64_t>& of_clone, const std::vector<int64_t>& of_original) {
    return std::ranges::equal(of_clone, of_original, [&](int64_t a, int64_t b) {
      const auto found = ids.find(a);
      return found != ids.end() && found->second == b;
    });
  };
  for (size_t k = 0; k < clone.instructions.size(); ++k) {
    const Instruction& a = after_.instructions[clone.instructions[k]];
    const Instruction& b = before_.instructions[original.instructions[k]];
    if (!IsNew(a) || !SameFieldsButOperands(a, b) || !same_ids(a.operand_ids, b.operand_ids) ||
        !same_ids(a.control_predecessor_ids, b.control_predecessor_ids) ||
        a.called_computation_ids.size() != b.called_computation_ids.size()) {
      return false;
    }
    for (size_t c = 0; c < a.called_computation_ids.size(); ++c) {
      const Computation& callee = after_.computations[after_.computation_index.at(a.called_computation_ids[c])];
      const auto original_callee = before_.computation_index.at(b.called_computation_ids[c]);
      if (!IsNew(callee) || !SameComputation(callee, before_.computations[original_callee])) return false;
    }
    ids[a.id] = b.id;
  }
  return same_ids({clone.root_id}, {original.root_id}) && same_ids(clone.sequence, original.sequence);
}

// What had to run after the original has to run after its clones.
std::string TransformVerifier::CheckControlSuccessors() const {
  std::unordered_set<int64_t> is_over;  // original ids of which a control successor has run
  for (const int64_t id : after_.entry_computation().sequence) {
    const Instruction& instruction = after_.by_id(id);
    if (IsNew(instruction)) {
      if (is_over.contains(origin_.at(id))) return Quoted(instruction) + " runs after a control successor of its original";
      continue;
    }
    is_over.insert(instruction.control_predecessor_ids.begin(), instruction.control_predecessor_ids.end());
  }
  return "";
}

std::string TransformVerifier::CheckEffects() const {
  const auto effects = [&](const HloModule& module) {
    std::vector<int64_t> ids;
    for (const int64_t id : module.entry_computation().sequence) {
      const auto found = before_.instruction_index.find(id);
      if (found != before_.instruction_index.end() && purity_.HasEffects(before_.instructions[found->second])) ids.push_back(id);
    }
    return ids;
  };
  return effects(before_) == effects(after_) ? "" : "instructions with effects changed their order";
}

}  // namespace

std::string VerifyTransform(const HloModule& before, std::string_view after_bytes) {
  std::string error;
  const std::unique_ptr<HloModule> after = ParseHloModule(std::string(after_bytes), &error);
  if (after == nullptr) return error;
  return TransformVerifier(before, *after).Verify();
}

}  // namespace coopjax
