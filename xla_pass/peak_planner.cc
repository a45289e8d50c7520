#include "peak_planner.h"

#include <algorithm>
#include <chrono>
#include <queue>

#include "editable_schedule.h"
#include "excess_curve.h"

namespace coopjax {
namespace {

using Clock = std::chrono::steady_clock;

// A gap of a value: it is not read between `last` and `next`.
struct Gap {
  ValueId value = kNoValue;
  Key made = 0;   // the production it belongs to
  Key last = 0;   // read or production before the gap
  Key next = 0;   // read after it
};

struct Score {
  double per_second = 0;   // potential lowered per modelled second; 0: no gain
  double cost_s = 0;
};

class Planner {
 public:
  Planner(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes, const PeakOptions& options)
      : program_(program),
        options_(options),
        schedule_(program, order),
        budget_(budget_bytes),
        curve_(budget_bytes, Unit(), options.exponent > 1),
        deadline_(Clock::now() + std::chrono::microseconds(static_cast<int64_t>(options.time_limit_s * 1e6))),
        version_(program.num_values(), 0),
        in_chain_(program.num_ops(), 0),
        guards_order_(program.num_ops(), 0) {
    double total_cost_s = 0;
    for (double cost_s : program.op_cost_s) total_cost_s += cost_s;
    least_cost_s_ = std::max(1e-12, 1e-6 * total_cost_s);
    for (OpId before : program.op_control.items) guards_order_[before] = 1;
    curve_.Reset(schedule_);
  }

  PeakResult Run() {
    Lower();
    result_.is_feasible = curve_.total() <= 0;
    if (result_.is_feasible && options_.clean_up) CleanUp();
    result_.schedule = schedule_.schedule();
    return std::move(result_);
  }

 private:
  struct Candidate {
    double per_second;
    ValueId value;
    int32_t version;
    bool operator<(const Candidate& other) const {
      return per_second != other.per_second ? per_second < other.per_second : value > other.value;
    }
  };

  int64_t Unit() const {
    const auto& live = schedule_.live_bytes();
    const int64_t peak = live.empty() ? 0 : *std::max_element(live.begin(), live.end());
    return std::max<int64_t>(1, peak - budget_);
  }

  bool OutOfTime() {
    result_.timed_out = result_.timed_out || Clock::now() > deadline_;
    return result_.timed_out;
  }

  void Commit() {
    schedule_.Commit();
    curve_.Reset(schedule_);
  }

  // ---- one move -------------------------------------------------------------------------------

  // Puts into `chain_`, operands first, the ops that must run before `key` so that v can be read there.
  // Dead operands are made again, or kept alive when that is cheaper at the going price per second.
  bool NeedOp(OpId op, Key key, bool keep_dead) {
    if (in_chain_[op]) return true;
    if (!schedule_.may_run_twice(op) || chain_.size() >= kMaxChain) return false;
    in_chain_[op] = 1;
    marked_.push_back(op);
    for (ValueId v : program_.op_inputs[op]) {
      if (!NeedValue(v, key, keep_dead)) return false;
    }
    chain_.push_back(op);
    return true;
  }

  bool NeedValue(ValueId v, Key key, bool keep_dead) {
    const OpId producer = program_.value_producer[v];
    if (producer != kNoOp && in_chain_[producer]) return true;
    const int32_t made = schedule_.ReadableAt(v, key);
    if (made >= 0) {
      if (!program_.takes_budget(v)) return true;
      const auto& production = schedule_.made(v)[made];
      if (production.last_read >= key) return true;
      const double price = curve_.PricePerByte(production.end, key) * static_cast<double>(program_.value_bytes[v]);
      if (keep_dead && price <= going_rate_ * program_.op_cost_s[producer]) return true;
    }
    if (producer == kNoOp) return false;
    const size_t chain_size = chain_.size(), marked_size = marked_.size();
    if (NeedOp(producer, key, keep_dead)) return true;
    chain_.resize(chain_size);
    while (marked_.size() > marked_size) {
      in_chain_[marked_.back()] = 0;
      marked_.pop_back();
    }
    return made >= 0;
  }

  void ClearMarks() {
    for (OpId op : marked_) in_chain_[op] = 0;
    marked_.clear();
  }

