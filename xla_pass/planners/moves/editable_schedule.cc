#include "planners/moves/editable_schedule.h"

#include <algorithm>
#include <iterator>

#include "base/allowance.h"

namespace coopjax {
namespace {

// Between neighbours; a row of new keys between them is still no closer than every other one.
constexpr Key kLeastRoom = 2 * (EditableSchedule::kMostInARow + 1);

template <typename T>
void Erase(std::span<const Step> steps, std::vector<T>* of_steps) {
  auto out = of_steps->begin() + steps[0];
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto end = i + 1 < steps.size() ? of_steps->begin() + steps[i + 1] : of_steps->end();
    out = std::copy(of_steps->begin() + steps[i] + 1, end, out);
  }
  of_steps->erase(out, of_steps->end());
}

// What ops touch, but for what is there anyway, such as a weight that every step reads.
Csr Touches(const StepProgram& program) {
  std::vector<uint8_t> is_tracked(program.num_values());
  for (ValueId v = 0; v < program.num_values(); ++v) {
    is_tracked[v] |= program.value_producer[v] != kNoOp || program.takes_budget(v);
    if (program.value_in_place_of[v] != kNoValue) is_tracked[program.value_in_place_of[v]] = 1;
  }
  Csr touches = OpTouches(program), tracked;
  std::vector<ValueId> row;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    row.clear();
    std::ranges::copy_if(touches[op], std::back_inserter(row), [&](ValueId v) { return is_tracked[v]; });
    tracked.AddRow(row);
  }
  return tracked;
}

}  // namespace

