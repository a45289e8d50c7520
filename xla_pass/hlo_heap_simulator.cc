// Steps 2 and 3 of hlo_heap.h: the events of the heap, and their packing.
#include <algorithm>
#include <iterator>
#include <tuple>

#include "hlo_heap.h"

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
    std::vector<std::tuple<int32_t, int32_t, int32_t>> keys;
    for (int32_t value = 0; value < dataflow_.num_values(); ++value) {
      const HloLiveRange& range = ranges_.of_value[value];
      if (is_in_heap_[value] && range.is_valid()) keys.emplace_back(range.start, range.end, value);
    }
    std::ranges::sort(keys);
    std::vector<int32_t> values;
    for (const auto& [start, end, value] : keys) values.push_back(value);
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
    const Node definition = dataflow_.definition(value);
    const int32_t definer = graph_.owner(definition);
    if (alias_.values(alias_.buffer_of(value)).size() > 1 || graph_.op(definer) == Op::kCopy) return -1;
    for (const int32_t operand : graph_.operands(definer)) {
      const int32_t candidate = dataflow_.value_at(graph_.node_base(operand));
      if (candidate < 0 || alias_.values(alias_.buffer_of(candidate)).size() > 1) continue;
      if (!is_in_heap_[candidate] || extended_[candidate] || ranges_.of_value[candidate].end != time) continue;
      const Node operand_node = dataflow_.definition(candidate);
      if (!graph_.is_user_of(definer, graph_.owner(operand_node))) continue;
      if (alias_.CanShareOperandBuffer(operand_node, definition)) return candidate;
    }
    return -1;
  }

  void Allocate(int32_t value, int32_t shared_with) {
    const HloLiveRange& range = ranges_.of_value[value];
    const int64_t bytes = alias_.buffer_bytes(alias_.buffer_of(value));
    interval_of_[value] = static_cast<int32_t>(intervals_.size());
    intervals_.push_back({value, bytes, clock_, -1, shared_with, range.start, range.end});
    if (bytes > 0) ++clock_;
  }

  void Free(int32_t value) {
    HeapInterval& interval = intervals_[interval_of_[value]];
    interval.end = clock_;
    if (interval.bytes > 0) ++clock_;
  }

  const HloAlias& alias_;
  const HloGraph& graph_;
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

// The placed intervals, searchable by time: a binary tree over all intervals, which are in order of
// their start, with the latest end of the placed ones below each node.
class PlacedIntervals {
 public:
  explicit PlacedIntervals(const std::vector<HeapInterval>& intervals) : intervals_(intervals) {
    while (width_ < intervals.size()) width_ *= 2;
    latest_end_.assign(2 * width_, -1);
  }

  void Add(size_t k) {
    for (size_t node = k + width_; node >= 1; node /= 2) {
      latest_end_[node] = std::max(latest_end_[node], intervals_[k].end);
    }
  }

  template <typename Visitor>
  void ForEachOverlapping(int32_t start, int32_t end, const Visitor& visit) const {
    const auto by_start = [](int32_t time, const HeapInterval& interval) { return time < interval.start; };
    const auto limit = std::upper_bound(intervals_.begin(), intervals_.end(), end, by_start);
    Visit(1, 0, width_, limit - intervals_.begin(), start, visit);
  }

 private:
  template <typename Visitor>
  void Visit(size_t node, size_t first, size_t width, size_t limit, int32_t start, const Visitor& visit) const {
    if (first >= limit || latest_end_[node] < start) return;
    if (width == 1) return visit(first);
    Visit(2 * node, first, width / 2, limit, start, visit);
    Visit(2 * node + 1, first + width / 2, width / 2, limit, start, visit);
  }

  const std::vector<HeapInterval>& intervals_;
  size_t width_ = 1;
  std::vector<int32_t> latest_end_;
};

// Intervals at one address, placed together: a root and those that share with it.
struct Group {
  std::vector<int32_t> members;  // the root first
  int32_t first_start = 0;
  int32_t last_end = 0;
};

