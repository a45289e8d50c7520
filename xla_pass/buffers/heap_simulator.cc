#include "buffers/heap_simulator.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "buffers/platform.h"
#include "buffers/running_heap.h"
#include "packing/blocks.h"

namespace coopjax {
namespace {

// Replays the definitions and deaths of values in flattened time.
class Simulator {
 public:
  Simulator(const HloAlias& alias, const HloLiveRanges& ranges, const std::vector<uint8_t>& is_in_heap)
      : alias_(alias), graph_(alias.graph()), dataflow_(alias.dataflow()), ranges_(ranges), is_in_heap_(is_in_heap) {
    interval_of_.assign(dataflow_.num_values(), -1);
    first_of_buffer_.assign(alias.num_buffers(), -1);
    extended_.assign(dataflow_.num_values(), 0);
  }

  std::vector<HeapInterval> Run() {
    std::vector<std::vector<int32_t>> defined(ranges_.end_time() + 1);
    freed_.resize(ranges_.end_time() + 1);
    for (const int32_t value : SortedValues()) {
      defined[ranges_.of_value[value].start].push_back(value);
      freed_[ranges_.of_value[value].end].push_back(value);
    }
    for (int32_t time = 0; time <= ranges_.end_time(); ++time) {
      for (const int32_t value : defined[time]) Define(value, time);
      for (const int32_t value : freed_[time]) Free(value);
    }
    return std::move(intervals_);
  }

 private:
  std::vector<int32_t> SortedValues() const {
    std::vector<std::tuple<int32_t, int32_t, int32_t, int32_t>> keys;
    for (int32_t value = 0; value < dataflow_.num_values(); ++value) {
      const HloLiveRange& range = ranges_.of_value[value];
      if (is_in_heap_[value] && range.is_valid()) keys.emplace_back(range.start, range.end, RankOf(value), value);
    }
    std::ranges::sort(keys);
    std::vector<int32_t> values;
    for (const auto& [start, end, rank, value] : keys) values.push_back(value);
    return values;
  }

  void Define(int32_t value, int32_t time) {
    int32_t& first = first_of_buffer_[alias_.buffer_of(value)];
    if (first >= 0) return Allocate(value, interval_of_[first]);
    const int32_t operand = DyingOperand(value, time);
    if (operand >= 0) {
      Free(operand);
      std::erase(freed_[time], operand);
      extended_[operand] = 1;
      return Allocate(value, interval_of_[operand]);
    }
    Allocate(value, -1);
    first = value;
  }

  // An operand, not aliased with anything, that dies right here and whose memory may be taken over.
  int32_t DyingOperand(int32_t value, int32_t time) const {
    const hlo::Node definition = dataflow_.definition(value);
    const int32_t definer = graph_.owner(definition), reader = ranges_.place_of(definer);
    if (alias_.values(alias_.buffer_of(value)).size() > 1 || graph_.op(definer) == hlo::Op::kCopy) return -1;
    for (const int32_t operand : graph_.operands(definer)) {
      const int32_t candidate = dataflow_.value_at(graph_.node_base(operand));
      if (candidate < 0 || alias_.values(alias_.buffer_of(candidate)).size() > 1) continue;
      if (!is_in_heap_[candidate] || extended_[candidate] || ranges_.of_value[candidate].end != time) continue;
      const hlo::Node defined = DefinitionOf(candidate);
      if (!graph_.is_user_of(reader, graph_.owner(defined))) continue;
      const hlo::Node read = reader == definer ? defined : graph_.node_base(operand);
      if (alias_.CanShareOperandBuffer(read, definition)) return candidate;
    }
    return -1;
  }

  // As XLA has it: a plain collective that takes the place of a pair makes what the done shows.
  hlo::Node DefinitionOf(int32_t value) const {
    const int32_t definer = dataflow_.defining_instruction(value);
    if (!ranges_.is_synchronous(definer)) return dataflow_.definition(value);
    return graph_.node_base(ranges_.synchronous[definer].done);
  }

  // What ties go by.
  int32_t RankOf(int32_t value) const {
    const int32_t definer = dataflow_.defining_instruction(value), place = ranges_.place_of(definer);
    return place == definer ? value : dataflow_.value_at(graph_.node_base(place));
  }

  void Allocate(int32_t value, int32_t shared_with) {
    const HloLiveRange& range = ranges_.of_value[value];
    const int64_t bytes = alias_.buffer_bytes(alias_.buffer_of(value));
    interval_of_[value] = static_cast<int32_t>(intervals_.size());
    intervals_.push_back({value, bytes, clock_, -1, shared_with, range.start, range.end, RankOf(value)});
    if (bytes > 0) ++clock_;
  }

  void Free(int32_t value) {
    HeapInterval& interval = intervals_[interval_of_[value]];
    interval.end = clock_;
    if (interval.bytes > 0) ++clock_;
  }

