#include "buffers/heap.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/allowance.h"
#include "buffers/heap_simulator.h"
#include "buffers/share.h"
#include "packing/packing.h"

namespace coopjax {
namespace {

constexpr int64_t kStepsPerValue = 30;

struct Allocation {
  int64_t bytes = 0;
  AllocationKind kind = AllocationKind::kTemporary;
  bool is_donated = false;           // a parameter whose buffer an output takes
  bool lives_out = false;
  std::vector<int32_t> values;

  bool is_reusable() const {
    return kind != AllocationKind::kTuple && kind != AllocationKind::kConstant &&
           (kind != AllocationKind::kParameter || is_donated);
  }
  bool is_temporary() const {
    return !lives_out && (kind == AllocationKind::kTemporary || kind == AllocationKind::kTuple);
  }
};

// Step 1: what gets an allocation of its own, what reuses one, and what is left for the heap.
class Assigner {
 public:
  Assigner(const HloAlias& alias, const HloLiveRanges& ranges)
      : alias_(alias), graph_(alias.graph()), dataflow_(alias.dataflow()), rules_(alias.rules()), ranges_(ranges) {
    allocation_of_.assign(dataflow_.num_values(), -1);
    is_in_heap_.assign(dataflow_.num_values(), 0);
  }
  HeapResult Run();

 private:
  void AssignBuffer(int32_t buffer);
  bool AssignFixed(int32_t buffer);
  bool TryOperandAllocations(int32_t value, int32_t buffer);
  bool TryAllocation(int32_t allocation, int32_t buffer);
  bool Interferes(int32_t value, int32_t other) const;
  bool CanFollow(int32_t user, int32_t operand) const;
  bool IsCopyOf(int32_t value, int32_t assigned) const;
  int32_t NewAllocation(int32_t buffer, AllocationKind kind);
  void AddToAllocation(int32_t allocation, int32_t buffer);
  void AssignHeap(HeapResult* result);
  std::vector<int64_t> PlaceTemporaries(HeapResult* result) const;
  int32_t NumThreadLocalAllocations() const;
  int64_t CountedLiveBytes(std::vector<HeapInterval> intervals) const;
  bool IsWrittenInPlace(int32_t value) const;
  int64_t ReportedTempBytes(int64_t temp_bytes, const HeapResult& result) const;
  void AddBuffers(const std::vector<int64_t>& bases, HeapResult* result) const;

