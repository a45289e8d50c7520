#include "planners/moves/lowering.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/allowance.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

// A stale score this close to the best counts as still good: scores fall together as the curve does.
constexpr double kStaleTolerance = 0.9;
// A move may cost less than its chain, by the repeats that the chain replaces: so far below the best a score that the
// chain's cost rules out counts as hopeless.
constexpr double kDearerTolerance = 0.1;
// Of the potential, what may be lowered before the curve is brought up to date: scores are then off by no more than
// what counts as good enough. Near the budget, and in small programs, that is every single move.
constexpr double kKeptShare = 0.02;
// What a free move is taken to cost, of the mean op and of the program.
constexpr double kLeastCost = 1e-2, kLeastCostOfAll = 1e-6;
// Relative gains and potentials below this are rounding.
constexpr double kLeastGain = 1e-6;
constexpr double kLeastDelta = 1e-12;
constexpr double kUnforeseen = std::numeric_limits<double>::infinity();

}  // namespace

Lowering::Lowering(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes, bool is_squared,
                   bool merges_repeats, Effort* effort, MoveCounters* counters)
    : program_(program),
      merges_repeats_(merges_repeats),
      schedule_(program, start),
      curve_(budget_bytes, Unit(budget_bytes), is_squared),
      moves_(&schedule_, &curve_),
      effort_(*effort),
      counters_(*counters),
      version_(program.num_values(), 0) {
  const double total_s = std::accumulate(program.op_cost_s.begin(), program.op_cost_s.end(), 0.0);
  const double mean_s = total_s / std::max(1, program.num_ops());
  least_cost_s_ = std::max(1e-12, std::min(kLeastCost * mean_s, kLeastCostOfAll * total_s));
  curve_.Reset(schedule_);
}

int64_t Lowering::Unit(int64_t budget_bytes) const {
  const auto& live = schedule_.live_bytes();
  const int64_t peak = live.empty() ? 0 : *std::max_element(live.begin(), live.end());
  return std::max<int64_t>(1, peak - budget_bytes);
}

void Lowering::Reset(std::span<const OpId> start) {
  schedule_.Reset(start);
  curve_.Reset(schedule_);
}

void Lowering::SetLuck(uint64_t seed, double spread) {
  luck_seed_ = seed;
  luck_spread_ = spread;
}

// The same for a value until the next seed.
double Lowering::Luck(ValueId v) const {
  if (luck_spread_ <= 0) return 1;
  uint64_t bits = (luck_seed_ + static_cast<uint64_t>(v)) * 0x9e3779b97f4a7c15ull;   // splitmix64
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
  bits ^= bits >> 31;
  return std::exp(luck_spread_ * (static_cast<double>(bits >> 11) * 0x1p-52 - 1));
}

void Lowering::Commit() {
  schedule_.Commit();
  curve_.Reset(schedule_);
  kept_delta_ = 0;
}

// ---- moves ------------------------------------------------------------------------------------

template <typename Visitor>
void Lowering::ForEachGap(ValueId v, const Visitor& visit) const {
  if (!program_.takes_budget(v)) return;
  const OpId producer = program_.value_producer[v];
  if (!schedule_.may_run_twice(producer) || producer == shunned_) return;
  const auto& made = schedule_.made(v);
  const auto& reads = schedule_.reads(v);
  CountSteps(2 + std::ssize(made) + std::ssize(reads));
  size_t next_read = 0;
  for (size_t i = 0; i < made.size(); ++i) {
    Key last = made[i].key;
    while (next_read < reads.size() && (i + 1 == made.size() || reads[next_read].key < made[i + 1].key)) {
      visit(Gap{v, made[i].key, last, reads[next_read].key});
      last = reads[next_read++].key;
    }
  }
}

// The best move for a value over its gaps and the ways to treat dead operands, where others score `rival`. The slope
// overestimates what a drop gains, so that a chain's cost bounds its score: chains that can't come near or cost more
// than `most_s` are not followed to their ends, which may be far.
Lowering::Move Lowering::BestMove(ValueId v, double rival, double most_s) {
  gaps_.clear();
  ForEachGap(v, [&](const Gap& gap) {
    const double gain = curve_.PricePerByte(gap.last + 1, gap.next) * static_cast<double>(program_.value_bytes[v]);
    if (gain > 0) gaps_.push_back({gap, gain * Luck(v)});
  });
  Move best;
  for (const auto& [gap, gain] : gaps_) {
    const double scoring_s = gain / (kDearerTolerance * std::max(rival, best.per_second));
    moves_.set_most_cost(std::min(most_s, scoring_s));
    const bool is_too_dear = TryGap(gap, gain, rival, &best);
    if (is_too_dear && scoring_s < most_s) best.later = std::max(best.later, kDearerTolerance * rival);
  }
  moves_.set_most_cost(std::numeric_limits<double>::infinity());
  return best;
}

