#include "hlo/async_distance.h"

#include <optional>
#include <string_view>
#include <unordered_map>

#include "hlo/graph.h"
#include "hlo/opcode.h"

namespace coopjax::hlo {
namespace {

constexpr std::string_view kDone = "-done", kUpdate = "async-update";

// `graph` is that of `before`, made for the first pair that is found.
std::string CheckComputation(const Module& before, const Computation& computation, const Computation& now,
                             std::optional<Graph>* graph) {
  std::unordered_map<int64_t, size_t> step;
  for (size_t k = 0; k < now.sequence.size(); ++k) step[now.sequence[k]] = k;
  std::unordered_map<int64_t, size_t> step_before;
  for (size_t k = 0; k < computation.sequence.size(); ++k) {
    const Instruction& done = before.by_id(computation.sequence[k]);
    step_before[done.id] = k;
    const Instruction* start = StartOf(before, done);
    if (start == nullptr) continue;
    if (!*graph) graph->emplace(before);
    for (size_t between = step_before.at(start->id) + 1; between < k; ++between) {
      const Instruction& work = before.by_id(computation.sequence[between]);
      if (IsGlue(work.info.op) || (*graph)->is_dropped(before.instruction_index.Find(work.id))) continue;
      const auto found = step.find(work.id);
      const bool is_between =
          found != step.end() && step.at(start->id) < found->second && found->second < step.at(done.id);
      if (!is_between) return Quoted(work.name) + " has left " + Quoted(start->name) + " and " + Quoted(done.name);
    }
  }
  return "";
}

}  // namespace

const Instruction* StartOf(const Module& module, const Instruction& instruction) {
  if (!instruction.opcode.ends_with(kDone) || instruction.operands.empty()) return nullptr;
  const Instruction* start = &module.instructions[instruction.operands[0]];
  while (start->opcode == kUpdate && !start->operands.empty()) start = &module.instructions[start->operands[0]];
  return IsGlue(start->info.op) ? nullptr : start;
}

std::string CheckAsyncDistance(const Module& before, const Module& after) {
  std::optional<Graph> graph;
  for (const Computation& computation : before.computations) {
    const int32_t index = after.computation_index.Find(computation.id);
    if (index < 0) continue;
    const Computation& now = after.computations[index];
    if (computation.sequence == now.sequence) continue;
    if (std::string fault = CheckComputation(before, computation, now, &graph); !fault.empty()) return fault;
  }
  return "";
}

}  // namespace coopjax::hlo
