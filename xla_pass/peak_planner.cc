#include "peak_planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

#include "drop_moves.h"
#include "editable_schedule.h"
#include "excess_curve.h"
#include "hold_cut.h"
#include "liveness.h"

namespace coopjax {
namespace {

using Clock = std::chrono::steady_clock;

// Ends the search after so many trials, or by the clock.
struct Effort {
  const PeakCounters* counters;
  int64_t max_trials;
  Clock::time_point deadline;
  bool is_out_of_time = false;

  bool IsSpent() {
    is_out_of_time = is_out_of_time || Clock::now() > deadline;
    return is_out_of_time || counters->trials >= max_trials;
  }
};

struct Move {
  Gap gap;
  DeadOperands dead = DeadOperands::kRemake;
  double per_second = 0;   // potential lowered per modelled second; 0: no gain
  double cost_s = 0;
};

// Lowers one schedule to the budget and cleans it up.
class Lowering {
 public:
  Lowering(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes, const PeakOptions& options,
           Effort* effort, PeakCounters* counters)
      : program_(program),
        options_(options),
        schedule_(program, start),
        curve_(budget_bytes, Unit(budget_bytes), options.exponent > 1),
        moves_(&schedule_, &curve_),
        effort_(*effort),
        counters_(*counters),
        version_(program.num_values(), 0),
        is_queued_(program.num_values(), 0) {
    const double total_s = std::accumulate(program.op_cost_s.begin(), program.op_cost_s.end(), 0.0);
    least_cost_s_ = std::max(1e-12, 1e-6 * total_s);
    curve_.Reset(schedule_);
  }

  const Schedule& schedule() const { return schedule_.schedule(); }
  bool is_feasible() const { return curve_.total() <= 0; }

  // Takes moves until nothing is above the budget, no move helps, or they have cost `cost_limit_s`.
  // Scores go stale as the curve falls, mostly downwards, so only the top one is tried anew.
  void Lower(double cost_limit_s) {
    double spent_s = 0;
    int64_t moves_before = -1;
    queue_ = {};
    while (curve_.total() > 0 && spent_s < cost_limit_s && !effort_.IsSpent()) {
      if (queue_.empty()) {
        if (moves_before == counters_.moves) break;
        moves_before = counters_.moves;
        for (ValueId v = 0; v < program_.num_values(); ++v) Push(v);
        if (queue_.empty()) break;
      }
      const Candidate top = queue_.top();
      queue_.pop();
      if (top.version != version_[top.value]) continue;
      const Move move = BestMove(top.value);
      ++version_[top.value];
      is_queued_[top.value] = 0;
      if (move.per_second <= 0) continue;
      if (!queue_.empty() && move.per_second < kStaleTolerance * queue_.top().per_second) {
        queue_.push({move.per_second, top.value, version_[top.value]});
        is_queued_[top.value] = 1;
        continue;
      }
      spent_s += move.cost_s;
      Take(move);
    }
  }

  // Takes out repeats that the budget does not need, the most expensive first.
  void CleanUp() {
    std::vector<OpId> ops = RepeatedOps();
    for (OpId op : ops) {
      if (effort_.IsSpent()) return;
      const ValueId w = program_.op_outputs[op][0];
      for (int32_t i = static_cast<int32_t>(schedule_.made(w).size()) - 1; i > 0; --i) {
        // A removal may take earlier ones along.
        if (i >= static_cast<int32_t>(schedule_.made(w).size())) continue;
        double saved_s = 0;
        ++counters_.trials;
        if (moves_.TakeOut(op, schedule_.made(w)[i].key, &saved_s) && curve_.Delta(schedule_) <= 0) {
          Commit();
          ++counters_.removals;
        } else {
          schedule_.UndoTo(0);
        }
      }
    }
  }

