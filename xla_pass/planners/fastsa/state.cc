#include "planners/fastsa/state.h"

#include <algorithm>

namespace coopjax {
namespace {

bool IsUse(const Event* event) { return event != nullptr && event->is_use(); }
bool IsReadableAfter(const Event* event) { return event != nullptr && event->leaves_readable(); }
// The slot after `before`, from which on the next event decides whether the value is live.
Slot After(const Event* before) { return before == nullptr ? 0 : before->slot() + 1; }

}  // namespace

AnnealState::AnnealState(const NodeGraph& nodes, std::span<const NodeId> sequence, int32_t num_slots)
    : nodes_(nodes),
      tree_(num_slots),
      events_(nodes.live_bytes.size()),
      index_at_(num_slots, -1),
      num_runs_(nodes.num_nodes(), 0),
      runs_(nodes.num_nodes()) {
  for (ValueId v = 0; v < static_cast<ValueId>(events_.size()); ++v) {
    if (nodes.is_given[v]) events_[v].Insert(0, Event(kNoSlot, TouchKind::kMake));
  }
  const int64_t length = static_cast<int64_t>(sequence.size());
  for (int64_t i = 1; i <= length; ++i) {
    const Slot slot = static_cast<Slot>(i * num_slots / (length + 1));
    Probe({sequence[i - 1], kNoSlot, slot});
    Apply();
    Commit();
  }
}

std::vector<NodeId> AnnealState::Sequence() const {
  std::vector<Occupied> sorted = occupied_;
  std::sort(sorted.begin(), sorted.end(), [](const Occupied& a, const Occupied& b) { return a.slot < b.slot; });
  std::vector<NodeId> sequence;
  for (const Occupied& occupied : sorted) sequence.push_back(occupied.node);
  return sequence;
}

std::vector<int64_t> AnnealState::LiveBytes() const {
  std::vector<int64_t> live;
  for (Slot slot = 0; slot < num_slots(); ++slot) {
    if (!is_empty(slot)) live.push_back(tree_.At(slot));
  }
  return live;
}

bool AnnealState::Probe(const Mutation& mutation) {
  mutation_ = mutation;
  const NodeId node = mutation.node;
  if (mutation.from == kNoSlot && num_runs_[node] > 0 && !nodes_.may_run_twice[node]) return false;
  if (mutation.to == kNoSlot && num_runs_[node] < 2) return false;
  if (!ProbeControl()) return false;
  changes_.clear();
  givers_.clear();
  for (const Touch& touch : nodes_.touches_of(node)) {
    int32_t taken = -1;
    if (mutation.from != kNoSlot && !ProbeTake(touch, &taken)) return false;
    if (mutation.to != kNoSlot && !ProbePut(touch, taken)) return false;
  }
  ProbeOwnBytes();
  MergeChanges();
  return true;
}

// First runs stay in the order of the control edges.
bool AnnealState::ProbeControl() const {
  const auto before = nodes_.control_before[mutation_.node], after = nodes_.control_after[mutation_.node];
  if (before.empty() && after.empty()) return true;
  Slot first = mutation_.to == kNoSlot ? num_slots() : mutation_.to;
  for (Slot slot : runs_[mutation_.node]) {
    if (slot != mutation_.from) first = std::min(first, slot);
  }
  return std::all_of(before.begin(), before.end(),
                     [&](NodeId other) { return !runs_[other].empty() && runs_[other].front() < first; }) &&
         std::all_of(after.begin(), after.end(),
                     [&](NodeId other) { return runs_[other].empty() || first < runs_[other].front(); });
}

// Takes the node's event out of the list of one value: `taken` becomes its index there.
bool AnnealState::ProbeTake(const Touch& touch, int32_t* taken) {
  const EventList& events = events_[touch.value];
  const int64_t bytes = nodes_.live_bytes[touch.value];
  const Slot from = mutation_.from;
  const int32_t i = *taken = events.LowerBound(from);
  const Event* const before = i > 0 ? &events[i - 1] : nullptr;
  const Event* const after = i + 1 < events.size() ? &events[i + 1] : nullptr;
  if (touch.kind == TouchKind::kMake) {
    if (!IsUse(after)) {
      AddChange(from, from + 1, -bytes);
      return true;
    }
    // The reads that follow must find another production, or this one not far away.
    const bool stays_between = mutation_.to >= After(before) && mutation_.to < after->slot();
    if (!IsReadableAfter(before) && !stays_between) return false;
    AddChange(After(before), from, bytes);
  } else {
    if (IsUse(after)) return true;
    AddChange(After(before), from + (touch.kind == TouchKind::kRead ? 1 : 0), -bytes);
  }
  NoteGiver(touch.value, before);
  return true;
}

// Puts an event into the list of one value, from which that at index `taken` (-1: none) is gone.
bool AnnealState::ProbePut(const Touch& touch, int32_t taken) {
  const EventList& events = events_[touch.value];
  const int64_t bytes = nodes_.live_bytes[touch.value];
  const Slot to = mutation_.to;
  int32_t next = events.LowerBound(to), previous = next - 1;
  if (taken >= 0 && next == taken) ++next;
  if (taken >= 0 && previous == taken) --previous;
  const Event* const before = previous >= 0 ? &events[previous] : nullptr;
  const Event* const after = next < events.size() ? &events[next] : nullptr;
  if (touch.kind == TouchKind::kMake) {
    if (!IsUse(after)) {
      AddChange(to, to + 1, bytes);
      return true;
    }
    AddChange(After(before), to, -bytes);
  } else {
    if (!IsReadableAfter(before)) return false;
    if (IsUse(after)) return touch.kind == TouchKind::kRead;
    AddChange(After(before), to + (touch.kind == TouchKind::kRead ? 1 : 0), bytes);
  }
  NoteGiver(touch.value, before);
  return true;
}

// `reader`, if it reads `v`, starts or ceases to be the last to do so.
void AnnealState::NoteGiver(ValueId v, const Event* reader) {
  if (!nodes_.may_be_shared[v] || reader == nullptr || reader->kind() != TouchKind::kRead) return;
  if (std::find(givers_.begin(), givers_.end(), reader->slot()) == givers_.end()) givers_.push_back(reader->slot());
}

// Workspace and shared bytes at the mutation's slots and at the givers.
void AnnealState::ProbeOwnBytes() {
  own_bytes_.clear();
  if (mutation_.from != kNoSlot) {
    AddChange(mutation_.from, mutation_.from + 1, -occupied_[index_at_[mutation_.from]].own_bytes);
  }
  if (mutation_.to != kNoSlot) {
    const int64_t bytes = OwnBytes(mutation_.node, mutation_.to);
    AddChange(mutation_.to, mutation_.to + 1, bytes);
    own_bytes_.emplace_back(mutation_.to, bytes);
  }
  for (Slot slot : givers_) {
    const Occupied& giver = occupied_[index_at_[slot]];
    const int64_t bytes = OwnBytes(giver.node, slot);
    if (bytes == giver.own_bytes) continue;
    AddChange(slot, slot + 1, bytes - giver.own_bytes);
    own_bytes_.emplace_back(slot, bytes);
  }
}

// As after the mutation: workspace less what sharing saves, each input and output at most once.
int64_t AnnealState::OwnBytes(NodeId node, Slot slot) {
  int64_t bytes = nodes_.workspace_bytes[node];
  const auto shares = nodes_.shares_of(node);
  if (shares.empty()) return bytes;
  settled_.clear();
  for (const MayShare& share : shares) {
    const bool is_settled = std::any_of(settled_.begin(), settled_.end(), [&share](const MayShare* other) {
      return other->input == share.input || other->output == share.output;
    });
    if (is_settled || !DiesAt(share.input, slot)) continue;
    bytes -= nodes_.live_bytes[share.input];
    settled_.push_back(&share);
  }
  return bytes;
}

// Whether no use of `v` follows its read at `slot`, once the mutation is done.
bool AnnealState::DiesAt(ValueId v, Slot slot) const {
  const EventList& events = events_[v];
  int32_t i = events.LowerBound(slot + 1);
  if (mutation_.from != kNoSlot && i < events.size() && events[i].slot() == mutation_.from) ++i;
  const Slot next = i < events.size() ? events[i].slot() : num_slots();
  if (mutation_.to > slot && mutation_.to < next) {
    for (const Touch& touch : nodes_.touches_of(mutation_.node)) {
      if (touch.value == v) return touch.kind == TouchKind::kMake;
    }
  }
  return i == events.size() || !events[i].is_use();
}

// Many changes overlap or share an end (a rotated read changes only the slots between): adds them up.
void AnnealState::MergeChanges() {
  ends_.clear();
  for (const Change& change : changes_) {
    if (change.begin >= change.end || change.bytes == 0) continue;
    ends_.emplace_back(change.begin, change.bytes);
    ends_.emplace_back(change.end, -change.bytes);
  }
  std::sort(ends_.begin(), ends_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  changes_.clear();
  int64_t bytes = 0;
  for (size_t i = 0; i < ends_.size();) {
    const Slot begin = ends_[i].first;
    for (; i < ends_.size() && ends_[i].first == begin; ++i) bytes += ends_[i].second;
    if (bytes == 0) continue;
    if (!changes_.empty() && changes_.back().end == begin && changes_.back().bytes == bytes) {
      changes_.back().end = ends_[i].first;
    } else {
      AddChange(begin, ends_[i].first, bytes);
    }
  }
}

int64_t AnnealState::CostChange() const {
  const int64_t ticks = nodes_.cost_ticks[mutation_.node];
  return (mutation_.from == kNoSlot ? ticks : 0) - (mutation_.to == kNoSlot ? ticks : 0);
}

int64_t AnnealState::PeakAtLeast() {
  if (peak_slot_ == kNoSlot) peak_slot_ = tree_.PeakSlot();
  int64_t bytes = tree_.peak();
  for (const Change& change : changes_) {
    if (change.begin <= peak_slot_ && peak_slot_ < change.end) bytes += change.bytes;
  }
  return bytes;
}

int64_t AnnealState::Apply() {
  for (const Change& change : changes_) tree_.Add(change.begin, change.end, change.bytes);
  return tree_.peak();
}

void AnnealState::Undo() {
  for (const Change& change : changes_) tree_.Add(change.begin, change.end, -change.bytes);
}

void AnnealState::Commit() {
  if (!changes_.empty()) peak_slot_ = kNoSlot;
  MoveEvents();
  MoveRuns();
  MoveOccupied();
  for (const auto& [slot, bytes] : own_bytes_) occupied_[index_at_[slot]].own_bytes = bytes;
  cost_ticks_ += CostChange();
}

void AnnealState::MoveEvents() {
  for (const Touch& touch : nodes_.touches_of(mutation_.node)) {
    EventList& events = events_[touch.value];
    if (mutation_.from != kNoSlot) events.Erase(events.LowerBound(mutation_.from));
    if (mutation_.to != kNoSlot) events.Insert(events.LowerBound(mutation_.to), Event(mutation_.to, touch.kind));
  }
}

void AnnealState::MoveRuns() {
  const NodeId node = mutation_.node;
  num_runs_[node] += (mutation_.from == kNoSlot) - (mutation_.to == kNoSlot);
  if (nodes_.control_before[node].empty() && nodes_.control_after[node].empty()) return;
  std::vector<Slot>& runs = runs_[node];
  if (mutation_.from != kNoSlot) runs.erase(std::lower_bound(runs.begin(), runs.end(), mutation_.from));
  if (mutation_.to != kNoSlot) runs.insert(std::lower_bound(runs.begin(), runs.end(), mutation_.to), mutation_.to);
}

void AnnealState::MoveOccupied() {
  const auto [node, from, to] = mutation_;
  if (from == kNoSlot) {
    index_at_[to] = num_occupied();
    occupied_.push_back({to, node, 0});
    return;
  }
  const int32_t index = index_at_[from];
  if (to == kNoSlot) {
    occupied_[index] = occupied_.back();
    index_at_[occupied_[index].slot] = index;
    occupied_.pop_back();
  } else {
    occupied_[index].slot = to;
    index_at_[to] = index;
  }
  index_at_[from] = -1;
}

}  // namespace coopjax
