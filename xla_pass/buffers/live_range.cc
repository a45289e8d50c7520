#include "buffers/live_range.h"

#include <algorithm>
#include <tuple>

namespace coopjax {
namespace {

class Calculator {
 public:
  Calculator(const HloAlias& alias, int32_t computation, std::span<const int32_t> sequence)
      : alias_(alias),
        graph_(alias.graph()),
        dataflow_(alias.dataflow()),
        computation_(computation),
        sequence_(sequence) {
    result_.of_value.resize(dataflow_.num_values());
    result_.time.assign(graph_.num_instructions(), -1);
    result_.span.resize(graph_.module().computations.size());
  }

  HloLiveRanges Run() {
    Flatten(graph_.module().entry);
    if (alias_.rules().makes_synchronous) result_.synchronous = FindSynchronous(graph_, result_.sequence);
    for (int32_t value = 0; value < dataflow_.num_values(); ++value) SetRange(value);
    SeparateAliases();
    return std::move(result_);
  }

 private:
  std::span<const int32_t> Sequence(int32_t computation) const {
    return computation == computation_ ? sequence_ : graph_.sequence(computation);
  }
  void Flatten(int32_t computation);
  void SetRange(int32_t value);
  int32_t DefinitionEnd(int32_t instruction) const;
  int32_t LastUse(int32_t value) const;
  void SeparateAliases();

  const HloAlias& alias_;
  const hlo::Graph& graph_;
  const HloDataflow& dataflow_;
  const int32_t computation_;                  // whose sequence is `sequence_`
  const std::span<const int32_t> sequence_;
  HloLiveRanges result_;
};

void Calculator::Flatten(int32_t computation) {
  HloLiveRanges::Span& span = result_.span[computation];
  if (span.start >= 0 || Sequence(computation).empty()) return;
  span.start = result_.end_time();
  for (const int32_t i : Sequence(computation)) {
    const auto called = graph_.called(i);
    if (graph_.op(i) == hlo::Op::kWhile) {
      Flatten(called[1]);
      Flatten(called[0]);
    } else if (graph_.op(i) == hlo::Op::kCall || graph_.op(i) == hlo::Op::kConditional ||
               graph_.op(i) == hlo::Op::kAsyncStart) {
      for (const int32_t callee : called) Flatten(callee);
    }
    result_.time[i] = result_.end_time();
    result_.sequence.push_back(i);
  }
  span.end = result_.end_time();
}

// A computation's result lives to the computation's end; what an asynchronous computation defines, to
// the operation's end.
int32_t Calculator::DefinitionEnd(int32_t instruction) const {
  const int32_t computation = graph_.instruction(instruction).computation;
  int32_t end = graph_.is_root(instruction) ? result_.span[computation].end : result_.time[instruction];
  for (const int32_t caller : graph_.callers(computation)) {
    if (graph_.op(caller) == hlo::Op::kAsyncDone) end = std::max(end, result_.time[caller]);
  }
  return end;
}

int32_t Calculator::LastUse(int32_t value) const {
  int32_t last = -1;
  dataflow_.ForEachUse(value, [&](int32_t user, int32_t, hlo::Node) {
    // Inside a call the uses are seen there. A loop's initial value dies where the body starts.
    if (graph_.op(user) == hlo::Op::kCall && result_.span[graph_.called(user)[0]].start >= 0) return;
    if (graph_.op(user) == hlo::Op::kWhile && result_.span[graph_.called(user)[0]].start >= 0) {
      user = graph_.parameter(graph_.called(user)[0], 0);
    }
    if (result_.is_synchronous(user)) user = result_.synchronous[user].done;
    last = std::max(last, result_.time[user]);
  });
  return last;
}

void Calculator::SetRange(int32_t value) {
  const hlo::Node definition = dataflow_.definition(value);
  const int32_t definer = graph_.owner(definition);
  if (result_.time[definer] < 0) return;
  const bool is_parameter = graph_.op(definer) == hlo::Op::kParameter;
  const int32_t computation = graph_.instruction(definer).computation;
  HloLiveRange& range = result_.of_value[value];
  // A parameter is there from the computation's start, wherever it is scheduled.
  range.start = is_parameter ? result_.span[computation].start : result_.time[definer];
  if (result_.is_synchronous(definer)) range.start = result_.time[result_.synchronous[definer].done];
  range.end = std::max(DefinitionEnd(definer), range.start);
  for (const hlo::Node node : dataflow_.positions(value).subspan(1)) {
    const int32_t holder = graph_.owner(node);
    const int32_t time =
        graph_.is_root(holder) ? result_.span[graph_.instruction(holder).computation].end : result_.time[holder];
    range.end = std::max(range.end, time);
  }
  if (is_parameter && computation == graph_.module().entry && !alias_.is_donated(definition)) {
    range.end = result_.end_time();
  } else {
    range.end = std::max(range.end, LastUse(value));
  }
}

// Values of one buffer follow each other: each ends no later than the next one starts.
void Calculator::SeparateAliases() {
  for (int32_t buffer = 0; buffer < alias_.num_buffers(); ++buffer) {
    if (alias_.values(buffer).size() < 2) continue;
    std::vector<std::tuple<int32_t, int32_t, int32_t>> order;
    for (const int32_t value : alias_.values(buffer)) {
      const HloLiveRange& range = result_.of_value[value];
      if (range.is_valid()) order.emplace_back(range.start, range.end, value);
    }
    std::ranges::sort(order);
    for (size_t k = 0; k + 1 < order.size(); ++k) {
      HloLiveRange& earlier = result_.of_value[std::get<2>(order[k])];
      HloLiveRange& later = result_.of_value[std::get<2>(order[k + 1])];
      later.end = std::max(earlier.end, later.end);
      earlier.end = std::min(earlier.end, later.start);
    }
  }
}

}  // namespace

HloLiveRanges ComputeHloLiveRanges(const HloAlias& alias) {
  const int32_t entry = alias.graph().module().entry;
  return ComputeHloLiveRanges(alias, entry, alias.graph().sequence(entry));
}

HloLiveRanges ComputeHloLiveRanges(const HloAlias& alias, int32_t computation, std::span<const int32_t> sequence) {
  return Calculator(alias, computation, sequence).Run();
}

}  // namespace coopjax