  // Takes out repeats that the budget does need, and keeps what cheaper moves can make of it.
  void Swap() {
    for (OpId op : RepeatedOps()) {
      const ValueId w = program_.op_outputs[op][0];
      for (int32_t i = static_cast<int32_t>(schedule_.made(w).size()) - 1; i > 0; --i) {
        if (i >= static_cast<int32_t>(schedule_.made(w).size())) continue;
        if (effort_.IsSpent()) return;
        double saved_s = 0;
        if (!moves_.TakeOut(op, schedule_.made(w)[i].key, &saved_s)) continue;
        const Schedule before = schedule_.schedule();
        const double cost_before_s = CountRecompute(program_, before).cost_s;
        Commit();
        shunned_ = op;
        Lower((1 - kLeastGain) * saved_s);
        shunned_ = kNoOp;
        if (is_feasible()) CleanUp();
        if (is_feasible() && CountRecompute(program_, schedule()).cost_s < (1 - kLeastGain) * cost_before_s) {
          ++counters_.swaps;
        } else {
          schedule_.Reset(before);
          curve_.Reset(schedule_);
        }
      }
    }
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

  int64_t Unit(int64_t budget_bytes) const {
    const auto& live = schedule_.live_bytes();
    const int64_t peak = live.empty() ? 0 : *std::max_element(live.begin(), live.end());
    return std::max<int64_t>(1, peak - budget_bytes);
  }

  void Commit() {
    schedule_.Commit();
    curve_.Reset(schedule_);
  }

  std::vector<OpId> RepeatedOps() const {
    std::vector<OpId> ops;
    for (OpId op = 0; op < program_.num_ops(); ++op) {
      const auto outputs = program_.op_outputs[op];
      if (!outputs.empty() && schedule_.made(outputs[0]).size() > 1) ops.push_back(op);
    }
    std::stable_sort(ops.begin(), ops.end(), [this](OpId a, OpId b) {
      return program_.op_cost_s[a] > program_.op_cost_s[b];
    });
    return ops;
  }

  // The best move for a value over its gaps and the ways to treat dead operands.
  Move BestMove(ValueId v) {
    Move best;
    if (!program_.takes_budget(v)) return best;
    const OpId producer = program_.value_producer[v];
    if (!schedule_.may_run_twice(producer) || producer == shunned_) return best;
    const auto& made = schedule_.made(v);
    const auto& reads = schedule_.reads(v);
    size_t next_read = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      Key last = made[i].key;
      while (next_read < reads.size() && (i + 1 == made.size() || reads[next_read].key < made[i + 1].key)) {
        const Gap gap = {v, made[i].key, last, reads[next_read].key};
        last = reads[next_read++].key;
        if (curve_.PricePerByte(gap.last + 1, gap.next) > 0) TryGap(gap, &best);
      }
    }
    return best;
  }

  void TryGap(const Gap& gap, Move* best) {
    for (DeadOperands dead : {DeadOperands::kRemake, DeadOperands::kAtRate, DeadOperands::kHold}) {
      ++counters_.trials;
      double cost_s = 0;
      bool depends_on_choice = false;
      if (moves_.Drop(gap, dead, options_.merge_repeats, &cost_s, &depends_on_choice)) {
        const double delta = curve_.Delta(schedule_);
        const double per_second = -delta / std::max(cost_s, least_cost_s_);
        if (delta < -1e-12 * curve_.total() && per_second > best->per_second) *best = {gap, dead, per_second, cost_s};
      }
      schedule_.UndoTo(0);
      if (!depends_on_choice) return;
    }
  }

  void Push(ValueId v) {
    const Move move = BestMove(v);
    ++version_[v];
    is_queued_[v] = move.per_second > 0;
    if (is_queued_[v]) queue_.push({move.per_second, v, version_[v]});
  }

