#include "planners/fastsa/anneal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/allowance.h"
#include "planners/fastsa/best.h"
#include "planners/fastsa/node_groups.h"
#include "planners/fastsa/state.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

// xorshift128+ (Vigna 2017): fast, and the same on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t* state : {&first_, &second_}) {
      seed += 0x9E3779B97F4A7C15;   // splitmix64
      uint64_t mixed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9;
      mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
      *state = mixed ^ (mixed >> 31);
    }
  }
  int32_t Below(int32_t limit) { return static_cast<int32_t>(((Next() >> 32) * static_cast<uint64_t>(limit)) >> 32); }
  // In (0, 1].
  double Share() { return static_cast<double>((Next() >> 11) + 1) * 0x1.0p-53; }

 private:
  uint64_t Next() {
    uint64_t x = first_;
    const uint64_t y = second_;
    first_ = y;
    x ^= x << 23;
    second_ = x ^ y ^ (x >> 18) ^ (y >> 5);
    return second_ + y;
  }
  uint64_t first_, second_;
};

// Feasible before cheap before small; less is better.
using Rank = std::tuple<int64_t, int64_t, int64_t>;

Rank RankOf(int64_t peak_bytes, int64_t cost_ticks, int64_t target_bytes) {
  return {std::max<int64_t>(0, peak_bytes - target_bytes), cost_ticks, peak_bytes};
}

struct Cooling {
  double first;         // temperature, in units of the objective
  double ratio;         // of the last to the first
  int64_t num_iterations;

  double At(int64_t iteration) const {
    return first * std::pow(ratio, static_cast<double>(iteration) / static_cast<double>(num_iterations));
  }
};

constexpr int64_t kStepsPerTry = 12;      // a look at a slot and its neighbours misses the cache
constexpr int64_t kStepsPerLegal = 24;

// One stage: a state, and the best it has been in.
class Stage {
 public:
  struct Setting {
    int64_t target_bytes;
    int32_t num_slots;
    bool order_only;
    bool stops_at_target;
    bool stays_within;
    Allowance allowance;
  };

  Stage(const NodeGraph& nodes, std::span<const NodeId> sequence, const Setting& setting)
      : setting_(setting), state_(nodes, sequence, setting.num_slots), best_(state_), best_rank_(RankNow()) {
    for (NodeId node = 0; node < nodes.num_nodes() && !setting.order_only; ++node) {
      if (nodes.may_run_twice[node]) addable_.push_back(node);
    }
    CountSteps(setting.num_slots);
    least_ticks_ = 0;
    for (NodeId node = 0; node < nodes.num_nodes(); ++node) least_ticks_ += nodes.cost_ticks[node];
  }

  void Run(const Cooling& cooling, Random* random, AnnealCounters* counters);
  double objective() const { return Objective(state_.peak_bytes(), state_.cost_ticks()); }
  bool is_cut_short() const { return is_cut_short_; }
  std::vector<NodeId> BestSequence() const { return best_.Sequence(); }

 private:
  double Objective(int64_t peak_bytes, int64_t cost_ticks) const {
    return static_cast<double>(std::max(setting_.target_bytes, peak_bytes)) * static_cast<double>(cost_ticks);
  }
  Rank RankNow() const { return RankOf(state_.peak_bytes(), state_.cost_ticks(), setting_.target_bytes); }
  bool IsDone() const {
    return std::get<0>(best_rank_) == 0 && (setting_.stops_at_target || std::get<1>(best_rank_) <= least_ticks_);
  }
  bool Propose(Random* random, Mutation* mutation) const;
  bool Accept(const Mutation& mutation, double temperature, Random* random);

  const Setting setting_;
  AnnealState state_;
  coopjax::BestSequence best_;
  Rank best_rank_;
  std::vector<NodeId> addable_;
  int64_t least_ticks_ = 0;   // of a sequence without repeats
  bool is_cut_short_ = false;
};

