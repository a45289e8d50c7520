// How edits become part of an EditableSchedule: steps merged in and taken out, live bytes, keys where room gets short.
#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "planners/moves/editable_schedule.h"

namespace coopjax {

// What was put in and not taken out again, by key; and the steps that were taken out, ascending.
std::vector<EditableSchedule::Edit> EditableSchedule::NetInserts(std::vector<Step>* removed) const {
  std::vector<Edit> inserts;
  for (const Edit& edit : kept_edits_) {
    const Step step = StepAtOrAfter(edit.key);
    if (edit.is_insert) {
      inserts.push_back(edit);
    } else if (step < keys_.num_steps() && keys_[step] == edit.key && schedule_[step] == edit.op) {
      removed->push_back(step);
    } else {
      std::erase_if(inserts, [&edit](const Edit& insert) { return insert.key == edit.key; });
    }
  }
  std::sort(inserts.begin(), inserts.end(), [](const Edit& a, const Edit& b) { return a.key < b.key; });
  std::sort(removed->begin(), removed->end());
  return inserts;
}

// New steps find what is live between their neighbours; what the edits change of that is still to come.
void EditableSchedule::MergeIn(std::span<const Edit> inserts) {
  std::vector<Key> keys;
  std::vector<Step> at;
  std::vector<OpId> ops;
  std::vector<int64_t> live, before;
  for (const Edit& insert : inserts) {
    keys.push_back(insert.key);
    ops.push_back(insert.op);
    at.push_back(StepAtOrAfter(insert.key));
    before.push_back(at.back() < keys_.num_steps() ? live_before_[at.back()] : 0);
    live.push_back(before.back() + program_.op_workspace_bytes[insert.op]);
  }
  MergeSteps<OpId>(at, ops, &schedule_);
  MergeSteps<int64_t>(at, live, &live_bytes_);
  MergeSteps<int64_t>(at, before, &live_before_);
  keys_.Settle(keys);
}

void EditableSchedule::ApplyChanges() {
  const size_t num_steps = schedule_.size();
  std::vector<std::pair<Step, int64_t>> at, before;   // what is added from a step on
  for (const Change& change : kept_changes_) {
    at.push_back({StepAtOrAfter(change.begin), change.bytes});
    at.push_back({StepAtOrAfter(change.end), -change.bytes});
    // What is live right after a step, before the next.
    before.push_back({StepAtOrAfter(change.begin - 1) + 1, change.bytes});
    before.push_back({StepAtOrAfter(change.end - 1) + 1, -change.bytes});
  }
  auto add = [num_steps](std::vector<std::pair<Step, int64_t>>* deltas, std::vector<int64_t>* live) {
    std::sort(deltas->begin(), deltas->end());
    int64_t bytes = 0;
    for (size_t i = 0; i < deltas->size(); ++i) {
      bytes += (*deltas)[i].second;
      if (bytes == 0) continue;
      const size_t end = i + 1 < deltas->size() ? (*deltas)[i + 1].first : num_steps;
      for (size_t t = (*deltas)[i].first; t < std::min(end, num_steps); ++t) (*live)[t] += bytes;
    }
  };
  add(&at, &live_bytes_);
  add(&before, &live_before_);
}

void EditableSchedule::Keep() {
  for (const Edit& edit : edits_) {
    if (edit.is_insert) keys_.Reserve(edit.key);
  }
  kept_edits_.insert(kept_edits_.end(), edits_.begin(), edits_.end());
  kept_changes_.insert(kept_changes_.end(), changes_.begin(), changes_.end());
  edits_.clear();
  changes_.clear();
  changes_before_edit_.clear();
}

void EditableSchedule::Commit() {
  Keep();
  if (kept_edits_.empty()) return;
  CountSteps(std::ssize(schedule_) / 8 + 20 * std::ssize(kept_edits_));
  std::vector<Step> removed;
  const std::vector<Edit> inserts = NetInserts(&removed);
  for (Step& step : removed) {   // to where they are once all is merged in
    const auto is_later = [](Key key, const Edit& edit) { return key < edit.key; };
    step +=
        static_cast<Step>(std::upper_bound(inserts.begin(), inserts.end(), keys_[step], is_later) - inserts.begin());
  }
  MergeIn(inserts);
  ApplyChanges();
  keys_.TakeOut(removed);
  EraseSteps(removed, &schedule_);
  EraseSteps(removed, &live_bytes_);
  EraseSteps(removed, &live_before_);
  Forget();
  keys_.Loosen([this](Step first, std::span<const Key> before) { Rename(first, before); });
}

// The steps from `first` on had the keys `before`.
void EditableSchedule::Rename(Step first, std::span<const Key> before) {
  std::vector<ValueId> values;
  for (Step step = first; step < first + std::ssize(before); ++step) {
    const auto& touched = touches_[schedule_[step]];
    const auto& outputs = program_.op_outputs[schedule_[step]];
    values.insert(values.end(), touched.begin(), touched.end());
    values.insert(values.end(), outputs.begin(), outputs.end());
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  const Key from = before.front(), to = before.back();
  const auto rename = [&](Key* key) {
    if (*key < from || *key > to) return;
    *key = keys_[first + static_cast<Step>(std::lower_bound(before.begin(), before.end(), *key) - before.begin())];
  };
  for (ValueId v : values) {
    auto& reads = reads_[v];
    const auto is_before = [](const Read& read, Key key) { return read.key < key; };
    const auto begin = std::lower_bound(reads.begin(), reads.end(), from, is_before);
    const auto end = std::lower_bound(begin, reads.end(), to + 1, is_before);
    CountSteps(5 * (std::ssize(made_[v]) + (end - begin)));
    for (Made& made : made_[v]) {
      const Key after_read = made.end - made.last_read;
      rename(&made.key);
      rename(&made.last_read);
      made.end = made.last_read + after_read;
    }
    std::for_each(begin, end, [&](Read& read) { rename(&read.key); });
  }
}

// What was edited since the last commit.
void EditableSchedule::Forget() {
  edits_.clear();
  changes_.clear();
  changes_before_edit_.clear();
  kept_edits_.clear();
  kept_changes_.clear();
}

}  // namespace coopjax