  // Takes out occurrences that nobody reads any more: repeats, and first occurrences that a later one
  // replaces. Returns the seconds saved.
  double RemoveIfDead(OpId op, Key key) {
    bool has_other = false;
    for (ValueId w : program_.op_outputs[op]) {
      const int32_t i = MadeAt(w, key);
      if (i < 0 || schedule_.made(w)[i].last_read != key) return 0;
      has_other = schedule_.made(w).size() > 1;
      if (i == 0 && guards_order_[op]) return 0;
    }
    if (!has_other) return 0;
    schedule_.Remove(op, key);
    double saved_s = program_.op_cost_s[op];
    for (ValueId v : program_.op_inputs[op]) {
      const OpId producer = program_.value_producer[v];
      if (producer == kNoOp) continue;
      const auto& made = schedule_.made(v);
      for (int32_t i = static_cast<int32_t>(made.size()) - 1; i >= 0; --i) {
        if (made[i].key > key) continue;
        if (made[i].last_read == made[i].key) saved_s += RemoveIfDead(producer, made[i].key);
        break;
      }
    }
    return saved_s;
  }

  int32_t MadeAt(ValueId v, Key key) const {
    const auto& made = schedule_.made(v);
    for (int32_t i = static_cast<int32_t>(made.size()) - 1; i >= 0; --i) {
      if (made[i].key == key) return i;
    }
    return -1;
  }

  // Later repeats of an op that has just been inserted at `key` go when holding its outputs is cheaper.
  double MergeLater(OpId op, Key key) {
    double saved_s = 0;
    while (true) {
      Key later = 0;
      double price = 0;
      for (ValueId w : program_.op_outputs[op]) {
        const auto& made = schedule_.made(w);
        const int32_t i = MadeAt(w, key);
        if (i + 1 >= static_cast<int32_t>(made.size())) return saved_s;
        later = made[i + 1].key;
        if (made[i + 1].last_read > later) {
          price += curve_.PricePerByte(made[i].end, later) * static_cast<double>(program_.value_bytes[w]);
        }
      }
      if (price > going_rate_ * program_.op_cost_s[op] || !schedule_.CanRemove(op, later)) return saved_s;
      schedule_.Remove(op, later);
      saved_s += program_.op_cost_s[op];
      for (ValueId v : program_.op_inputs[op]) {
        const OpId producer = program_.value_producer[v];
        if (producer == kNoOp) continue;
        const int32_t i = schedule_.ReadableAt(v, later);
        if (i >= 0 && schedule_.made(v)[i].last_read == schedule_.made(v)[i].key) {
          saved_s += RemoveIfDead(producer, schedule_.made(v)[i].key);
        }
      }
    }
  }

  // Applies "drop across the gap, make again before its end" to the schedule; the seconds it adds, or
  // a negative number when it can't be done (the caller undoes).
  bool Apply(const Gap& gap, bool keep_dead, double* cost_s) {
    chain_.clear();
    const bool is_possible = NeedOp(program_.value_producer[gap.value], gap.next, keep_dead);
    ClearMarks();
    if (!is_possible) return false;
    *cost_s = 0;
    Key key = gap.next - static_cast<Key>(chain_.size());
    for (OpId op : chain_) {
      if (!schedule_.CanInsert(op, key)) return false;
      schedule_.Insert(op, key++);
      *cost_s += program_.op_cost_s[op];
    }
    if (options_.merge_repeats) {
      key = gap.next - static_cast<Key>(chain_.size());
      for (OpId op : chain_) *cost_s -= MergeLater(op, key++);
    }
    *cost_s -= RemoveIfDead(program_.value_producer[gap.value], gap.made);
    return true;
  }

  Score Try(const Gap& gap, bool keep_dead) {
    ++result_.counters.trials;
    double cost_s = 0;
    Score score;
    if (Apply(gap, keep_dead, &cost_s)) {
      const double delta = curve_.Delta(schedule_);
      if (delta < -1e-12 * curve_.total()) score = {-delta / std::max(cost_s, least_cost_s_), cost_s};
    }
    schedule_.UndoTo(0);
    return score;
  }

  // The best move for a value, over its gaps and both ways to treat dead operands.
  double BestMove(ValueId v, Gap* best_gap, bool* best_keep) {
    double best = 0;
    if (!program_.takes_budget(v) || !schedule_.may_run_twice(program_.value_producer[v])) return 0;
    const auto& made = schedule_.made(v);
    const auto& reads = schedule_.reads(v);
    size_t next_read = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      Key last = made[i].key;
      while (next_read < reads.size() && (i + 1 == made.size() || reads[next_read].key < made[i + 1].key)) {
        const Gap gap = {v, made[i].key, last, reads[next_read].key};
        last = reads[next_read++].key;
        if (curve_.PricePerByte(gap.last + 1, gap.next) <= 0) continue;
        for (bool keep_dead : {false, true}) {
          const Score score = Try(gap, keep_dead);
          if (score.per_second > best) {
            best = score.per_second;
            *best_gap = gap;
            *best_keep = keep_dead;
          }
        }
      }
    }
    return best;
  }