void Stage::Run(const Cooling& cooling, Random* random, AnnealCounters* counters) {
  constexpr int64_t kStride = 1024;   // iterations between looks at the allowance
  double temperature = cooling.first;
  for (int64_t i = 0; i < cooling.num_iterations && !IsDone() && state_.num_occupied() > 0; ++i) {
    if (i % kStride == 0) {
      temperature = cooling.At(i);
      is_cut_short_ = setting_.allowance.IsOver();
      if (is_cut_short_) break;
    }
    ++counters->tried;
    CountSteps(kStepsPerTry);
    Mutation mutation = {};
    if (!Propose(random, &mutation) || !state_.Probe(mutation)) continue;
    ++counters->legal;
    CountSteps(kStepsPerLegal);
    if (Accept(mutation, temperature, random)) ++counters->accepted;
  }
}

// Add, remove and rotate are equally likely.
bool Stage::Propose(Random* random, Mutation* mutation) const {
  enum { kAdd, kRemove, kRotate };
  const int32_t kind = setting_.order_only ? kRotate : random->Below(3);
  if (kind == kAdd) {
    // A quarter of the slots stays empty, so that an empty one is found soon.
    if (addable_.empty() || state_.num_occupied() >= setting_.num_slots / 4 * 3) return false;
    mutation->node = addable_[random->Below(static_cast<int32_t>(addable_.size()))];
  } else {
    mutation->from = state_.occupied_slot(random->Below(state_.num_occupied()));
    mutation->node = state_.node_at(mutation->from);
  }
  if (kind == kRemove) return true;
  do {
    mutation->to = random->Below(setting_.num_slots);
  } while (!state_.is_empty(mutation->to));
  return true;
}

// Metropolis: a legal mutation that raises the objective by d passes with probability exp(-d / temperature).
bool Stage::Accept(const Mutation& mutation, double temperature, Random* random) {
  const double most = objective() - temperature * std::log(random->Share());
  const int64_t ticks = state_.cost_ticks() + state_.CostChange();
  const bool must_stay = setting_.stays_within && state_.peak_bytes() <= setting_.target_bytes;
  const auto is_refused = [&](int64_t peak_bytes) {
    return (must_stay && peak_bytes > setting_.target_bytes) || Objective(peak_bytes, ticks) > most;
  };
  if (is_refused(state_.PeakAtLeast())) return false;
  if (is_refused(state_.Apply())) {
    state_.Undo();
    return false;
  }
  state_.Commit();
  best_.Committed(mutation);
  if (RankNow() < best_rank_) {
    best_rank_ = RankNow();
    best_.IsBest();
  }
  return true;
}

// Both stages, one after the other.
class Annealer {
 public:
  Annealer(const StepProgram& program, int64_t budget_bytes, const AnnealOptions& options)
      : program_(program),
        budget_bytes_(budget_bytes),
        options_(options),
        random_(options.seed),
        allowance_(options.max_steps),
        target_bytes_(std::max(budget_bytes, ComputeLowerBound(program).bytes)) {}

  AnnealResult Run(std::span<const OpId> start);

 private:
  Rank RankOf(std::span<const OpId> schedule) const {
    int64_t ticks = 0;
    for (OpId op : schedule) ticks += singles_.cost_ticks[op];
    return coopjax::RankOf(ComputeLiveness(program_, schedule).peak_bytes, ticks, target_bytes_);
  }
  bool IsAtTarget(std::span<const OpId> schedule) const { return std::get<0>(RankOf(schedule)) == 0; }
  // What one go through both stages starts from, and the shares of the steps after which they stop.
  struct Attempt {
    bool group;
    double start_temperature;
    double stage1_share, stage2_share;
  };
  // What stage 2 starts at: in units of the objective, or over that of its start.
  struct Temperature {
    double first;
    bool is_relative;
  };
  Stage::Setting Setting(size_t num_steps, bool stops_at_target, double share) const;
  void Keep(Schedule schedule);
  Schedule BothStages(std::span<const OpId> start, const Attempt& attempt);
  Schedule Stage2(std::span<const OpId> start, const Temperature& temperature, double share);

