#include "verify/verify.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hlo/async_distance.h"
#include "hlo/opcode.h"
#include "hlo/wire.h"
#include "verify/buffer_order.h"
#include "verify/effects.h"

namespace coopjax::verify {
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
  hlo::WireReader reader_a(a), reader_b(b);
  hlo::WireField field_a, field_b;
  for (;;) {
    bool has_a = reader_a.Next(&field_a), has_b = reader_b.Next(&field_b);
    while (has_a && is_ignored(field_a.number)) has_a = reader_a.Next(&field_a);
    while (has_b && is_ignored(field_b.number)) has_b = reader_b.Next(&field_b);
    if (!has_a || !has_b) return has_a == has_b && reader_a.ok() && reader_b.ok();
    if (field_a.raw != field_b.raw) return false;
  }
}

bool SameFieldsButOperands(const hlo::Instruction& a, const hlo::Instruction& b) {
  return a.raw == b.raw || SameFields(a.raw, b.raw, IsCloneSpecificField);
}

// Whether `name` is `original`.coop_remat<digits>.
bool IsCloneName(std::string_view name, std::string_view original) {
  if (!name.starts_with(original)) return false;
  name.remove_prefix(original.size());
  if (!name.starts_with(kCloneSuffix) || name.size() == kCloneSuffix.size()) return false;
  name.remove_prefix(kCloneSuffix.size());
  return std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
}

std::string Quoted(const hlo::Instruction& instruction) { return hlo::Quoted(instruction.name); }
std::string Quoted(const hlo::Computation& computation) { return hlo::Quoted(computation.name); }
std::string Taken(std::string_view name) { return "the name " + hlo::Quoted(name) + " is taken"; }

class TransformVerifier {
 public:
  TransformVerifier(const hlo::Module& before, const hlo::Module& after)
      : before_(before), after_(after), effects_(before) {}
  std::string Verify();

 private:
  void FindRunning();
  std::string CheckNames() const;
  std::string CheckCallers() const;
  std::string CheckComputation(int32_t index);
  std::string CheckRewrite(const hlo::Computation& before, const hlo::Computation& after);
  std::string CheckInstruction(int32_t i);
  std::string CheckClone(const hlo::Instruction& clone, const hlo::Instruction& original) const;
  bool SameCalled(const hlo::Instruction& clone, const hlo::Instruction& original) const;
  const hlo::Instruction* OriginalOf(const hlo::Instruction& instruction) const;
  bool SameComputation(const hlo::Computation& clone, const hlo::Computation& original) const;
  std::string CheckControlSuccessors(const hlo::Computation& after) const;
  std::string CheckEffects(const hlo::Computation& before, const hlo::Computation& after) const;

  bool IsNew(const hlo::Instruction& instruction) const { return !before_.instruction_index.contains(instruction.id); }
  bool IsNew(const hlo::Computation& computation) const { return !before_.computation_index.contains(computation.id); }

  const hlo::Module& before_;
  const hlo::Module& after_;
  const verify::ModuleEffects effects_;
  std::vector<uint8_t> is_running_;  // [computation of `before`] the entry, or run by one loop, branch or call
  std::unordered_map<std::string_view, const hlo::Instruction*> names_;  // of the rewritten computation in `before`
  std::vector<int32_t> origin_;      // [instruction of a rewritten computation of `after`] that of `before`
};

std::string TransformVerifier::Verify() {
  if (!SameFields(before_.bytes, after_.bytes, IsRewrittenModuleField)) {
    return "something besides computations and schedule changed";
  }
  if (before_.entry_computation().id != after_.entry_computation().id) return "another computation is the entry";
  FindRunning();
  origin_.assign(after_.instructions.size(), -1);
  std::string fault = CheckNames();
  if (fault.empty()) fault = CheckCallers();
  for (int32_t c = 0; c < std::ssize(before_.computations); ++c) {
    if (fault.empty()) fault = CheckComputation(c);
  }
  if (fault.empty()) fault = hlo::CheckAsyncDistance(before_, after_);
  return fault.empty() ? CheckBufferOrder(after_) : fault;
}

void TransformVerifier::FindRunning() {
  std::vector<int32_t> num_callers(before_.computations.size(), 0);
  for (const hlo::Instruction& instruction : before_.instructions) {
    for (const int32_t callee : instruction.called) ++num_callers[callee];
  }
  is_running_.assign(before_.computations.size(), 0);
  is_running_[before_.entry] = 1;
  for (int32_t c = before_.entry; c >= 0; --c) {  // callers stand behind their callees
    if (!is_running_[c]) continue;
    for (const int32_t i : before_.computations[c].instructions) {
      const hlo::Op op = before_.instructions[i].info.op;
      if (op != hlo::Op::kWhile && op != hlo::Op::kConditional && op != hlo::Op::kCall) continue;
      for (const int32_t callee : before_.instructions[i].called) is_running_[callee] = num_callers[callee] == 1;
    }
  }
}