  void Take(const Move& move) {
    double cost_s = 0;
    bool depends_on_choice = false;
    moves_.Drop(move.gap, move.dead, options_.merge_repeats, &cost_s, &depends_on_choice);
    moves_.set_going_rate(move.per_second);
    ++counters_.moves;
    // What was edited, and what is made from or into it, has other chains now.
    std::set<ValueId> stale;
    for (const auto& edit : schedule_.edits()) {
      stale.insert(program_.op_inputs[edit.op].begin(), program_.op_inputs[edit.op].end());
      stale.insert(program_.op_outputs[edit.op].begin(), program_.op_outputs[edit.op].end());
    }
    Commit();
    for (ValueId v : stale) {
      if (!is_queued_[v]) Push(v);
    }
  }

  static constexpr double kStaleTolerance = 0.9;
  static constexpr double kLeastGain = 1e-6;

  const StepProgram& program_;
  const PeakOptions options_;
  EditableSchedule schedule_;
  ExcessCurve curve_;
  DropMoves moves_;
  Effort& effort_;
  PeakCounters& counters_;
  double least_cost_s_ = 0;              // a free move is not infinitely good
  OpId shunned_ = kNoOp;                 // the op that a swap is trying to do without
  std::priority_queue<Candidate> queue_;
  std::vector<int32_t> version_;
  std::vector<uint8_t> is_queued_;
};

class PeakPlanner {
 public:
  PeakPlanner(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes, const PeakOptions& options)
      : program_(program),
        order_(order.begin(), order.end()),
        budget_(budget_bytes),
        options_(options),
        total_cost_s_(std::accumulate(program.op_cost_s.begin(), program.op_cost_s.end(), 0.0)),
        liveness_(ComputeLiveness(program, order)),
        effort_{&result_.counters, options.max_trials,
                Clock::now() + std::chrono::microseconds(static_cast<int64_t>(options.time_limit_s * 1e6))} {}

  PeakResult Run() {
    Keep(order_);
    if (!result_.is_feasible) {
      // Below what is reachable the potential would draw moves to places where nothing can be won.
      Reach(std::max(budget_, ComputeLowerBound(program_).bytes));
      if (!result_.is_feasible) ShrinkPeak();
    }
    if (result_.is_feasible && options_.swap) Improve();
    result_.timed_out = effort_.is_out_of_time;
    return std::move(result_);
  }

 private:
  // Bytes above the budget, seconds of recompute, peak.
  using Rank = std::tuple<int64_t, double, int64_t>;

  // Tries to get under `target_bytes`, from the proposals of HoldCut and from the bare order.
  bool Reach(int64_t target_bytes) {
    bool is_reached = false;
    if (options_.num_price_rounds > 0 && static_cast<int32_t>(order_.size()) == program_.num_ops()) {
      is_reached = SearchPrices(target_bytes);
    }
    return Consider(order_, target_bytes) || is_reached;
  }

  // The budget was not reached: what is the smallest peak that is? Bisects between the bound and it.
  void ShrinkPeak() {
    int64_t low = std::max(budget_, ComputeLowerBound(program_).bytes);
    for (int round = 0; round < kShrinkRounds && !effort_.IsSpent(); ++round) {
      const int64_t high = budget_ + std::get<0>(best_);
      if (high - low <= high / 100) return;
      const int64_t middle = low + (high - low) / 2;
      if (!Reach(middle)) low = middle;
    }
  }

  // Lowers and cleans up `start`; keeps the outcome if it is the best so far.
  bool Consider(std::span<const OpId> start, int64_t target_bytes) {
    const double start_cost_s = CountRecompute(program_, start).cost_s;
    const double limit_s = (result_.is_feasible ? kWorseningAllowed * std::get<1>(best_) : total_cost_s_) - start_cost_s;
    if (limit_s <= 0) return false;
    Lowering lowering(program_, start, target_bytes, options_, &effort_, &result_.counters);
    lowering.Lower(limit_s);
    if (lowering.is_feasible() && options_.clean_up) lowering.CleanUp();
    Keep(lowering.schedule());
    return lowering.is_feasible();
  }

