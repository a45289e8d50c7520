#include "planners/coop/window_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "base/allowance.h"
#include "planners/coop/window_search.h"
#include "planners/moves/drop_moves.h"
#include "planners/moves/editable_schedule.h"
#include "planners/moves/excess_curve.h"
#include "planners/moves/lowering.h"

namespace coopjax {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxTrials = 100000;   // of the clean-up
constexpr int32_t kMostEvictions = 2;    // per value: beyond that it is thrashing, as are
constexpr int32_t kMostInVain = 100;     // windows that bring all steps together no nearer to the budget

class WindowPlanner {
 public:
  WindowPlanner(const StepProgram& program, std::span<const OpId> order, std::span<const int64_t> offsets,
                int64_t budget_bytes)
      : program_(program),
        offsets_(offsets),
        budget_(budget_bytes),
        schedule_(program, order),
        curve_(budget_bytes, std::max<int64_t>(budget_bytes, 1), /*is_squared=*/true),
        moves_(&schedule_, &curve_),
        is_stuck_(program.num_values(), 0) {}

  WindowResult Run() {
    Start();
    result_.schedule = schedule_.schedule();
    int64_t least = Peak();
    const int32_t most_evicted = kMostEvictions * program_.num_values();
    double least_excess = kInfinite;
    int32_t in_vain = 0;
    while (Peak() > budget_ && result_.num_evicted < most_evicted && in_vain < kMostInVain && EvictWindow()) {
      in_vain = curve_.total() < least_excess ? 0 : in_vain + 1;
      least_excess = std::min(least_excess, curve_.total());
      if (Peak() >= least) continue;
      least = Peak();
      result_.schedule = schedule_.schedule();
    }
    result_.is_feasible = least <= budget_;
    if (result_.is_feasible && result_.num_evicted > 0) CleanUp();
    return std::move(result_);
  }

 private:
  struct Piece {
    ValueId value;
    Gap gap;   // around the peak; without a next read: must stay
  };

  int64_t Peak() const { return schedule_.live_bytes().empty() ? 0 : schedule_.live_bytes()[peak_step_]; }

  // Takes over the schedule of the last commit.
  void Start() {
    curve_.Reset(schedule_);
    const auto& live = schedule_.live_bytes();
    peak_step_ = static_cast<Step>(std::max_element(live.begin(), live.end()) - live.begin());
    seconds_.assign(1, 0.0);
    for (OpId op : schedule_.schedule()) seconds_.push_back(seconds_.back() + program_.op_cost_s[op]);
    tick_s_ = seconds_.back() / static_cast<double>(seconds_.size());
  }