  // ---- lowering to the budget -----------------------------------------------------------------

  void Push(ValueId v) {
    Gap gap;
    bool keep_dead = false;
    const double per_second = BestMove(v, &gap, &keep_dead);
    ++version_[v];
    if (per_second > 0) queue_.push({per_second, v, version_[v]});
  }

  // Lazy greedy: scores go stale as the curve falls, mostly downwards, so only the top is tried anew.
  void Lower() {
    int64_t moves_before = -1;
    while (curve_.total() > 0 && !OutOfTime()) {
      if (queue_.empty()) {
        if (moves_before == result_.counters.moves) break;
        moves_before = result_.counters.moves;
        for (ValueId v = 0; v < program_.num_values(); ++v) Push(v);
        if (queue_.empty()) break;
      }
      const Candidate top = queue_.top();
      queue_.pop();
      if (top.version != version_[top.value]) continue;
      Gap gap;
      bool keep_dead = false;
      const double per_second = BestMove(top.value, &gap, &keep_dead);
      ++version_[top.value];
      if (per_second <= 0) continue;
      if (!queue_.empty() && per_second < kStaleTolerance * queue_.top().per_second) {
        queue_.push({per_second, top.value, version_[top.value]});
        continue;
      }
      Take(gap, keep_dead, per_second);
    }
  }

  void Take(const Gap& gap, bool keep_dead, double per_second) {
    double cost_s = 0;
    Apply(gap, keep_dead, &cost_s);
    going_rate_ = per_second;
    ++result_.counters.moves;
    std::vector<OpId> edited;
    for (const auto& edit : schedule_.edits()) edited.push_back(edit.op);
    Commit();
    // What was cloned, and what is made from or into it, has other chains now.
    for (OpId op : edited) {
      for (ValueId v : program_.op_inputs[op]) stale_.push_back(v);
      for (ValueId v : program_.op_outputs[op]) stale_.push_back(v);
    }
    std::sort(stale_.begin(), stale_.end());
    stale_.erase(std::unique(stale_.begin(), stale_.end()), stale_.end());
    for (ValueId v : stale_) Push(v);
    stale_.clear();
  }

  // ---- clean-up -------------------------------------------------------------------------------

  void CleanUp() {
    bool is_changed = true;
    while (is_changed && !OutOfTime()) {
      is_changed = false;
      std::vector<std::pair<double, Step>> repeats;
      const Schedule& steps = schedule_.schedule();
      for (Step t = 0; t < static_cast<Step>(steps.size()); ++t) {
        if (schedule_.is_repeat(t)) repeats.push_back({-program_.op_cost_s[steps[t]], t});
      }
      std::sort(repeats.begin(), repeats.end());
      for (const auto& [cost_s, step] : repeats) {
        if (!TryRemove(steps[step], StepKey(step))) continue;
        Commit();
        ++result_.counters.removals;
        is_changed = true;
        break;
      }
    }
  }

  bool TryRemove(OpId op, Key key) {
    ++result_.counters.trials;
    if (!schedule_.CanRemove(op, key)) return false;
    schedule_.Remove(op, key);
    for (ValueId v : program_.op_inputs[op]) {
      const OpId producer = program_.value_producer[v];
      if (producer == kNoOp) continue;
      const int32_t i = schedule_.ReadableAt(v, key);
      if (i >= 0 && schedule_.made(v)[i].last_read == schedule_.made(v)[i].key) {
        RemoveIfDead(producer, schedule_.made(v)[i].key);
      }
    }
    if (curve_.Delta(schedule_) <= 0) return true;
    schedule_.UndoTo(0);
    return false;
  }

  static constexpr size_t kMaxChain = 4096;
  static constexpr double kStaleTolerance = 0.9;

  const StepProgram& program_;
  const PeakOptions options_;
  EditableSchedule schedule_;
  const int64_t budget_;
  ExcessCurve curve_;
  const Clock::time_point deadline_;
  PeakResult result_;
  double least_cost_s_ = 0;
  double going_rate_ = 0;              // potential per second of the last move taken
  std::priority_queue<Candidate> queue_;
  std::vector<int32_t> version_;
  std::vector<OpId> chain_;
  std::vector<uint8_t> in_chain_;
  std::vector<OpId> marked_;
  std::vector<uint8_t> guards_order_;  // is somebody's control predecessor
  std::vector<ValueId> stale_;
};

}  // namespace

PeakResult PlanPeak(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const PeakOptions& options) {
  return Planner(program, order, budget_bytes, options).Run();
}

}  // namespace coopjax
