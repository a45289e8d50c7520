// What instructions do besides making their results, as the verifier sees it.
//
// The planners ask hlo/opcode.h. This is a table of its own, made from what XLA says of each opcode and not from that
// one, so that an opcode that either misjudges does not pass by both. It lists what is harmless: an opcode that stands
// nowhere has effects and must not run twice. effects_test.cc holds the two tables against each other.
#pragma once

#include <string_view>
#include <vector>

#include "hlo/module.h"

namespace coopjax::verify {

struct OpcodeEffects {
  bool is_pure = false;       // the same operands give the same bits, with no other effect
  bool touches_world = true;  // something besides its operands and its result
  bool does_work = true;      // off: shows what is there already
};

OpcodeEffects EffectsOf(std::string_view opcode);

// The instruction alone, what it calls aside. Custom calls say so themselves; what makes something in one of the
// device's small memories does, because how much of those there is no plan models.
bool TouchesWorld(const hlo::Instruction& instruction);

// What a module's instructions do, callees included.
class ModuleEffects {
 public:
  explicit ModuleEffects(const hlo::Module& module);
  // A pure array operation or a forwarding one, fit to run twice.
  bool MayRunTwice(const hlo::Instruction& instruction) const { return FactsOf(instruction).may_run_twice; }
  // Touches something besides its operands and its result.
  bool HasEffects(const hlo::Instruction& instruction) const { return FactsOf(instruction).has_effects; }

 private:
  // Of an instruction, or of a computation as a whole.
  struct Facts {
    bool is_pure = true;
    bool has_effects = false;
    bool writes_in_place = false;  // the result, or an element of it, is an update of some other array
    bool may_run_twice = false;    // instructions only
  };
  Facts FactsOf(const hlo::Instruction& instruction) const {
    return facts_[&instruction - module_.instructions.data()];
  }
  Facts Derive(const hlo::Instruction& instruction, const Facts& callees) const;

  const hlo::Module& module_;
  std::vector<Facts> facts_;  // [instruction]
};

}  // namespace coopjax::verify