  // False when nothing at the peak can go.
  bool EvictWindow() {
    const std::vector<Piece> pieces = PiecesAtPeak();
    int64_t room = 0;
    std::vector<WindowPiece> searched;
    for (const Piece& piece : pieces) {
      const int64_t bytes = program_.value_bytes[piece.value];
      const double bound = AtLeast(piece);
      if (bound < kInfinite) room = std::max(room, bytes);
      const int64_t offset = searched.empty() ? 0 : searched.back().offset + searched.back().bytes;
      searched.push_back({offset, bytes, bound, /*is_exact=*/bound == kInfinite});
    }
    room = std::min(room, Peak() - budget_);
    if (room <= 0) return false;
    const Group whole = {0, searched.back().offset + searched.back().bytes, Side::kLow};
    const auto cost_of = [&](size_t i) { return Cost(pieces[i]); };
    const std::optional<Window> window = WindowSearch(std::move(searched), room, cost_of).Cheapest({&whole, 1});
    // A chain that can't run makes a value stay, which may leave no window of that size.
    if (!window) return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& p) { return MarkStuck(p); });
    ++result_.num_windows;
    for (size_t i = window->begin; i < window->end; ++i) Evict(pieces[i].value);
    Start();
    return true;
  }

  // What is live at the peak, by offset.
  std::vector<Piece> PiecesAtPeak() const {
    std::vector<Piece> pieces;
    for (ValueId v = 0; v < program_.num_values(); ++v) {
      if (offsets_[v] < 0 || !program_.takes_budget(v) || program_.value_bytes[v] == 0) continue;
      const int32_t made = schedule_.MadeBefore(v, schedule_.key(peak_step_) + 1);
      if (made >= 0 && schedule_.key(peak_step_) < schedule_.made(v)[made].end) pieces.push_back({v, GapAtPeak(v)});
    }
    std::sort(pieces.begin(), pieces.end(), [this](const Piece& a, const Piece& b) {
      return offsets_[a.value] != offsets_[b.value] ? offsets_[a.value] < offsets_[b.value] : a.value < b.value;
    });
    return pieces;
  }

  // Between the touches before and after the peak; without a value where it has to be there.
  Gap GapAtPeak(ValueId v) const {
    const Key key = schedule_.key(peak_step_);
    const int32_t made = schedule_.MadeBefore(v, key);
    Gap gap;
    if (made < 0 || is_stuck_[v] || !schedule_.may_run_twice(program_.value_producer[v])) return gap;
    gap.made = gap.last = schedule_.made(v)[made].key;
    for (const auto& read : schedule_.reads(v)) {
      if (read.key <= gap.made) continue;
      gap.next = read.key;
      if (read.key >= key) break;
      gap.last = read.key;
    }
    if (gap.next > key && key < schedule_.made(v)[made].end) gap.value = v;
    return gap;
  }

  double Staleness(const Gap& gap) const {
    return std::max(seconds_[peak_step_] - seconds_[schedule_.StepAtOrAfter(gap.last)], tick_s_);
  }

  double AtLeast(const Piece& piece) const {
    if (piece.gap.value == kNoValue) return kInfinite;
    return program_.op_cost_s[program_.value_producer[piece.value]] / Staleness(piece.gap);
  }

  double Cost(const Piece& piece) {
    const auto outcome = moves_.Drop(piece.gap, DeadOperands::kRemake, /*merges_repeats=*/false);
    schedule_.UndoTo(0);
    return outcome.is_possible ? std::max(outcome.cost_s / Staleness(piece.gap), AtLeast(piece)) : kInfinite;
  }

  bool MarkStuck(const Piece& piece) {
    if (piece.gap.value == kNoValue || Cost(piece) < kInfinite) return false;
    is_stuck_[piece.value] = 1;
    return true;
  }

  void Evict(ValueId v) {
    const Gap gap = GapAtPeak(v);
    if (gap.value != kNoValue && moves_.Drop(gap, DeadOperands::kRemake, /*merges_repeats=*/true).is_possible) {
      ++result_.num_evicted;
      // Where nobody read it before the peak, its first run has moved behind.
      Step shift = 0;
      for (const auto& edit : schedule_.edits()) {
        if (edit.key < schedule_.key(peak_step_)) shift += edit.is_insert ? 1 : -1;
      }
      schedule_.Commit();
      peak_step_ += shift;
      curve_.Reset(schedule_);
      return;
    }
    schedule_.UndoTo(0);
    is_stuck_[v] = 1;
  }

  void CleanUp() {
    MoveCounters counters;
    Effort effort = {&counters, kMaxTrials, Allowance(kUnlimitedSteps)};
    Lowering lowering(program_, result_.schedule, budget_, /*is_squared=*/true, /*merges_repeats=*/true, &effort,
                      &counters);
    lowering.CleanUp();
    result_.schedule = lowering.schedule();
  }

  const StepProgram& program_;
  const std::span<const int64_t> offsets_;
  const int64_t budget_;
  EditableSchedule schedule_;
  ExcessCurve curve_;
  DropMoves moves_;
  std::vector<uint8_t> is_stuck_;   // per value: its chain can't run
  Step peak_step_ = 0;
  std::vector<double> seconds_;     // before each step
  double tick_s_ = 0;
  WindowResult result_;
};

}  // namespace

WindowResult PlanWindows(const StepProgram& program, std::span<const OpId> order, std::span<const int64_t> offsets,
                         int64_t budget_bytes) {
  if (order.empty()) return {.schedule = {}, .is_feasible = true};
  return WindowPlanner(program, order, offsets, budget_bytes).Run();
}

}  // namespace coopjax