EditableSchedule::EditableSchedule(const StepProgram& program, std::span<const OpId> schedule)
    : program_(program), shares_(program), touches_(Touches(program)), schedule_(schedule.begin(), schedule.end()) {
  may_run_twice_.resize(program.num_ops());
  is_in_place_.resize(program.num_ops(), 0);
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
  keys_.resize(schedule_.size());
  first_at_.resize(schedule_.size() + 1);
  for (Step t = 0; t < static_cast<Step>(schedule_.size()); ++t) {
    const OpId op = schedule_[t];
    keys_[t] = StepKey(t);
    first_at_[t] = t;
    for (ValueId v : touches_[op]) {
      reads_[v].push_back({StepKey(t), op});
      made_[v].back().last_read = StepKey(t);
    }
    for (ValueId w : program_.op_outputs[op]) made_[w].push_back({StepKey(t), 0, StepKey(t)});
  }
  first_at_.back() = static_cast<Step>(schedule_.size());
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
  if (i < 0) return -1;
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

void EditableSchedule::IndexKeys() {
  Step t = 0;
  for (size_t r = 0; r < first_at_.size(); ++r) {
    while (t < static_cast<Step>(keys_.size()) && keys_[t] < StepKey(static_cast<Step>(r))) ++t;
    first_at_[r] = t;
  }
}

Step EditableSchedule::StepAtOrAfter(Key key) const {
  if (key <= 0) return 0;
  const size_t r = static_cast<size_t>(key >> kKeyBits);
  if (r + 1 >= first_at_.size()) return static_cast<Step>(keys_.size());
  const auto begin = keys_.begin() + first_at_[r], end = keys_.begin() + first_at_[r + 1];
  return static_cast<Step>(std::lower_bound(begin, end, key) - keys_.begin());
}

// The last key before `key`, and the first after it, of what is committed or kept.
Key EditableSchedule::KeyBefore(Key key) const {
  const Step step = StepAtOrAfter(key);
  const Key committed = step > 0 ? keys_[step - 1] : StepKey(-1);
  const auto kept = std::lower_bound(kept_keys_.begin(), kept_keys_.end(), key);
  return kept == kept_keys_.begin() ? committed : std::max(committed, *(kept - 1));
}

Key EditableSchedule::KeyAfter(Key key) const {
  const Step step = StepAtOrAfter(key + 1);
  const Key committed =
      step < static_cast<Step>(keys_.size()) ? keys_[step] : StepKey(static_cast<Step>(first_at_.size()));
  const auto kept = std::upper_bound(kept_keys_.begin(), kept_keys_.end(), key);
  return kept == kept_keys_.end() ? committed : std::min(committed, *kept);
}

EditableSchedule::FreeKeys EditableSchedule::KeysBefore(Key step_key, size_t count) const {
  const Key stride = (step_key - KeyBefore(step_key)) / static_cast<Key>(count + 1);
  return {step_key - static_cast<Key>(count) * stride, stride};
}

// What was put in and not taken out again, by key; and the steps that were taken out, ascending.
std::vector<EditableSchedule::Edit> EditableSchedule::NetInserts(std::vector<Step>* removed) const {
  std::vector<Edit> inserts;
  for (const Edit& edit : kept_edits_) {
    const Step step = StepAtOrAfter(edit.key);
    if (edit.is_insert) {
      inserts.push_back(edit);
    } else if (step < static_cast<Step>(keys_.size()) && keys_[step] == edit.key && schedule_[step] == edit.op) {
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
  Step end = static_cast<Step>(schedule_.size());   // of the steps not yet moved up
  Step at = end + static_cast<Step>(inserts.size());
  for (auto* of_steps : {&live_bytes_, &live_before_}) of_steps->resize(at);
  schedule_.resize(at);
  keys_.resize(at);
  for (size_t i = inserts.size(); i-- > 0;) {
    for (; end > 0 && keys_[end - 1] > inserts[i].key; --end) {
      --at;
      schedule_[at] = schedule_[end - 1];
      keys_[at] = keys_[end - 1];
      live_bytes_[at] = live_bytes_[end - 1];
      live_before_[at] = live_before_[end - 1];
    }
    const int64_t live = live_before_[at];   // of the step after it
    --at;
    schedule_[at] = inserts[i].op;
    keys_[at] = inserts[i].key;
    live_before_[at] = live;
    live_bytes_[at] = live + program_.op_workspace_bytes[inserts[i].op];
  }
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

void EditableSchedule::TakeOut(std::span<const Step> removed) {
  Erase(removed, &schedule_);
  Erase(removed, &keys_);
  Erase(removed, &live_bytes_);
  Erase(removed, &live_before_);
}

void EditableSchedule::Keep() {
  for (const Edit& edit : edits_) {
    if (edit.is_insert) kept_keys_.insert(std::upper_bound(kept_keys_.begin(), kept_keys_.end(), edit.key), edit.key);
  }
  for (const Edit& edit : edits_) {
    if (!edit.is_insert) continue;
    is_tight_ |= edit.key - KeyBefore(edit.key) < kLeastRoom || KeyAfter(edit.key) - edit.key < kLeastRoom;
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
  std::vector<Step> removed;
  const std::vector<Edit> inserts = NetInserts(&removed);
  CountSteps(std::ssize(schedule_) / 8 + 20 * std::ssize(kept_edits_));
  if (!inserts.empty()) {
    for (Step& step : removed) {
      step += static_cast<Step>(std::lower_bound(inserts.begin(), inserts.end(), keys_[step],
                                                 [](const Edit& edit, Key key) { return edit.key < key; }) -
                                inserts.begin());
    }
    MergeIn(inserts);
    IndexKeys();
  }
  ApplyChanges();
  if (!removed.empty()) {
    TakeOut(removed);
    IndexKeys();
  }
  const bool is_tight = is_tight_;
  Forget();
  if (is_tight) Build();
}

// What was edited since the last commit.
void EditableSchedule::Forget() {
  edits_.clear();
  changes_.clear();
  changes_before_edit_.clear();
  kept_edits_.clear();
  kept_changes_.clear();
  kept_keys_.clear();
  is_tight_ = false;
}

}  // namespace coopjax