// True when a chain was too dear to be followed. The slopes of what is dropped and held, and what the chain and the
// repeats that it replaces cost, tell without an edit what a move may score: most are tried no further. Not foreseen is
// what goes with a later repeat, or with a first run that is put off; moves that may put one off are tried in any case.
bool Lowering::TryGap(const Gap& gap, double slope, double rival, Move* best) {
  bool is_too_dear = false, is_at_rate_new = true;
  for (DeadOperands dead : {DeadOperands::kRemake, DeadOperands::kAtRate, DeadOperands::kHold}) {
    if (dead == DeadOperands::kAtRate && !is_at_rate_new) continue;   // it makes all again, as the first did
    ++counters_.trials;
    CountSteps(10);
    const auto chain = moves_.Follow(gap, dead, merges_repeats_);
    if (chain.is_possible) {
      const double luck = Luck(gap.value), most_gain = slope - chain.held_price * luck;
      const auto may_score = [&](double gain, double cost_s) {
        const double most = chain.may_delay ? kUnforeseen : gain / std::max(cost_s, least_cost_s_);
        if (most >= std::max(kStaleTolerance * rival, best->per_second)) return true;
        best->later = std::max(best->later, most);
        return false;
      };
      bool has_merged = true;
      if (chain.may_merge && may_score(most_gain - chain.merged_price * luck, chain.cost_s - chain.merged_s)) {
        has_merged = TryMove({gap, dead, /*merges_repeats=*/true}, chain, best);
      }
      if (has_merged && may_score(most_gain, chain.cost_s)) TryMove({gap, dead, /*merges_repeats=*/false}, chain, best);
    }
    is_too_dear |= chain.is_too_dear;
    if (!chain.met_dead_operand && !chain.is_too_dear) break;
    is_at_rate_new = chain.holds_at_rate;
    if (dead == DeadOperands::kAtRate && !chain.remakes_at_rate) break;   // it holds all, as the last would
  }
  return is_too_dear;
}

// Tries a move whose chain was followed last and takes it back; `*best` becomes it if it scores higher. True when
// repeats were merged.
bool Lowering::TryMove(Move move, const DropMoves::Chain& chain, Move* best) {
  const auto outcome = moves_.Drop(move.gap, chain, move.merges_repeats);
  if (outcome.is_possible) {
    const double delta = curve_.Delta(schedule_);
    move.cost_s = outcome.cost_s;
    move.delta = delta;
    move.per_second = -delta / std::max(outcome.cost_s, least_cost_s_) * Luck(move.gap.value);
    move.later = best->later;
    if (delta < -kLeastDelta * curve_.total() && move.per_second > best->per_second) *best = move;
  }
  schedule_.UndoTo(0);
  return outcome.has_merged;
}

// Queues a value by an upper bound of its score: the potential is convex, so its slope overestimates
// what is gained, and a move costs at least its own op (but for repeats that it replaces).
void Lowering::Push(ValueId v) {
  ++version_[v];
  double bound = 0;
  ForEachGap(v, [&](const Gap& gap) { bound = std::max(bound, curve_.PricePerByte(gap.last + 1, gap.next)); });
  if (bound <= 0) return;
  bound *= static_cast<double>(program_.value_bytes[v]) * Luck(v);
  queue_.push({bound / std::max(program_.op_cost_s[program_.value_producer[v]], least_cost_s_), v, version_[v]});
}

void Lowering::Take(const Move& move) {
  moves_.Drop(move.gap, move.dead, move.merges_repeats);
  moves_.set_going_rate(move.per_second);
  ++counters_.moves;
  // What was edited, and what is made from or into it, has other chains now.
  std::set<ValueId> stale;
  for (const auto& edit : schedule_.edits()) {
    stale.insert(program_.op_inputs[edit.op].begin(), program_.op_inputs[edit.op].end());
    stale.insert(program_.op_outputs[edit.op].begin(), program_.op_outputs[edit.op].end());
  }
  kept_delta_ += move.delta;
  schedule_.Keep();
  if (-kept_delta_ >= kKeptShare * curve_.total() || schedule_.is_tight()) Commit();
  for (ValueId v : stale) Push(v);
}

