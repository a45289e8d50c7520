#include "planners/moves/editable_schedule.h"

#include <algorithm>
#include <iterator>

#include "base/allowance.h"

namespace coopjax {
EditableSchedule::EditableSchedule(const StepProgram& program, std::span<const OpId> schedule)
    : program_(program),
      shares_(program),
      touches_(OpTouchesOfMade(program)),
      schedule_(schedule.begin(), schedule.end()) {
  may_run_twice_.resize(program.num_ops());
  is_in_place_.resize(program.num_ops(), 0);
  is_overwritten_.resize(program.num_values(), 0);
  for (ValueId over : program.value_in_place_of) {
    if (over != kNoValue) is_overwritten_[over] = 1;
  }
  for (OpId op = 0; op < program.num_ops(); ++op) {
    may_run_twice_[op] = MayRunTwice(program, op);
    for (ValueId w : program.op_outputs[op]) is_in_place_[op] |= program.value_in_place_of[w] != kNoValue;
  }
  made_.resize(program.num_values());
  reads_.resize(program.num_values());
  Build();
}

void EditableSchedule::Reset(std::span<const OpId> schedule) {
  schedule_.assign(schedule.begin(), schedule.end());
  Forget();
  Build();
}

void EditableSchedule::Build() {
  CountSteps(3 * (std::ssize(schedule_) + program_.num_values()));
  for (ValueId v = 0; v < program_.num_values(); ++v) {
    made_[v].clear();
    reads_[v].clear();
    if (program_.value_producer[v] == kNoOp) made_[v].push_back({kBeforeAll, kBeforeAll, kBeforeAll});
  }
  keys_.Reset(static_cast<Step>(schedule_.size()));
  for (Step t = 0; t < static_cast<Step>(schedule_.size()); ++t) {
    const OpId op = schedule_[t];
    for (ValueId v : touches_[op]) {
      reads_[v].push_back({StepKey(t), op});
      made_[v].back().last_read = StepKey(t);
    }
    for (ValueId w : program_.op_outputs[op]) made_[w].push_back({StepKey(t), 0, StepKey(t)});
  }
  std::vector<int64_t> change(schedule_.size() + 1, 0), change_before(schedule_.size() + 2, 0);
  for (ValueId v = 0; v < program_.num_values(); ++v) {
    if (!program_.takes_budget(v)) continue;
    for (size_t i = 0; i < made_[v].size(); ++i) {
      Made& made = made_[v][i];
      Key key = 0;
      const OpId reader = LastReader(v, static_cast<int32_t>(i), &key);
      const bool passes_on = reader != kNoOp && (Overwrites(reader, v) || Shares(reader, key, v));
      made.end = made.last_read + (passes_on ? 0 : 1);
      change[made.key >> kKeyBits] += program_.value_bytes[v];
      change[(made.last_read >> kKeyBits) + (passes_on ? 0 : 1)] -= program_.value_bytes[v];
      if (made.last_read > made.key) {
        change_before[(made.key >> kKeyBits) + 1] += program_.value_bytes[v];
        change_before[(made.last_read >> kKeyBits) + 1] -= program_.value_bytes[v];
      }
    }
  }
  live_bytes_.resize(schedule_.size());
  live_before_.resize(schedule_.size());
  int64_t live = 0, before = 0;
  for (Step t = 0; t < static_cast<Step>(schedule_.size()); ++t) {
    live += change[t];
    before += change_before[t];
    live_bytes_[t] = live + program_.op_workspace_bytes[schedule_[t]];
    live_before_[t] = before;
  }
}

bool EditableSchedule::Overwrites(OpId op, ValueId v) const {
  if (!is_in_place_[op]) return false;
  for (ValueId w : program_.op_outputs[op]) {
    if (program_.value_in_place_of[w] == v) return true;
  }
  return false;
}

int32_t EditableSchedule::MadeBefore(ValueId v, Key key) const {
  const auto& made = made_[v];
  int32_t i = static_cast<int32_t>(made.size()) - 1;
  while (i >= 0 && made[i].key >= key) --i;
  return i;
}

int32_t EditableSchedule::MadeAt(ValueId v, Key key) const {
  const int32_t i = MadeBefore(v, key + 1);
  return i >= 0 && made_[v][i].key == key ? i : -1;
}

// The op that reads production `made_index` of v last, and where; kNoOp if nobody does.
OpId EditableSchedule::LastReader(ValueId v, int32_t made_index, Key* key) const {
  const auto& made = made_[v];
  const auto& reads = reads_[v];
  auto after = reads.end();
  if (made_index + 1 < static_cast<int32_t>(made.size())) {
    after = std::lower_bound(reads.begin(), reads.end(), made[made_index + 1].key,
                             [](const Read& read, Key bound) { return read.key < bound; });
  }
  if (after == reads.begin() || (after - 1)->key <= made[made_index].key) return kNoOp;
  *key = (after - 1)->key;
  return (after - 1)->op;
}

bool EditableSchedule::DiesAt(ValueId v, Key key) const {
  const int32_t i = MadeBefore(v, key);
  Key last = 0;
  return i >= 0 && LastReader(v, i, &last) != kNoOp && last == key;
}

// Whether v, which dies at `op` there, leaves its buffer to one of the outputs: first come, first served.
bool EditableSchedule::Shares(OpId op, Key key, ValueId v) const {
  settled_.clear();
  for (const MayShare& share : shares_[op]) {
    const bool is_settled = std::any_of(settled_.begin(), settled_.end(), [&share](const MayShare* other) {
      return other->input == share.input || other->output == share.output;
    });
    if (is_settled || !DiesAt(share.input, key)) continue;
    if (share.input == v) return true;
    settled_.push_back(&share);
  }
  return false;
}

int32_t EditableSchedule::ReadableAt(ValueId v, Key key) const {
  const int32_t i = MadeBefore(v, key);
  if (i < 0 || !is_overwritten_[v]) return i;
  Key last = 0;
  const OpId reader = LastReader(v, i, &last);
  if (reader != kNoOp && last < key && Overwrites(reader, v)) return -1;
  return i;
}

bool EditableSchedule::CanInsert(OpId op, Key key) const {
  for (ValueId v : touches_[op]) {
    const int32_t i = ReadableAt(v, key);
    if (i < 0) return false;
    Key last = 0;
    if (Overwrites(op, v) && LastReader(v, i, &last) != kNoOp && last > key) return false;
  }
  return true;
}

bool EditableSchedule::CanRemove(OpId op, Key key) const {
  for (ValueId w : program_.op_outputs[op]) {
    const int32_t i = MadeBefore(w, key + 1);
    if (made_[w][i].last_read == key) continue;
    if (ReadableAt(w, key) < 0) return false;
  }
  return true;
}

void EditableSchedule::Touch(ValueId v, Key key) {
  if (program_.value_producer[v] == kNoOp && !program_.takes_budget(v)) return;
  const int32_t i = MadeBefore(v, key + 1);
  if (i >= 0) touched_.push_back({v, made_[v][i].key});
}

void EditableSchedule::LogChange(ValueId v, Key begin, Key end, int64_t sign) {
  if (begin < end && program_.takes_budget(v)) changes_.push_back({begin, end, sign * program_.value_bytes[v]});
}

// Brings the ends of touched productions up to date. A death that moved may free or claim a shared
// buffer for the other inputs of the ops concerned; those do not move deaths, so this ends.
void EditableSchedule::Refresh() {
  for (size_t n = 0; n < touched_.size(); ++n) {
    const auto [v, made_key] = touched_[n];
    const int32_t i = MadeBefore(v, made_key + 1);
    if (i < 0 || made_[v][i].key != made_key) continue;
    Made& made = made_[v][i];
    Key last = made.key;
    const OpId reader = LastReader(v, i, &last);
    if (reader != kNoOp && last != made.last_read) {
      for (const MayShare& share : shares_[reader]) {
        if (share.input != v) Touch(share.input, last - 1);
      }
    }
    if (last != made.last_read && made.last_read != made.key) {
      const auto read = std::lower_bound(reads_[v].begin(), reads_[v].end(), made.last_read,
                                         [](const Read& a, Key bound) { return a.key < bound; });
      if (read != reads_[v].end() && read->key == made.last_read) {
        for (const MayShare& share : shares_[read->op]) {
          if (share.input != v) Touch(share.input, made.last_read - 1);
        }
      }
    }
    made.last_read = last;
    const bool passes_on = reader != kNoOp && (Overwrites(reader, v) || Shares(reader, last, v));
    const Key end = last + (passes_on ? 0 : 1);
    if (end > made.end) LogChange(v, made.end, end, +1);
    if (end < made.end) LogChange(v, end, made.end, -1);
    made.end = end;
  }
  touched_.clear();
}

void EditableSchedule::AddOp(OpId op, Key key) {
  for (ValueId v : touches_[op]) {
    auto& reads = reads_[v];
    auto at = reads.end();
    while (at != reads.begin() && (at - 1)->key > key) --at;
    reads.insert(at, {key, op});
    Touch(v, key - 1);
  }
  for (ValueId w : program_.op_outputs[op]) {
    auto& made = made_[w];
    const int32_t i = MadeBefore(w, key);
    made.insert(made.begin() + i + 1, {key, key, key});
    if (i >= 0) touched_.push_back({w, made[i].key});
    touched_.push_back({w, key});
  }
  // Inputs that die here may pass their buffers on, whatever the order they were touched in.
  for (const MayShare& share : shares_[op]) Touch(share.input, key - 1);
  Refresh();
}

void EditableSchedule::DropOp(OpId op, Key key) {
  for (ValueId v : touches_[op]) {
    auto& reads = reads_[v];
    auto at = reads.end() - 1;
    while (at->key != key) --at;
    reads.erase(at);
    Touch(v, key - 1);
  }
  for (ValueId w : program_.op_outputs[op]) {
    auto& made = made_[w];
    const int32_t i = MadeBefore(w, key + 1);
    LogChange(w, made[i].key, made[i].end, -1);
    made.erase(made.begin() + i);
    if (i > 0) Touch(w, made[i - 1].key);
  }
  Refresh();
}

void EditableSchedule::CountEdit(OpId op) const {
  CountSteps(4 + 5 * std::ssize(touches_[op]) + 5 * std::ssize(program_.op_outputs[op]));
}

void EditableSchedule::Insert(OpId op, Key key) {
  CountEdit(op);
  changes_before_edit_.push_back(changes_.size());
  edits_.push_back({op, key, true});
  AddOp(op, key);
}

void EditableSchedule::Remove(OpId op, Key key) {
  CountEdit(op);
  changes_before_edit_.push_back(changes_.size());
  edits_.push_back({op, key, false});
  DropOp(op, key);
}

void EditableSchedule::UndoTo(size_t num_edits) {
  while (edits_.size() > num_edits) {
    const Edit edit = edits_.back();
    const size_t num_changes = changes_before_edit_.back();
    edits_.pop_back();
    changes_before_edit_.pop_back();
    CountEdit(edit.op);
    if (edit.is_insert) {
      DropOp(edit.op, edit.key);
    } else {
      AddOp(edit.op, edit.key);
    }
    changes_.resize(num_changes);
  }
}

// ---- commits ------------------------------------------------------------------------------------

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
