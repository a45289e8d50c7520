#include "verify/effects.h"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

#include "hlo/opcode.h"

namespace coopjax::verify {
namespace {

using Table = std::unordered_map<std::string_view, OpcodeEffects>;

void Add(std::initializer_list<std::string_view> names, OpcodeEffects effects, Table* table) {
  for (const std::string_view name : names) table->emplace(name, effects);
}

// Functions of their operands.
void AddPure(Table* table) {
  const OpcodeEffects pure = {.is_pure = true, .touches_world = false};
  // Number by number, of one operand, of two, of three.
  Add({"abs",
       "acos",
       "acosh",
       "asin",
       "asinh",
       "atan",
       "atanh",
       "bitcast-convert",
       "cbrt",
       "ceil",
       "convert",
       "copy",
       "cosh",
       "cosine",
       "count-leading-zeros",
       "erf",
       "exponential",
       "exponential-minus-one",
       "floor",
       "imag",
       "is-finite",
       "log",
       "log-plus-one",
       "logistic",
       "negate",
       "not",
       "popcnt",
       "real",
       "reduce-precision",
       "round-nearest-afz",
       "round-nearest-even",
       "rsqrt",
       "sign",
       "sine",
       "sinh",
       "sqrt",
       "tan",
       "tanh"},
      pure, table);
  Add({"add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum", "mulhi", "multiply", "or", "power",
       "remainder", "shift-left", "shift-right-arithmetic", "shift-right-logical", "stochastic-convert", "subtract",
       "xor"},
      pure, table);
  Add({"clamp", "select"}, pure, table);
  // Where numbers stand.
  Add({"broadcast", "concatenate", "dynamic-slice", "dynamic-update-slice", "gather", "iota", "pad", "reshape",
       "reverse", "scatter", "slice", "sort", "topk", "transpose"},
      pure, table);
  // Linear algebra, sums and the like.
  Add({"batch-norm-grad", "batch-norm-inference", "batch-norm-training", "cholesky", "convolution", "dot", "fft",
       "ragged-dot", "reduce", "reduce-window", "select-and-scatter", "triangular-solve"},
      pure, table);
  // As pure as what they call.
  Add({"fusion", "map"}, pure, table);
}

// What shows buffers that are there already; the first row is a function of its operands, too.
void AddViews(Table* table) {
  Add({"bitcast", "constant", "get-tuple-element", "parameter", "tuple"},
      {.is_pure = true, .touches_world = false, .does_work = false}, table);
  Add({"add-dependency", "after-all", "domain", "opt-barrier", "optimization-barrier"},
      {.touches_world = false, .does_work = false}, table);
}

// Nobody else notices that it ran, and yet it must not run twice.
void AddQuiet(Table* table) {
  const OpcodeEffects quiet = {.touches_world = false};
  // Run something else, which is asked by itself.
  Add({"async-done", "async-start", "async-update", "call", "conditional", "while"}, quiet, table);
  // Copies under way, and the ends of what was started.
  Add({"all-gather-done", "all-reduce-done", "collective-permute-done", "copy-done", "copy-start"}, quiet, table);
  Add({"custom-call", "partition-id", "replica-id", "rng-bit-generator", "set-dimension-size"}, quiet, table);
}

// XLA:GPU's calls of libraries that give the same bits every time, by what they begin with: cuBLAS's products, what
// cuDNN has for the forward pass. Attention with dropout draws numbers, and backward passes may add in any order.
bool CallsFunction(const hlo::Instruction& instruction) {
  const std::string_view target = instruction.custom_call_target;
  if (instruction.opcode != "custom-call" || target.find("Dropout") != std::string_view::npos ||
      target.find("Backward") != std::string_view::npos) {
    return false;
  }
  return target == "__cublas$gemm" || target.starts_with("__cublas$lt$matmul") || target.starts_with("__cudnn$conv") ||
         target.starts_with("__cudnn$fmha");
}

bool IsInSmallMemory(const hlo::Shape& shape) {
  const bool is_large = shape.memory_space == hlo::kMainMemorySpace || shape.memory_space == hlo::kHostMemorySpace;
  return !is_large || std::ranges::any_of(shape.tuple_shapes, IsInSmallMemory);
}

}  // namespace

OpcodeEffects EffectsOf(std::string_view opcode) {
  static const Table table = [] {
    Table result;
    AddPure(&result);
    AddViews(&result);
    AddQuiet(&result);
    return result;
  }();
  const auto found = table.find(opcode);
  return found == table.end() ? OpcodeEffects{} : found->second;
}

bool TouchesWorld(const hlo::Instruction& instruction) {
  const OpcodeEffects effects = EffectsOf(instruction.opcode);
  if (effects.does_work && IsInSmallMemory(*instruction.shape)) return true;
  return instruction.opcode == "custom-call" ? instruction.custom_call_has_side_effect : effects.touches_world;
}

// One pass: operands and callees come first.
ModuleEffects::ModuleEffects(const hlo::Module& module) : module_(module) {
  facts_.reserve(module.instructions.size());
  std::vector<Facts> computations(module.computations.size());
  for (const hlo::Instruction& instruction : module.instructions) {
    Facts callees;
    for (const int32_t index : instruction.called) {
      const Facts& callee = computations[index];
      callees.is_pure &= callee.is_pure;
      callees.has_effects |= callee.has_effects;
      callees.writes_in_place |= callee.writes_in_place;
    }
    const Facts& facts = facts_.emplace_back(Derive(instruction, callees));
    Facts& own = computations[instruction.computation];
    own.is_pure &= facts.is_pure;
    own.has_effects |= facts.has_effects;
    const bool is_root = instruction.id == module.computations[instruction.computation].root_id;
    if (is_root) own.writes_in_place = facts.writes_in_place;
  }
}

ModuleEffects::Facts ModuleEffects::Derive(const hlo::Instruction& instruction, const Facts& callees) const {
  const hlo::Op op = instruction.info.op;
  const bool is_source = op == hlo::Op::kParameter || op == hlo::Op::kConstant;
  const bool shows_operands = op == hlo::Op::kTuple || op == hlo::Op::kGetTupleElement || op == hlo::Op::kBitcast;
  const bool only_forwards = shows_operands || op == hlo::Op::kOptimizationBarrier || op == hlo::Op::kAddDependency;
  Facts facts;
  facts.writes_in_place = op == hlo::Op::kDynamicUpdateSlice || op == hlo::Op::kScatter ||
                          !instruction.output_operand_aliasing.empty() ||
                          (op == hlo::Op::kFusion && callees.writes_in_place);
  if (shows_operands) {
    for (const int32_t operand : instruction.operands) facts.writes_in_place |= facts_[operand].writes_in_place;
  }
  const bool is_function = EffectsOf(instruction.opcode).is_pure || CallsFunction(instruction);
  facts.is_pure = (is_function || only_forwards || is_source) && callees.is_pure && !instruction.shape->is_token();
  facts.has_effects = callees.has_effects || TouchesWorld(instruction);
  facts.may_run_twice = facts.is_pure && !facts.has_effects && !is_source && (only_forwards || !facts.writes_in_place);
  return facts;
}

}  // namespace coopjax::verify
