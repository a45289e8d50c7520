// The whole transform: a module is read, planned or shuffled, rewritten, and the outcome judged.
//
// An input is a module, mutated field by field; a field that no module has seeds everything that is
// chosen here. What the verifier accepts must compute what the module did, by
// SymbolicRun, whether the schedule came from a planner or is a random one that breaks rules, and
// whether or not the rewritten bytes were damaged on the way.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/hlo_program.h"
#include "bridge/transform.h"
#include "buffers/analysis.h"
#include "buffers/heap.h"
#include "fuzz/proto_mutator.h"
#include "fuzz/symbolic_run.h"
#include "hlo/module.h"
#include "hlo/wire.h"
#include "planners/coop/planner.h"
#include "planners/peak/planner.h"
#include "program/liveness.h"
#include "verify/verify.h"

using namespace coopjax;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr uint32_t kSeedField = 100000;
constexpr int32_t kMaxPlannedOps = 400;  // planners are for small programs here: executions per second count

uint64_t SeedOf(std::string_view input) {
  hlo::WireReader reader(input);
  hlo::WireField field;
  uint64_t seed = 0;
  while (reader.Next(&field)) {
    if (field.number == kSeedField) seed = field.value;
  }
  return seed;
}

std::string WithSeed(std::string_view input, uint64_t seed) {
  hlo::WireReader reader(input);
  hlo::WireField field;
  std::string out;
  while (reader.Next(&field)) {
    if (field.number != kSeedField) out.append(field.raw);
  }
  hlo::AppendVarintField(kSeedField, seed, &out);
  return out;
}

// Ops repeated somewhere after they ran: data is there, but a buffer that is read again may be gone.
Schedule WithLateRepeats(const StepProgram& program, std::mt19937_64& random) {
  Schedule schedule = program.schedule;
  const size_t num_repeats = 1 + random() % 4;
  for (size_t k = 0; k < num_repeats && !schedule.empty(); ++k) {
    const size_t from = random() % schedule.size();
    const OpId op = schedule[from];
    if (!program.op_can_recompute[op] && random() % 8 != 0) continue;
    schedule.insert(schedule.begin() + from + 1 + random() % (schedule.size() - from), op);
  }
  return schedule;
}

// Ops moved and repeated, mostly where no rule forbids it.
Schedule Shuffled(const StepProgram& program, std::mt19937_64& random) {
  Schedule schedule = program.schedule;
  const size_t num_edits = 1 + random() % 8;
  for (size_t k = 0; k < num_edits && !schedule.empty(); ++k) {
    Schedule changed = schedule;
    const size_t from = random() % changed.size(), to = random() % changed.size();
    const OpId op = changed[from];
    if (random() % 2 == 0) changed.erase(changed.begin() + from);
    changed.insert(changed.begin() + std::min(to, changed.size()), op);
    if (random() % 16 == 0 || CheckSchedule(program, changed).empty()) schedule = std::move(changed);
  }
  return schedule;
}

Schedule Planned(const StepProgram& program, std::mt19937_64& random) {
  const int64_t peak_bytes = ComputeLiveness(program, program.schedule).peak_bytes;
  const int64_t budget_bytes = peak_bytes / 100 * (10 + random() % 90);
  if (random() % 2 == 0) {
    PeakOptions options;
    options.num_price_rounds = 4;
    options.max_trials = 2000;
    return PlanPeak(program, program.schedule, budget_bytes, options).schedule;
  }
  return PlanCoop(program, program.schedule, budget_bytes, CoopOptions()).schedule;
}

void CheckAccepted(const hlo::Module& before, const HloAnalysis& analysis, std::string bytes) {
  std::string error;
  const std::unique_ptr<hlo::Module> after = hlo::ParseModule(std::move(bytes), &error);
  if (after == nullptr || !verify::VerifyTransform(before, *after).empty()) return;
  const std::unique_ptr<const HloAnalysis> after_analysis = AnalyzeHlo(*after, &error);
  if (after_analysis == nullptr) std::abort();
  AssignBuffers(*after_analysis->alias, after_analysis->ranges);
  if (!fuzz::IsSame(fuzz::SymbolicRun(analysis), fuzz::SymbolicRun(*after_analysis))) std::abort();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::mt19937_64 random(seed);
  if (random() % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string module = random() % 2 == 0 ? fuzz::MutateMessage(input, random) : WithSeed(input, random());
  return module.copy(reinterpret_cast<char*>(data), max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::mt19937_64 random(SeedOf(input));
  std::string error;
  const std::unique_ptr<hlo::Module> module = hlo::ParseModule(std::string(input), &error);
  if (module == nullptr) return 0;
  const std::unique_ptr<const HloAnalysis> analysis = AnalyzeHlo(*module, &error);
  HloProgram hlo;
  if (analysis == nullptr || !BuildHloProgram(*analysis, Roofline{1e11, 1e10, 1e10, 1e-6}, &hlo).empty()) return 0;
  const StepProgram& program = hlo.program;
  if (!CheckSchedule(program, program.schedule).empty()) return 0;
  const bool is_planned = random() % 8 == 0 && program.schedule.size() <= kMaxPlannedOps;
  const bool is_late = random() % 2 == 0;
  const Schedule schedule = is_planned ? Planned(program, random)
                            : is_late  ? WithLateRepeats(program, random)
                                       : Shuffled(program, random);
  const TransformResult result = ApplySchedule(*module, hlo.op_instruction_ids, schedule);
  if (is_planned && !result.error.empty()) std::abort();
  if (!result.error.empty()) return 0;
  CheckAccepted(*module, *analysis, result.bytes);
  CheckAccepted(*module, *analysis, fuzz::MutateMessage(result.bytes, random));
  return 0;
}