std::string TransformVerifier::CheckNames() const {
  std::unordered_set<std::string_view> names;
  for (const hlo::Computation& computation : after_.computations) {
    if (IsNew(computation) && !names.insert(computation.name).second) return Taken(computation.name);
  }
  for (const hlo::Instruction& instruction : after_.instructions) {
    if (IsNew(instruction) && !names.insert(instruction.name).second) return Taken(instruction.name);
  }
  if (names.empty()) return "";
  for (const hlo::Computation& computation : before_.computations) {
    if (names.contains(computation.name)) return Taken(computation.name);
  }
  for (const hlo::Instruction& instruction : before_.instructions) {
    if (names.contains(instruction.name)) return Taken(instruction.name);
  }
  return "";
}

// A new computation has one caller; no other computation has gained or lost one.
std::string TransformVerifier::CheckCallers() const {
  const auto num_callers = [](const hlo::Module& module) {
    std::vector<int32_t> result(module.computations.size(), 0);
    for (const hlo::Instruction& instruction : module.instructions) {
      for (const int32_t callee : instruction.called) ++result[callee];
    }
    return result;
  };
  const std::vector<int32_t> num_before = num_callers(before_), num_after = num_callers(after_);
  for (int32_t c = 0; c < std::ssize(after_.computations); ++c) {
    const int32_t original = before_.computation_index.Find(after_.computations[c].id);
    if (num_after[c] != (original < 0 ? 1 : num_before[original])) {
      return "computation " + Quoted(after_.computations[c]) + " has the wrong number of callers";
    }
  }
  return "";
}

// The computation is there, as it was or rewritten. (New ones are compared where they are called.)
std::string TransformVerifier::CheckComputation(int32_t index) {
  const hlo::Computation& before = before_.computations[index];
  const int32_t index_after = after_.computation_index.Find(before.id);
  if (index_after < 0) return "computation " + Quoted(before) + " is missing";
  const hlo::Computation& after = after_.computations[index_after];
  if (before.raw == after.raw && before.sequence == after.sequence) return "";
  const bool may_change =
      is_running_[index] && before.name == after.name && SameFields(before.raw, after.raw, IsComparedApart);
  return may_change ? CheckRewrite(before, after) : "computation " + Quoted(before) + " changed";
}

std::string TransformVerifier::CheckRewrite(const hlo::Computation& before, const hlo::Computation& after) {
  names_.clear();
  for (const int32_t i : before.instructions) names_[before_.instructions[i].name] = &before_.instructions[i];
  size_t num_originals = 0;
  for (const int32_t i : after.instructions) {
    if (std::string fault = CheckInstruction(i); !fault.empty()) return fault;
    num_originals += !IsNew(after_.instructions[i]);
  }
  if (num_originals != before.instructions.size()) return "an instruction is missing";
  if (after.sequence.size() != after.instructions.size()) return Quoted(after) + " has no schedule";
  const int32_t root = after_.instruction_index.Find(after.root_id);
  if (origin_[root] != before_.instruction_index.Find(before.root_id)) return "the root changed";
  std::string fault = CheckControlSuccessors(after);
  return fault.empty() ? CheckEffects(before, after) : fault;
}

std::string TransformVerifier::CheckInstruction(int32_t i) {
  const hlo::Instruction& instruction = after_.instructions[i];
  const hlo::Instruction* original = OriginalOf(instruction);
  if (original == nullptr) return Quoted(instruction) + " is no copy of any instruction";
  if (!SameFieldsButOperands(instruction, *original)) {
    return Quoted(instruction) + " differs from " + Quoted(*original);
  }
  if (instruction.operands.size() != original->operands.size()) {
    return Quoted(instruction) + " has other operands";
  }
  for (size_t k = 0; k < instruction.operands.size(); ++k) {
    // Operands stand before their users, so their origins are known.
    if (origin_[instruction.operands[k]] != original->operands[k]) {
      return "operand " + std::to_string(k) + " of " + Quoted(instruction) + " is not what " + Quoted(*original) +
             " reads";
    }
  }
  origin_[i] = static_cast<int32_t>(original - before_.instructions.data());
  if (IsNew(instruction)) return CheckClone(instruction, *original);
  const bool is_same = instruction.name == original->name &&
                       after_.InstructionIds(instruction.control_predecessors) ==
                           before_.InstructionIds(original->control_predecessors) &&
                       after_.ComputationIds(instruction.called) == before_.ComputationIds(original->called);
  return is_same ? "" : Quoted(instruction) + " changed";
}

