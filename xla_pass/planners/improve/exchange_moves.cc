#include "planners/improve/exchange_moves.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/allowance.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTight = 0.9;               // of the budget: steps above have a price
constexpr double kWatched = 0.75;            // of the budget: steps below are not watched
constexpr Step kNumBlocks = 128;
constexpr size_t kMostWatched = 32;
constexpr double kDearestChain = 1.0 / 16;   // of the plan's cost
constexpr double kLongestChain = 8;          // repeats of mean cost, however few there are
constexpr double kRateStep = 8;
constexpr double kLeastRate = 0.1;           // of the median: what gives less per second is not worth a look

double BytesAt(Key key, std::span<const EditableSchedule::Change> changes) {
  int64_t bytes = 0;
  for (const auto& change : changes) {
    if (change.begin <= key && key < change.end) bytes += change.bytes;
  }
  return static_cast<double>(bytes);
}

}  // namespace

ExchangeMoves::ExchangeMoves(const StepProgram& program, int64_t budget_bytes, Effort* effort, MoveCounters* counters)
    : program_(program),
      budget_(budget_bytes),
      effort_(*effort),
      counters_(*counters),
      schedule_(program, program.schedule),
      curve_(budget_bytes, std::max<int64_t>(budget_bytes, 1), /*is_squared=*/false),
      tight_curve_(static_cast<int64_t>(kTight * static_cast<double>(budget_bytes)), 1, /*is_squared=*/false),
      drops_(&schedule_, &tight_curve_) {}

void ExchangeMoves::List(std::span<const OpId> schedule) {
  schedule_.Reset(schedule);
  curve_.Reset(schedule_);
  tight_curve_.Reset(schedule_);
  list_.clear();
  items_.clear();
  changes_.clear();
  Watch();
  if (watched_.empty()) return;
  const double cost_s = CountRecompute(program_, schedule).cost_s;
  const double num_repeats = static_cast<double>(schedule.size()) - program_.num_ops();
  drops_.set_most_cost(cost_s * std::max(kDearestChain, kLongestChain / std::max(num_repeats, 1.0)));
  for (Step t = 0; t < static_cast<Step>(schedule.size()) && !effort_.IsSpent(); ++t) {
    if (schedule_.is_repeat(t) && !program_.op_outputs[schedule[t]].empty()) Try({schedule[t], schedule_.key(t)});
  }
  const double bytes_per_s = BytesPerSecond();
  rate_ = bytes_per_s * tight_curve_.PricePerByte(0, StepKey(static_cast<Step>(schedule.size())));
  least_rate_ = kLeastRate * bytes_per_s;
  for (ValueId v = 0; v < program_.num_values() && !effort_.IsSpent(); ++v) ListDrops(v);
  FindConflicts();
}

// The largest step of every block of steps that comes near the budget; of too many the largest.
void ExchangeMoves::Watch() {
  const auto& live = schedule_.live_bytes();
  const Step num_steps = static_cast<Step>(live.size());
  const Step block = num_steps / kNumBlocks + 1;
  std::vector<Step> tops;
  for (Step begin = 0; begin < num_steps; begin += block) {
    const auto first = live.begin() + begin;
    const Step top =
        static_cast<Step>(std::max_element(first, first + std::min(block, num_steps - begin)) - live.begin());
    if (static_cast<double>(live[top]) > kWatched * static_cast<double>(budget_)) tops.push_back(top);
  }
  std::stable_sort(tops.begin(), tops.end(), [&live](Step a, Step b) { return live[a] > live[b]; });
  if (tops.size() > kMostWatched) tops.resize(kMostWatched);
  std::sort(tops.begin(), tops.end());
  watched_.clear();
  room_.clear();
  for (Step top : tops) {
    watched_.push_back(schedule_.key(top));
    room_.push_back(static_cast<double>(budget_ - live[top]));
  }
}

