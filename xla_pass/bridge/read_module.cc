#include "bridge/read_module.h"

#include <utility>
#include <vector>

#include "base/allowance.h"

namespace coopjax {
namespace {

constexpr int64_t kBytesPerStep = 2;      // parsed, and their values followed
constexpr int64_t kStepsPerOp = 300;

// By control: planners move originals else.
void FixOrder(StepProgram* program) {
  std::vector<OpId> before(program->num_ops(), kNoOp);
  for (Step t = 1; t < program->num_ops(); ++t) before[program->schedule[t]] = program->schedule[t - 1];
  program->op_control = {};
  for (const OpId op : before) program->op_control.AddRow({&op, op == kNoOp ? size_t{0} : size_t{1}});
}

}  // namespace

std::optional<ReadModule> ReadBytes(std::string bytes, std::string* error) {
  CountSteps(std::ssize(bytes) / kBytesPerStep);
  ReadModule read = {hlo::ParseModule(std::move(bytes), error), nullptr};
  if (read.module == nullptr) return std::nullopt;
  read.analysis = AnalyzeHlo(*read.module, error);
  if (read.analysis == nullptr) return std::nullopt;
  return read;
}

std::string ProgramReader::Read(const HloAnalysis& analysis, HloProgram* hlo, int32_t computation) const {
  if (std::string error = BuildHloProgram(analysis, roofline, hlo, computation); !error.empty()) return error;
  CountSteps(kStepsPerOp * hlo->program.num_ops());
  for (OpId op = 0; op < hlo->program.num_ops() && !kept_scope.empty(); ++op) {
    if (hlo->op_scopes[op].find(kept_scope) != std::string::npos) hlo->program.op_can_recompute[op] = 0;
  }
  if (keeps_order) FixOrder(&hlo->program);
  return "";
}

}  // namespace coopjax