// By id, or for a clone by the name that it claims.
const hlo::Instruction* TransformVerifier::OriginalOf(const hlo::Instruction& instruction) const {
  if (!IsNew(instruction)) {
    const hlo::Instruction& original = before_.by_id(instruction.id);
    const auto found = names_.find(original.name);
    return found != names_.end() && found->second == &original ? &original : nullptr;
  }
  const size_t suffix = instruction.name.rfind(kCloneSuffix);
  if (suffix == std::string::npos) return nullptr;
  const auto found = names_.find(instruction.name.substr(0, suffix));
  if (found == names_.end() || !IsCloneName(instruction.name, found->first)) return nullptr;
  return found->second;
}

std::string TransformVerifier::CheckClone(const hlo::Instruction& clone, const hlo::Instruction& original) const {
  if (!effects_.MayRunTwice(original)) return Quoted(original) + " must not run twice";
  return SameCalled(clone, original) ? "" : Quoted(clone) + " calls something else";
}

// Whether a clone calls clones of what its original calls.
bool TransformVerifier::SameCalled(const hlo::Instruction& clone, const hlo::Instruction& original) const {
  return std::ranges::equal(clone.called, original.called, [&](int32_t of_clone, int32_t of_original) {
    const hlo::Computation& callee = after_.computations[of_clone];
    return IsNew(callee) && SameComputation(callee, before_.computations[of_original]);
  });
}

// Equal up to ids and names, callees included. (The parser bounds how deeply calls nest, and
// CheckCallers that this visits a clone once.)
bool TransformVerifier::SameComputation(const hlo::Computation& clone, const hlo::Computation& original) const {
  if (!IsCloneName(clone.name, original.name) || clone.instructions.size() != original.instructions.size() ||
      !SameFields(clone.raw, original.raw, IsComparedApart)) {
    return false;
  }
  // Each instruction stands for the one in its place.
  const auto same_places = [&](std::span<const int32_t> of_clone, std::span<const int32_t> of_original) {
    return std::ranges::equal(of_clone, of_original, [&](int32_t a, int32_t b) {
      return a - clone.instructions.front() == b - original.instructions.front();
    });
  };
  for (size_t k = 0; k < clone.instructions.size(); ++k) {
    const hlo::Instruction& a = after_.instructions[clone.instructions[k]];
    const hlo::Instruction& b = before_.instructions[original.instructions[k]];
    if (!IsNew(a) || !IsCloneName(a.name, b.name) || !SameFieldsButOperands(a, b) || !SameCalled(a, b) ||
        !same_places(a.operands, b.operands) || !same_places(a.control_predecessors, b.control_predecessors)) {
      return false;
    }
  }
  const auto same_ids = [&](std::span<const int64_t> of_clone, std::span<const int64_t> of_original) {
    return std::ranges::equal(of_clone, of_original, [&](int64_t a, int64_t b) {
      return after_.instruction_index.Find(a) - clone.instructions.front() ==
             before_.instruction_index.Find(b) - original.instructions.front();
    });
  };
  return same_ids({&clone.root_id, 1}, {&original.root_id, 1}) && same_ids(clone.sequence, original.sequence);
}

// What had to run after the original has to run after its clones.
std::string TransformVerifier::CheckControlSuccessors(const hlo::Computation& after) const {
  std::unordered_set<int32_t> is_over;  // originals of which a control successor has run
  for (const int64_t id : after.sequence) {
    const int32_t i = after_.instruction_index.Find(id);
    const hlo::Instruction& instruction = after_.instructions[i];
    if (IsNew(instruction)) {
      if (!is_over.contains(origin_[i])) continue;
      return Quoted(instruction) + " runs after a control successor of its original";
    }
    for (const int32_t predecessor : instruction.control_predecessors) is_over.insert(origin_[predecessor]);
  }
  return "";
}

std::string TransformVerifier::CheckEffects(const hlo::Computation& before, const hlo::Computation& after) const {
  const auto effects = [&](const hlo::Computation& computation) {
    std::vector<int64_t> ids;
    for (const int64_t id : computation.sequence) {
      const int32_t i = before_.instruction_index.Find(id);
      if (i >= 0 && effects_.HasEffects(before_.instructions[i])) ids.push_back(id);
    }
    return ids;
  };
  return effects(before) == effects(after) ? "" : "instructions with effects changed their order";
}

}  // namespace

std::string VerifyTransform(const hlo::Module& before, const hlo::Module& after) {
  return TransformVerifier(before, after).Verify();
}

}  // namespace coopjax::verify