  void Improve() {
    Lowering lowering(program_, result_.schedule, budget_, options_, &effort_, &result_.counters);
    lowering.Swap();
    Keep(lowering.schedule());
  }

  void Keep(const Schedule& schedule) {
    const int64_t peak = ComputeLiveness(program_, schedule).peak_bytes;
    const Rank rank = {std::max<int64_t>(0, peak - budget_), CountRecompute(program_, schedule).cost_s, peak};
    if (!result_.schedule.empty() && rank >= best_) return;
    best_ = rank;
    result_.schedule = schedule;
    result_.is_feasible = peak <= budget_;
  }

  // Multiplicative weights: the price of a step rises where the last proposal was above the target
  // there, and falls where it was below.
  bool SearchPrices(int64_t target_bytes) {
    const HoldCut cut(program_, order_, liveness_.peak_step);
    std::vector<double> price = FirstPrices(target_bytes);
    std::set<Schedule> seen;
    bool is_reached = false;
    for (int32_t round = 0; round < options_.num_price_rounds && !effort_.IsSpent(); ++round) {
      const Schedule proposal = cut.Choose(price);
      if (seen.insert(proposal).second) is_reached = Consider(proposal, target_bytes) || is_reached;
      const std::vector<int64_t> peaks = PeaksByStep(proposal);
      const double rate = kFirstRate / (1 + round / kRoundsToHalve);
      double largest = 0;
      for (size_t t = 0; t < price.size(); ++t) {
        const double over = static_cast<double>(peaks[t]) / static_cast<double>(std::max<int64_t>(target_bytes, 1)) - 1;
        largest = std::max(largest, price[t] *= std::exp(rate * std::clamp(over, -0.5, 1.0)));
      }
      for (double& p : price) p = std::max(p, kLeastPrice * largest);
    }
    return is_reached;
  }

  // To hold every temporary byte over the steps above the target is about as dear as to run every op.
  std::vector<double> FirstPrices(int64_t target_bytes) const {
    double bytes = 0, steps = 0;
    for (ValueId v = 0; v < program_.num_values(); ++v) {
      if (program_.takes_budget(v)) bytes += static_cast<double>(program_.value_bytes[v]);
    }
    std::vector<double> price(order_.size());
    for (size_t t = 0; t < price.size(); ++t) {
      steps += price[t] = liveness_.live_bytes[t] > target_bytes ? 1 : kFirstPriceBelow;
    }
    for (double& p : price) p *= total_cost_s_ / std::max(bytes, 1.0) / steps;
    return price;
  }

  // Per step of the order, the largest live bytes since the step before it: its own and those of the
  // recomputes in between.
  std::vector<int64_t> PeaksByStep(const Schedule& schedule) const {
    const Liveness liveness = ComputeLiveness(program_, schedule);
    std::vector<int64_t> peaks(order_.size(), 0);
    size_t step = 0;
    for (size_t t = 0; t < schedule.size() && step < order_.size(); ++t) {
      peaks[step] = std::max(peaks[step], liveness.live_bytes[t]);
      if (schedule[t] == order_[step]) ++step;
    }
    return peaks;
  }

  static constexpr int kShrinkRounds = 5;
  static constexpr double kWorseningAllowed = 1.25;   // before the clean-up
  static constexpr double kFirstRate = 2;
  static constexpr double kRoundsToHalve = 5;
  static constexpr double kFirstPriceBelow = 1e-3;
  static constexpr double kLeastPrice = 1e-9;

  const StepProgram& program_;
  const Schedule order_;
  const int64_t budget_;
  const PeakOptions options_;
  const double total_cost_s_;
  const Liveness liveness_;
  PeakResult result_;
  Effort effort_;
  Rank best_;
};

}  // namespace

PeakResult PlanPeak(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const PeakOptions& options) {
  return PeakPlanner(program, order, budget_bytes, options).Run();
}

}  // namespace coopjax