// What the plan's repeats give per second at the watched steps, in the median.
double ExchangeMoves::BytesPerSecond() const {
  std::vector<double> rates;
  for (const ExchangeItem& item : items_) {
    const double most = *std::max_element(item.bytes.begin(), item.bytes.end());
    if (item.gain_s > 0 && most > 0) rates.push_back(most / item.gain_s);
  }
  if (rates.empty()) return 0;
  const auto middle = rates.begin() + static_cast<int64_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

void ExchangeMoves::ListDrops(ValueId v) {
  if (!program_.takes_budget(v) || !schedule_.may_run_twice(program_.value_producer[v])) return;
  std::vector<Gap> gaps;
  const auto& made = schedule_.made(v);
  const auto& reads = schedule_.reads(v);
  size_t next = 0;
  for (size_t i = 0; i < made.size(); ++i) {
    Key last = made[i].key;
    for (; next < reads.size() && (i + 1 == made.size() || reads[next].key < made[i + 1].key); ++next) {
      const Gap gap = {v, made[i].key, last, reads[next].key};
      if (tight_curve_.PricePerByte(last + 1, gap.next) > 0) gaps.push_back(gap);
      last = reads[next].key;
    }
  }
  for (const Gap& gap : gaps) {
    for (double rate : {0.0, rate_ / kRateStep, rate_, kNever}) {
      const DropMoves::Outcome outcome = Try({kNoOp, 0, gap, rate, /*merges_repeats=*/false});
      if (outcome.is_possible) Try({kNoOp, 0, gap, rate, /*merges_repeats=*/true});
      if (!outcome.met_dead_operand && !outcome.is_too_dear) break;
    }
  }
}

// Carries a move out as uncommitted edits.
DropMoves::Outcome ExchangeMoves::Apply(const Move& move) {
  DropMoves::Outcome outcome;
  if (move.removed != kNoOp) {
    double saved_s = 0;
    outcome.is_possible = schedule_.MadeAt(program_.op_outputs[move.removed][0], move.key) >= 0 &&
                          drops_.TakeOut(move.removed, move.key, &saved_s);
    outcome.cost_s = -saved_s;
    return outcome;
  }
  drops_.set_going_rate(move.rate);
  outcome = drops_.Drop(move.gap, DeadOperands::kAtRate, move.merges_repeats);
  if (outcome.is_possible && move.merges_repeats) outcome.cost_s -= MergeOperands(move.rate);
  return outcome;
}

// What the ops just put in read may serve later reads too, in place of repeats of its own. Returns the seconds saved.
double ExchangeMoves::MergeOperands(double rate) {
  double saved_s = 0;
  const std::vector<EditableSchedule::Edit> edits = schedule_.edits();
  for (const auto& edit : edits) {
    if (!edit.is_insert) continue;
    for (ValueId v : program_.op_inputs[edit.op]) saved_s += MergeOperand(v, edit.key, rate);
  }
  return saved_s;
}

double ExchangeMoves::MergeOperand(ValueId v, Key key, double rate) {
  const int32_t i = schedule_.MadeBefore(v, key);
  const auto& made = schedule_.made(v);
  if (!program_.takes_budget(v) || i < 0 || i + 1 >= static_cast<int32_t>(made.size())) return 0;
  const OpId producer = program_.value_producer[v];
  const double price = tight_curve_.PricePerByte(made[i].end, made[i + 1].key);
  const bool is_free = price <= 0;   // an infinite rate times no seconds is no number
  if (!is_free && price * static_cast<double>(program_.value_bytes[v]) > rate * program_.op_cost_s[producer]) return 0;
  double saved_s = 0;
  return drops_.TakeOut(producer, made[i + 1].key, &saved_s) ? saved_s : 0;
}

// Tries a move; if it can be part of an exchange it is put on the list.
DropMoves::Outcome ExchangeMoves::Try(Move move) {
  ++counters_.trials;
  CountSteps(5);
  const DropMoves::Outcome outcome = Apply(move);
  if (outcome.is_possible) {
    ExchangeItem item = {-outcome.cost_s, {}, {}};
    for (Key key : watched_) item.bytes.push_back(BytesAt(key, schedule_.changes()));
    CountSteps(std::ssize(watched_) * (2 + std::ssize(schedule_.changes())) / 4);
    if (IsWorthwhile(item)) {
      for (const auto& edit : schedule_.edits()) move.ops.push_back(edit.op);
      std::sort(move.ops.begin(), move.ops.end());
      move.ops.erase(std::unique(move.ops.begin(), move.ops.end()), move.ops.end());
      list_.push_back(std::move(move));
      items_.push_back(std::move(item));
      changes_.push_back(schedule_.changes());
    }
  }
  schedule_.UndoTo(0);
  return outcome;
}

// Of the move that has just been applied: it saves seconds, or gives enough bytes for what it costs.
bool ExchangeMoves::IsWorthwhile(const ExchangeItem& item) {
  const double least = least_rate_ * std::max(-item.gain_s, 0.0);
  bool is_useful = item.gain_s > 0, fits = true;
  for (size_t k = 0; k < room_.size(); ++k) {
    is_useful |= item.bytes[k] < 0 && -item.bytes[k] >= least;
    fits &= item.bytes[k] <= room_[k];
  }
  // What fits wherever we look and yet is above the budget is so at steps of its own.
  return is_useful && !(fits && curve_.Delta(schedule_) > 0);
}

// Moves exclude each other when one edits an op that the other edits, or that makes what those of the other read, or
// when both put something at the same place.
void ExchangeMoves::FindConflicts() {
  std::vector<std::vector<int32_t>> editors(program_.num_ops()), users(program_.num_ops());
  std::vector<std::pair<Key, int32_t>> places;
  for (int32_t i = 0; i < static_cast<int32_t>(list_.size()); ++i) {
    for (OpId op : list_[i].ops) {
      editors[op].push_back(i);
      users[op].push_back(i);
      for (ValueId v : program_.op_inputs[op]) {
        if (program_.value_producer[v] != kNoOp) users[program_.value_producer[v]].push_back(i);
      }
    }
    if (list_[i].removed == kNoOp) places.push_back({list_[i].gap.next, i});
  }
  auto conflict = [this](int32_t a, int32_t b) {
    if (a == b) return;
    items_[a].conflicts.push_back(b);
    items_[b].conflicts.push_back(a);
  };
  for (OpId op = 0; op < program_.num_ops(); ++op) {
    CountSteps(1 + 4 * std::ssize(editors[op]) * std::ssize(users[op]));
    for (int32_t a : editors[op]) {
      for (int32_t b : users[op]) conflict(a, b);
    }
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i < places.size(); ++i) {
    for (size_t j = i + 1; j < places.size() && places[j].first == places[i].first; ++j) {
      conflict(places[i].second, places[j].second);
    }
  }
  for (ExchangeItem& item : items_) {
    std::sort(item.conflicts.begin(), item.conflicts.end());
    item.conflicts.erase(std::unique(item.conflicts.begin(), item.conflicts.end()), item.conflicts.end());
  }
}

Schedule ExchangeMoves::CarryOut(const ExchangeChoice& choice) {
  bool is_possible = true;
  for (int32_t i : choice.items) is_possible = is_possible && Apply(list_[i]).is_possible;
  KeepEdited();
  schedule_.UndoTo(0);
  // What one move did may be in the way of another after all.
  return is_possible && CheckSchedule(program_, edited_).empty() ? edited_ : Schedule();
}

// The schedule with its uncommitted edits.
void ExchangeMoves::KeepEdited() {
  const Schedule& plan = schedule_.schedule();
  std::vector<std::pair<Key, OpId>> inserted;
  std::vector<uint8_t> is_removed(plan.size(), 0);
  for (const auto& edit : schedule_.edits()) {
    const Step step = schedule_.StepAtOrAfter(edit.key);
    if (edit.is_insert) {
      inserted.push_back({edit.key, edit.op});
    } else if (edit.key == schedule_.key(step)) {
      is_removed[step] = 1;
    } else {
      std::erase(inserted, std::pair{edit.key, edit.op});
    }
  }
  std::sort(inserted.begin(), inserted.end());
  edited_keys_.clear();
  edited_.clear();
  auto add = [this](Key key, OpId op) {
    edited_keys_.push_back(key);
    edited_.push_back(op);
  };
  auto next = inserted.begin();
  for (Step t = 0; t < static_cast<Step>(plan.size()); ++t) {
    for (; next != inserted.end() && next->first < schedule_.key(t); ++next) add(next->first, next->second);
    if (!is_removed[t]) add(schedule_.key(t), plan[t]);
  }
}

void ExchangeMoves::WatchExcess(const ExchangeChoice& choice) {
  const std::vector<int64_t> live = ComputeLiveness(program_, edited_).live_bytes;
  for (size_t t = 0; t < live.size(); ++t) {
    if (live[t] <= budget_) continue;
    size_t top = t;
    for (; t < live.size() && live[t] > budget_; ++t) top = live[t] > live[top] ? t : top;
    WatchKey(edited_keys_[top], budget_ - live[top], choice);
  }
}

// `free_bytes` are left at `key` once `choice` is carried out.
void ExchangeMoves::WatchKey(Key key, int64_t free_bytes, const ExchangeChoice& choice) {
  double room = static_cast<double>(free_bytes);
  for (const auto& changes : changes_) CountSteps(1 + std::ssize(changes) / 4);
  for (size_t i = 0; i < items_.size(); ++i) items_[i].bytes.push_back(BytesAt(key, changes_[i]));
  for (int32_t i : choice.items) room += items_[i].bytes.back();
  const Key next = schedule_.key(schedule_.StepAtOrAfter(key));
  for (int32_t i : choice.items) {
    // A step that a move puts in counts only together with that move.
    if (next == key || list_[i].removed != kNoOp || list_[i].gap.next != next) continue;
    items_[i].bytes.back() += static_cast<double>(budget_);
    room += static_cast<double>(budget_);
  }
  room_.push_back(room);
}

}  // namespace coopjax