std::vector<Group> GroupsOf(const std::vector<HeapInterval>& intervals) {
  std::vector<Group> groups;
  std::vector<int32_t> group_of(intervals.size());
  for (size_t k = 0; k < intervals.size(); ++k) {
    const HeapInterval& interval = intervals[k];
    if (interval.shared_with < 0) {
      group_of[k] = static_cast<int32_t>(groups.size());
      groups.push_back({{}, interval.start, interval.end});
    } else {
      group_of[k] = group_of[interval.shared_with];
    }
    Group& group = groups[group_of[k]];
    group.members.push_back(static_cast<int32_t>(k));
    group.last_end = std::max(group.last_end, interval.end);
  }
  return groups;
}

// Puts the groups, in the given order, each into the smallest gap that fits, the lowest among equals.
Packing BestFit(const std::vector<HeapInterval>& intervals, const std::vector<const Group*>& order) {
  Packing packing{0, std::vector<int64_t>(intervals.size(), 0)};
  PlacedIntervals placed(intervals);
  std::vector<std::pair<int64_t, int64_t>> used;  // [offset, end)
  for (const Group* group : order) {
    int64_t bytes = 0;
    used.clear();
    for (const int32_t member : group->members) {
      bytes = std::max(bytes, intervals[member].bytes);
      placed.ForEachOverlapping(intervals[member].start, intervals[member].end, [&](size_t k) {
        used.emplace_back(packing.offsets[k], packing.offsets[k] + intervals[k].bytes);
      });
    }
    if (bytes == 0) continue;
    std::ranges::sort(used);
    int64_t gap_start = 0, best = -1, best_size = INT64_MAX;
    for (const auto& [offset, end] : used) {
      const int64_t size = offset - gap_start;
      if (size >= bytes && size < best_size) {
        best = gap_start;
        best_size = size;
      }
      gap_start = std::max(gap_start, (end + kHeapAlignment - 1) / kHeapAlignment * kHeapAlignment);
    }
    if (best < 0) best = gap_start;
    for (const int32_t member : group->members) {
      packing.offsets[member] = best;
      packing.heap_bytes = std::max(packing.heap_bytes, best + intervals[member].bytes);
      placed.Add(member);
    }
  }
  return packing;
}

}  // namespace

std::vector<HeapInterval> SimulateHeap(const HloAlias& alias, const HloLiveRanges& ranges,
                                       const std::vector<uint8_t>& is_in_heap) {
  return Simulator(alias, ranges, is_in_heap).Run();
}

int64_t PeakLiveBytes(const std::vector<HeapInterval>& intervals) {
  std::vector<std::pair<int32_t, int64_t>> changes;  // event, bytes
  for (const Group& group : GroupsOf(intervals)) {
    int32_t covered = -1;
    for (const int32_t member : group.members) {  // by start
      const HeapInterval& interval = intervals[member];
      if (interval.end <= covered) continue;
      changes.emplace_back(std::max(interval.start, covered + 1), interval.bytes);
      changes.emplace_back(interval.end + 1, -interval.bytes);
      covered = interval.end;
    }
  }
  std::ranges::sort(changes);
  int64_t live = 0, peak = 0;
  for (const auto& [event, bytes] : changes) peak = std::max(peak, live += bytes);
  return peak;
}

Packing PackHeap(const std::vector<HeapInterval>& intervals) {
  const std::vector<Group> groups = GroupsOf(intervals);
  std::vector<const Group*> spatial, temporal;
  for (const Group& group : groups) spatial.push_back(&group);
  temporal = spatial;
  const auto root = [&](const Group* group) -> const HeapInterval& { return intervals[group->members[0]]; };
  std::ranges::sort(spatial, {}, [&](const Group* group) {
    return std::make_tuple(-root(group).bytes, root(group).start - root(group).end, root(group).value);
  });
  std::ranges::sort(temporal, {}, [&](const Group* group) {
    return std::make_tuple(group->first_start - group->last_end, -root(group).bytes, root(group).value);
  });
  Packing by_size = BestFit(intervals, spatial);
  Packing by_duration = BestFit(intervals, temporal);
  return by_duration.heap_bytes < by_size.heap_bytes ? by_duration : by_size;
}

}  // namespace coopjax