  const StepProgram& program_;
  const int64_t budget_bytes_;
  const AnnealOptions& options_;
  const NodeGraph singles_ = SingleNodes(program_);
  Random random_;
  const Allowance allowance_;
  const int64_t target_bytes_;   // the budget, or what no schedule goes below
  AnnealResult result_;
};

AnnealResult Annealer::Run(std::span<const OpId> start) {
  result_.schedule.assign(start.begin(), start.end());
  const bool has_repeats = start.size() > static_cast<size_t>(program_.num_ops());
  const bool group = options_.group && !options_.order_only;
  const bool may_retry = group && options_.retry_ungrouped;
  if (has_repeats || (options_.stage1_iterations == 0 && !IsAtTarget(start))) {
    Keep(Stage2(start, {options_.start_temperature, true}, 1.0));
  } else if (!IsAtTarget(start)) {
    Keep(BothStages(start, {group, options_.start_temperature, may_retry ? 0.4 : 0.75, may_retry ? 0.6 : 1.0}));
    if (may_retry && !IsAtTarget(result_.schedule)) {
      // Hot enough to add a few ops of mean cost: the programs that get here are mostly small.
      const double temperature = std::max(options_.start_temperature, 4.0 / program_.num_ops());
      Keep(BothStages(start, {false, temperature, 0.9, 1.0}));
    }
  }
  result_.is_feasible = ComputeLiveness(program_, result_.schedule).peak_bytes <= budget_bytes_;
  return std::move(result_);
}

// The setting of a stage that may take steps up to `share` of all.
Stage::Setting Annealer::Setting(size_t num_steps, bool stops_at_target, double share) const {
  const auto least = std::max<int64_t>({options_.num_slots, 4 * static_cast<int64_t>(num_steps), 4});
  return {target_bytes_,
          static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(least))),
          options_.order_only,
          stops_at_target,
          options_.stays_within && !stops_at_target,
          allowance_.Part(share)};
}

void Annealer::Keep(Schedule schedule) {
  if (RankOf(schedule) < RankOf(result_.schedule)) result_.schedule = std::move(schedule);
}

Schedule Annealer::BothStages(std::span<const OpId> start, const Attempt& attempt) {
  const int64_t most_members = std::max<int64_t>(int64_t{1} << 18, 4 * static_cast<int64_t>(start.size()));
  const GroupedOrder grouped =
      attempt.group ? GroupNodes(program_, start, most_members) : GroupedOrder{singles_, {start.begin(), start.end()}};
  Stage stage(grouped.nodes, grouped.order, Setting(grouped.order.size(), true, attempt.stage1_share));
  const Cooling cooling = {attempt.start_temperature * stage.objective(), options_.cooling, options_.stage1_iterations};
  stage.Run(cooling, &random_, &result_.counters);
  result_.is_cut_short |= stage.is_cut_short();
  if (result_.counters.num_groups == 0) result_.counters.num_groups = static_cast<int32_t>(grouped.order.size());
  const Schedule ungrouped = MembersInOrder(grouped.nodes, stage.BestSequence());
  return Stage2(ungrouped,
                options_.stage2_temperature > 0 ? Temperature{options_.stage2_temperature, true}
                                                : Temperature{cooling.first * cooling.ratio, false},
                attempt.stage2_share);
}

Schedule Annealer::Stage2(std::span<const OpId> start, const Temperature& temperature, double share) {
  Stage stage(singles_, start, Setting(start.size(), false, share));
  const double first = temperature.first * (temperature.is_relative ? stage.objective() : 1);
  stage.Run({first, options_.cooling, options_.stage2_iterations}, &random_, &result_.counters);
  result_.is_cut_short |= stage.is_cut_short();
  return stage.BestSequence();
}

}  // namespace

AnnealResult Anneal(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                    const AnnealOptions& options) {
  return Annealer(program, budget_bytes, options).Run(start);
}

}  // namespace coopjax