  const HloAlias& alias_;
  const hlo::Graph& graph_;
  const HloDataflow& dataflow_;
  const HloLiveRanges& ranges_;
  const std::vector<uint8_t>& is_in_heap_;
  std::vector<std::vector<int32_t>> freed_;
  std::vector<HeapInterval> intervals_;
  std::vector<int32_t> interval_of_;        // [value]
  std::vector<int32_t> first_of_buffer_;    // [buffer]: the first value that got memory
  std::vector<uint8_t> extended_;           // [value]: another value has taken its memory over
  int32_t clock_ = 0;
};

PackingProblem ProblemOf(const std::vector<HeapInterval>& intervals, int64_t alignment) {
  PackingProblem problem;
  for (const HeapInterval& interval : intervals) {
    problem.buffers.push_back(
        {interval.start, interval.end + 1, interval.bytes, alignment, kAnyOffset, interval.shared_with});
  }
  return problem;
}

// An interval that shares nobody's memory, with the last event of those that share its own.
struct Root {
  int32_t interval = 0;
  int32_t last_end = 0;
};

std::vector<Root> RootsOf(const std::vector<HeapInterval>& intervals) {
  std::vector<Root> roots;
  std::vector<int32_t> root_of(intervals.size());
  for (int32_t k = 0; k < std::ssize(intervals); ++k) {
    const HeapInterval& interval = intervals[k];
    root_of[k] = interval.shared_with < 0 ? static_cast<int32_t>(roots.size()) : root_of[interval.shared_with];
    if (interval.shared_with < 0) roots.push_back({k, interval.end});
    Root& root = roots[root_of[k]];
    root.last_end = std::max(root.last_end, interval.end);
  }
  return roots;
}

// Best fit in the order of `key`.
template <typename Key>
Packing PackByKey(const PackingProblem& problem, std::vector<Root> roots, const Key& key) {
  std::ranges::sort(roots, {}, key);
  std::vector<int32_t> sequence;
  for (const Root& root : roots) sequence.push_back(root.interval);
  return PackInSequence(problem, sequence, FitRule::kBest);
}

// What dies at an event makes room for what comes after it.
Packing PackAsItRuns(const std::vector<HeapInterval>& intervals, std::vector<Root> roots, int64_t alignment) {
  std::ranges::sort(roots, {}, [&](const Root& root) { return intervals[root.interval].start; });
  std::vector<Root> deaths = roots;
  std::ranges::stable_sort(deaths, {}, &Root::last_end);
  Packing packing = {.offsets = std::vector<int64_t>(intervals.size(), 0)};
  RunningHeap heap(alignment);
  auto dead = deaths.begin();
  for (const Root& root : roots) {
    const HeapInterval& interval = intervals[root.interval];
    for (; dead != deaths.end() && dead->last_end < interval.start; ++dead) {
      const int64_t bytes = intervals[dead->interval].bytes;
      if (bytes > 0) heap.Free(packing.offsets[dead->interval], bytes);
    }
    if (interval.bytes > 0) packing.offsets[root.interval] = heap.Allocate(interval.bytes);
  }
  for (size_t k = 0; k < intervals.size(); ++k) {  // an interval shares the memory of an earlier one
    if (intervals[k].shared_with >= 0) packing.offsets[k] = packing.offsets[intervals[k].shared_with];
  }
  packing.heap_bytes = heap.bytes();
  return packing;
}

}  // namespace

std::vector<HeapInterval> SimulateHeap(const HloAlias& alias, const HloLiveRanges& ranges,
                                       const std::vector<uint8_t>& is_in_heap) {
  return Simulator(alias, ranges, is_in_heap).Run();
}

int64_t PeakLiveBytes(const std::vector<HeapInterval>& intervals) {
  return PeakLiveBytes(ProblemOf(intervals, /*alignment=*/1));
}

int64_t LeastHeapBytes(const std::vector<HeapInterval>& intervals, int64_t alignment) {
  return PackingLowerBound(MakePackingBlocks(ProblemOf(intervals, alignment)));
}

Packing PackHeap(const std::vector<HeapInterval>& intervals, const HeapRules& rules) {
  const std::vector<Root> roots = RootsOf(intervals);
  if (rules.packs_as_it_runs) return PackAsItRuns(intervals, roots, rules.alignment);
  const PackingProblem problem = ProblemOf(intervals, rules.alignment);
  Packing by_size = PackByKey(problem, roots, [&](const Root& root) {
    const HeapInterval& interval = intervals[root.interval];
    return std::make_tuple(-interval.bytes, interval.start - interval.end, interval.rank, interval.value);
  });
  Packing by_duration = PackByKey(problem, roots, [&](const Root& root) {
    const HeapInterval& interval = intervals[root.interval];
    return std::make_tuple(interval.start - root.last_end, -interval.bytes, interval.rank, interval.value);
  });
  return by_duration.heap_bytes < by_size.heap_bytes ? by_duration : by_size;
}

}  // namespace coopjax