// Scores go stale as the curve falls, mostly downwards, so only the top one is tried anew.
void Lowering::Lower(double cost_limit_s) {
  double spent_s = 0;
  int64_t moves_before = -1;
  queue_ = {};
  while (curve_.total() > 0 && spent_s < cost_limit_s && !effort_.IsSpent()) {
    if (queue_.empty()) {
      Commit();
      if (moves_before == counters_.moves) break;
      moves_before = counters_.moves;
      for (ValueId v = 0; v < program_.num_values(); ++v) Push(v);
      if (queue_.empty()) break;
    }
    const Candidate top = queue_.top();
    queue_.pop();
    if (top.version != version_[top.value]) continue;
    const double next = queue_.empty() ? 0 : queue_.top().per_second;
    const Move move = BestMove(top.value, next, (cost_limit_s - spent_s) / kDearerTolerance);
    ++version_[top.value];
    const double per_second = std::max(move.per_second, move.later);
    if (per_second <= 0) continue;
    if (per_second < kStaleTolerance * next) {
      queue_.push({per_second, top.value, version_[top.value]});
      continue;
    }
    spent_s += move.cost_s;
    Take(move);
  }
  Commit();
}

// ---- repeats ----------------------------------------------------------------------------------

std::vector<OpId> Lowering::RepeatedOps() const {
  CountSteps(program_.num_ops());
  std::vector<OpId> ops;
  for (OpId op = 0; op < program_.num_ops(); ++op) {
    const auto outputs = program_.op_outputs[op];
    if (!outputs.empty() && schedule_.made(outputs[0]).size() > 1) ops.push_back(op);
  }
  std::stable_sort(ops.begin(), ops.end(),
                   [this](OpId a, OpId b) { return program_.op_cost_s[a] > program_.op_cost_s[b]; });
  return ops;
}

template <typename Visitor>
void Lowering::ForEachRepeat(OpId op, const Visitor& visit) {
  const auto& made = schedule_.made(program_.op_outputs[op][0]);
  for (size_t i = made.size(); i-- > 1;) {
    if (i < made.size()) visit(made[i].key);   // a removal may take others along
  }
}

bool Lowering::TryTakeOut(OpId op, Key key) {
  ++counters_.trials;
  CountSteps(5);
  double saved_s = 0;
  if (moves_.TakeOut(op, key, &saved_s) && curve_.Delta(schedule_) <= 0) {
    Commit();
    return true;
  }
  schedule_.UndoTo(0);
  return false;
}

void Lowering::CleanUp() {
  for (OpId op : RepeatedOps()) {
    ForEachRepeat(op, [&](Key key) {
      if (!effort_.IsSpent()) counters_.removals += TryTakeOut(op, key);
    });
  }
}

double Lowering::TakeOut(std::span<const Step> steps) {
  double saved_s = 0;
  for (Step step : steps) {
    const OpId op = schedule_.schedule()[step];
    double more_s = 0;
    const auto outputs = program_.op_outputs[op];
    const bool is_there = !outputs.empty() && schedule_.MadeAt(outputs[0], schedule_.key(step)) >= 0;
    if (is_there && moves_.TakeOut(op, schedule_.key(step), &more_s)) saved_s += more_s;
  }
  Commit();
  return saved_s;
}

bool Lowering::TrySwap(OpId op, Key key) {
  double saved_s = 0;
  if (!moves_.TakeOut(op, key, &saved_s)) return false;
  const Schedule before = schedule_.schedule();
  const double cost_before_s = CountRecompute(program_, before).cost_s;
  Commit();
  shunned_ = op;
  Lower((1 - kLeastGain) * saved_s);
  shunned_ = kNoOp;
  if (is_feasible()) CleanUp();
  if (is_feasible() && CountRecompute(program_, schedule()).cost_s < (1 - kLeastGain) * cost_before_s) return true;
  schedule_.Reset(before);
  curve_.Reset(schedule_);
  return false;
}

void Lowering::Swap() {
  for (OpId op : RepeatedOps()) {
    ForEachRepeat(op, [&](Key key) {
      if (!effort_.IsSpent()) counters_.swaps += TrySwap(op, key);
    });
  }
}

}  // namespace coopjax