  const HloAlias& alias_;
  const hlo::Graph& graph_;
  const HloDataflow& dataflow_;
  const HeapRules& rules_;
  const HloLiveRanges& ranges_;
  std::vector<Allocation> allocations_;
  std::vector<int32_t> reusable_;          // in order of creation, that is of falling size
  std::vector<int32_t> allocation_of_;     // [value]
  std::vector<uint8_t> is_in_heap_;        // [value]
  std::vector<int64_t> heap_offset_;       // [value]
  int32_t heap_allocation_ = -1;
  int64_t least_heap_bytes_ = 0;
  int64_t counted_live_bytes_ = 0;
};

int32_t Assigner::NewAllocation(int32_t buffer, AllocationKind kind) {
  const auto index = static_cast<int32_t>(allocations_.size());
  allocations_.push_back({alias_.buffer_bytes(buffer), kind, false, false, {}});
  AddToAllocation(index, buffer);
  return index;
}

void Assigner::AddToAllocation(int32_t allocation, int32_t buffer) {
  for (const int32_t value : alias_.values(buffer)) {
    allocations_[allocation].values.push_back(value);
    allocation_of_[value] = allocation;
  }
  allocations_[allocation].lives_out |= alias_.lives_out(buffer);
}

// Constants and the entry's parameters are where they are.
bool Assigner::AssignFixed(int32_t buffer) {
  for (const int32_t value : alias_.values(buffer)) {
    const hlo::Node definition = dataflow_.definition(value);
    const int32_t definer = graph_.owner(definition);
    if (graph_.op(definer) == hlo::Op::kConstant) {
      NewAllocation(buffer, AllocationKind::kConstant);
      return true;
    }
    const bool is_entry = graph_.instruction(definer).computation == graph_.module().entry;
    if (graph_.op(definer) != hlo::Op::kParameter || !is_entry) continue;
    const int32_t allocation = NewAllocation(buffer, AllocationKind::kParameter);
    allocations_[allocation].is_donated = alias_.is_donated(definition);
    if (allocations_[allocation].is_donated) reusable_.push_back(allocation);
    return true;
  }
  return false;
}

void Assigner::AssignBuffer(int32_t buffer) {
  if (!alias_.is_in_main_memory(buffer) || AssignFixed(buffer)) return;
  for (const int32_t value : alias_.values(buffer)) {
    if (graph_.shape(dataflow_.definition(value)).is_tuple()) {
      if (!ranges_.is_synchronous(dataflow_.defining_instruction(value))) NewAllocation(buffer, AllocationKind::kTuple);
      return;
    }
    if (TryOperandAllocations(value, buffer)) return;
  }
  // The smallest allocation that fits.
  for (auto allocation = reusable_.rbegin(); allocation != reusable_.rend(); ++allocation) {
    if (TryAllocation(*allocation, buffer)) return;
  }
  if (alias_.lives_out(buffer)) {
    reusable_.push_back(NewAllocation(buffer, AllocationKind::kOutput));
    return;
  }
  for (const int32_t value : alias_.values(buffer)) is_in_heap_[value] = 1;
}

bool Assigner::TryOperandAllocations(int32_t value, int32_t buffer) {
  const hlo::Node definition = dataflow_.definition(value);
  const int32_t definer = graph_.owner(definition);
  if (definition != graph_.node_base(definer)) return false;
  for (const int32_t operand : graph_.operands(definer)) {
    const int32_t operand_value = dataflow_.value_at(graph_.node_base(operand));
    if (operand_value < 0 || allocation_of_[operand_value] < 0) continue;
    if (TryAllocation(allocation_of_[operand_value], buffer)) return true;
  }
  return false;
}

bool Assigner::TryAllocation(int32_t index, int32_t buffer) {
  const Allocation& allocation = allocations_[index];
  const int64_t bytes = alias_.buffer_bytes(buffer);
  if (!rules_.can_reuse_allocations) return false;
  if (!allocation.is_reusable() || bytes > allocation.bytes) return false;
  // An output's buffer outlives the program, so it must not be larger than the output.
  if (alias_.lives_out(buffer) && bytes != allocation.bytes) return false;
  for (const int32_t assigned : allocation.values) {
    for (const int32_t value : alias_.values(buffer)) {
      if (Interferes(value, assigned) || IsCopyOf(value, assigned)) return false;
    }
  }
  AddToAllocation(index, buffer);
  return true;
}

bool Assigner::Interferes(int32_t value, int32_t other) const {
  const HloLiveRange& a = ranges_.of_value[value];
  const HloLiveRange& b = ranges_.of_value[other];
  if (!a.is_valid() || !b.is_valid()) return true;
  if (a.start > b.end || b.start > a.end) return false;
  if (a.end == b.start) return !CanFollow(other, value);
  if (b.end == a.start) return !CanFollow(value, other);
  return true;
}

// Whether `user`, defined where the operand's range ends, may take over the operand's memory.
bool Assigner::CanFollow(int32_t user, int32_t operand) const {
  const hlo::Node definition = dataflow_.definition(user);
  const int32_t definer = graph_.owner(definition);
  return graph_.op(definer) != hlo::Op::kCopy && std::ranges::any_of(dataflow_.positions(operand), [&](hlo::Node node) {
           return graph_.is_user_of(definer, graph_.owner(node)) && alias_.CanShareOperandBuffer(node, definition);
         });
}

bool Assigner::IsCopyOf(int32_t value, int32_t assigned) const {
  const int32_t definer = dataflow_.defining_instruction(value);
  if (graph_.op(definer) != hlo::Op::kCopy) return false;
  return std::ranges::any_of(dataflow_.positions(assigned),
                             [&](hlo::Node node) { return graph_.is_user_of(definer, graph_.owner(node)); });
}

void Assigner::AssignHeap(HeapResult* result) {
  const std::vector<HeapInterval> intervals = SimulateHeap(alias_, ranges_, is_in_heap_);
  const Packing packing = PackHeap(intervals, rules_);
  heap_offset_.assign(dataflow_.num_values(), 0);
  if (intervals.empty()) return;
  heap_allocation_ = static_cast<int32_t>(allocations_.size());
  allocations_.push_back({packing.heap_bytes, AllocationKind::kTemporary, false, false, {}});
  for (size_t k = 0; k < intervals.size(); ++k) {
    allocation_of_[intervals[k].value] = heap_allocation_;
    heap_offset_[intervals[k].value] = packing.offsets[k];
  }
  result->peak_live_bytes = PeakLiveBytes(intervals);
  result->heap_bytes = packing.heap_bytes;
  if (rules_.counts_fragmentation_twice) counted_live_bytes_ = CountedLiveBytes(intervals);
  least_heap_bytes_ = LeastHeapBytes(intervals, rules_.alignment);
}

// XLA gives each value of a reducer, comparator and the like a thread-local allocation.
int32_t Assigner::NumThreadLocalAllocations() const {
  int32_t count = 0;
  for (int32_t c = 0; c < std::ssize(graph_.module().computations); ++c) {
    const auto callers = graph_.callers(c);
    const bool is_fused = std::ranges::any_of(callers, [&](int32_t i) { return graph_.op(i) == hlo::Op::kFusion; });
    if (graph_.is_control_flow(c) || is_fused || callers.empty()) continue;
    for (const int32_t i : graph_.module().computations[c].instructions) {
      if (graph_.op(i) != hlo::Op::kBitcast && graph_.op(i) != hlo::Op::kGetTupleElement) ++count;
    }
  }
  return count;
}

// XLA joins all temporary allocations into one, each at an aligned offset. Their order, which decides
// whose size is not rounded up, is that of a std::partition that moves temporaries to the back.
std::vector<int64_t> Assigner::PlaceTemporaries(HeapResult* result) const {
  std::vector<int32_t> order(allocations_.size());
  std::iota(order.begin(), order.end(), 0);
  order.resize(order.size() + NumThreadLocalAllocations(), -1);
  const auto is_temporary = [&](int32_t a) { return a >= 0 && allocations_[a].is_temporary(); };
  auto first = order.begin(), last = order.end();
  while (true) {
    while (first != last && !is_temporary(*first)) ++first;
    while (first != last && is_temporary(*(last - 1))) --last;
    if (first == last) break;
    std::iter_swap(first++, --last);
  }
  std::vector<int64_t> bases(allocations_.size(), 0);
  for (; first != order.end(); ++first) {
    bases[*first] = RoundUp(result->temp_bytes, rules_.alignment);
    result->temp_bytes = bases[*first] + allocations_[*first].bytes;
    const int64_t least_bytes = *first == heap_allocation_ ? least_heap_bytes_ : allocations_[*first].bytes;
    result->least_temp_bytes = RoundUp(result->least_temp_bytes, rules_.alignment) + least_bytes;
  }
  return bases;
}

// The most that is live for what memory_analysis() takes for fragmentation, see HeapRules.
int64_t Assigner::CountedLiveBytes(std::vector<HeapInterval> intervals) const {
  std::vector<uint8_t> is_filled(intervals.size(), 0);
  for (const HeapInterval& interval : intervals) {
    if (interval.shared_with >= 0 && IsWrittenInPlace(interval.value)) is_filled[interval.shared_with] = 1;
  }
  for (HeapInterval& interval : intervals) {
    if (interval.shared_with >= 0 && is_filled[interval.shared_with]) interval.bytes = 0;
  }
  return PeakLiveBytes(intervals);
}

// By its instruction, a part of an operand.
bool Assigner::IsWrittenInPlace(int32_t value) const {
  const hlo::Node definition = dataflow_.definition(value);
  const int32_t definer = graph_.owner(definition);
  return std::ranges::any_of(InPlacePairs(graph_, definer), [&](const InPlacePair& pair) {
    return graph_.node_base(definer) + pair.output_offset == definition;
  });
}

// What memory_analysis() says of them where that is not their size, see HeapRules.
int64_t Assigner::ReportedTempBytes(int64_t temp_bytes, const HeapResult& result) const {
  if (!rules_.counts_fragmentation_twice) return temp_bytes;
  if (result.heap_bytes == 0) return 0;
  int64_t live_bytes = counted_live_bytes_;
  for (const Allocation& allocation : allocations_) {
    if (allocation.kind == AllocationKind::kTuple && !allocation.lives_out) live_bytes += allocation.bytes;
  }
  return 2 * RoundUp(temp_bytes, rules_.alignment) - live_bytes;
}

void Assigner::AddBuffers(const std::vector<int64_t>& bases, HeapResult* result) const {
  for (int32_t value = 0; value < dataflow_.num_values(); ++value) {
    const int32_t index = allocation_of_[value];
    const HloLiveRange& range = ranges_.of_value[value];
    if (index < 0 || !range.is_valid()) continue;
    const Allocation& allocation = allocations_[index];
    const hlo::Node definition = dataflow_.definition(value);
    AllocationKind kind = allocation.kind;
    if (allocation.lives_out && kind != AllocationKind::kParameter) kind = AllocationKind::kOutput;
    const int64_t offset = bases[index] + (index == heap_allocation_ ? heap_offset_[value] : 0);
    result->buffers.push_back({value, graph_.instruction(graph_.owner(definition)).id, graph_.PathOf(definition),
                               alias_.value_bytes(value), offset, index, kind, range.start, range.end + 1});
  }
}

HeapResult Assigner::Run() {
  HeapResult result;
  CountSteps(kStepsPerValue * dataflow_.num_values());
  if (ranges_.synchronous.empty()) {
    for (const int32_t buffer : alias_.largest_first()) AssignBuffer(buffer);
  } else {
    const auto place_of = [&](int32_t instruction) { return ranges_.place_of(instruction); };
    for (const int32_t buffer : alias_.LargestFirst(place_of)) AssignBuffer(buffer);
  }
  AssignHeap(&result);
  const std::vector<int64_t> bases = PlaceTemporaries(&result);
  result.temp_bytes = ReportedTempBytes(result.temp_bytes, result);
  result.least_temp_bytes = ReportedTempBytes(result.least_temp_bytes, result);
  for (const Allocation& allocation : allocations_) {
    if (allocation.kind == AllocationKind::kParameter) result.argument_bytes += allocation.bytes;
    if (allocation.lives_out) result.output_bytes += allocation.bytes;
    if (allocation.is_donated) result.alias_bytes += allocation.bytes;
  }
  AddBuffers(bases, &result);
  return result;
}

}  // namespace

HeapResult AssignBuffers(const HloAlias& alias, const HloLiveRanges& ranges) { return Assigner(alias, ranges).Run(); }

}  // namespace coopjax
