#include "planners/segments/unneeded_repeats.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "base/peak_tree.h"
#include "program/liveness.h"
#include "program/schedule_flow.h"

namespace coopjax {
namespace {

// A live range once taken over is never shortened again, so that its bytes are counted at least as often as
// they are live.
class Cleaner {
 public:
  Cleaner(const StepProgram& program, const Csr& touches, std::span<const OpId> schedule, int64_t budget_bytes)
      : program_(program),
        budget_bytes_(budget_bytes),
        flow_(program, touches, schedule),
        previous_(flow_.num_productions(), -1),
        end_(flow_.num_productions(), 0),
        num_reads_(flow_.num_productions(), 0),
        is_repeat_(schedule.size()),
        is_gone_(schedule.size(), 0),
        tree_(static_cast<int32_t>(std::bit_ceil(std::max<size_t>(2, schedule.size())))) {
    LinkProductions();
    CountSteps(20 * flow_.num_steps());
    const Liveness liveness = ComputeLiveness(program, schedule);
    const int32_t num_given = flow_.first_made(0);
    for (size_t i = 0; i < liveness.ranges.size(); ++i) {
      const LiveRange& range = liveness.ranges[i];
      end_[num_given + i] = range.end;
      if (program.takes_budget(range.value)) tree_.Add(range.begin, range.end, program.value_bytes[range.value]);
    }
    for (Step t = 0; t < flow_.num_steps(); ++t) AddWorkspace(t, +1);
  }

  FewerRepeats Run() {
    FewerRepeats result;
    for (Step t : Candidates()) {
      if (!is_gone_[t]) TryRemove(t);
    }
    for (Step t = 0; t < flow_.num_steps(); ++t) {
      if (is_gone_[t]) {
        ++result.num_removed;
      } else {
        result.schedule.push_back(flow_.op(t));
      }
    }
    return result;
  }

 private:
  void LinkProductions() {
    std::vector<int32_t> latest(program_.num_values(), -1);
    std::vector<uint8_t> has_run(program_.num_ops(), 0);
    for (Step t = 0; t < flow_.num_steps(); ++t) {
      is_repeat_[t] = has_run[flow_.op(t)];
      has_run[flow_.op(t)] = 1;
      for (int32_t p : flow_.sources(t)) ++num_reads_[p];
      for (int32_t p = flow_.first_made(t); p < flow_.first_made(t + 1); ++p) {
        previous_[p] = std::exchange(latest[flow_.value(p)], p);
      }
    }
    kept_as_.resize(flow_.num_productions());
    for (int32_t p = 0; p < flow_.num_productions(); ++p) kept_as_[p] = p;
  }

  // The production that stands for `p` now.
  int32_t Kept(int32_t p) {
    while (kept_as_[p] != p) p = kept_as_[p] = kept_as_[kept_as_[p]];
    return p;
  }

  int64_t Bytes(int32_t p) const { return program_.value_bytes[flow_.value(p)]; }

  void AddWorkspace(Step t, int64_t sign) { tree_.Add(t, t + 1, sign * program_.op_workspace_bytes[flow_.op(t)]); }

  int64_t ReadsOfAllMadeAt(Step t) const {
    int64_t reads = 0;
    for (int32_t p = flow_.first_made(t); p < flow_.first_made(t + 1); ++p) reads += num_reads_[p];
    return reads;
  }

  // Repeats by seconds saved per byte held, those of what is made for them alone included.
  std::vector<Step> Candidates() const {
    std::vector<double> chain_s(flow_.num_steps(), 0);
    std::vector<std::pair<double, Step>> scored;
    for (Step t = 0; t < flow_.num_steps(); ++t) {
      if (!is_repeat_[t]) continue;
      chain_s[t] = program_.op_cost_s[flow_.op(t)];
      for (int32_t p : flow_.sources(t)) {
        const Step made = flow_.made_at(p);
        if (made >= 0 && is_repeat_[made] && ReadsOfAllMadeAt(made) == 1) chain_s[t] += chain_s[made];
      }
      double bytes = 0;
      for (int32_t p = flow_.first_made(t); p < flow_.first_made(t + 1); ++p) {
        if (num_reads_[p] > 0) bytes += static_cast<double>(Bytes(p));
      }
      scored.push_back({bytes > 0 ? -chain_s[t] / bytes : -std::numeric_limits<double>::infinity(), t});
    }
    std::sort(scored.begin(), scored.end());
    std::vector<Step> steps;
    for (const auto& [score, t] : scored) steps.push_back(t);
    return steps;
  }

  // The production before `p` that may stand for it; -1 if there is none.
  int32_t StandIn(int32_t p) const {
    int32_t before = previous_[p];
    while (before >= 0 && is_gone_[flow_.made_at(before)]) before = previous_[before];
    if (before < 0) return -1;
    const Step overwritten = flow_.overwritten_at(flow_.value(p));
    return overwritten > flow_.made_at(before) && overwritten < flow_.made_at(p) ? -1 : before;
  }

  void TryRemove(Step t) {
    const int32_t first = flow_.first_made(t), end = flow_.first_made(t + 1);
    CountSteps(20 * (1 + end - first));
    for (int32_t p = first; p < end; ++p) {
      if (num_reads_[p] > 0 && StandIn(p) < 0) return;
    }
    for (int32_t p = first; p < end; ++p) Hold(p, +1);
    if (tree_.peak() > budget_bytes_) {
      for (int32_t p = first; p < end; ++p) Hold(p, -1);
      return;
    }
    for (int32_t p = first; p < end; ++p) {
      if (num_reads_[p] == 0) continue;
      const int32_t before = StandIn(p);
      end_[before] = end_[p];
      num_reads_[before] += num_reads_[p];
      kept_as_[p] = before;
    }
    Drop(t);
  }

  // The bytes of holding what stands in for `p` until then; those of `p` itself if nobody reads it.
  void Hold(int32_t p, int64_t sign) {
    if (num_reads_[p] > 0) {
      tree_.Add(end_[StandIn(p)], flow_.made_at(p), sign * Bytes(p));
    } else {
      tree_.Add(flow_.made_at(p), end_[p], -sign * Bytes(p));
    }
  }

  // Takes step t out, its outputs' ranges apart, and the repeats that served it alone.
  void Drop(Step t) {
    std::vector<Step> gone = {t};
    while (!gone.empty()) {
      const Step step = gone.back();
      gone.pop_back();
      is_gone_[step] = 1;
      AddWorkspace(step, -1);
      for (int32_t source : flow_.sources(step)) {
        const int32_t p = Kept(source);
        --num_reads_[p];
        const Step made = flow_.made_at(p);
        if (made < 0 || !is_repeat_[made] || is_gone_[made] || ReadsOfAllMadeAt(made) > 0) continue;
        for (int32_t q = flow_.first_made(made); q < flow_.first_made(made + 1); ++q) {
          tree_.Add(flow_.made_at(q), end_[q], -Bytes(q));
        }
        gone.push_back(made);
      }
    }
  }

  const StepProgram& program_;
  const int64_t budget_bytes_;
  const ScheduleFlow flow_;
  std::vector<int32_t> previous_;     // per production: the one before of the same value; -1: none
  std::vector<int32_t> kept_as_;      // per production: what stands for it, or itself
  std::vector<Step> end_;             // per production: of its live range
  std::vector<int32_t> num_reads_;    // per production
  std::vector<uint8_t> is_repeat_, is_gone_;   // per step
  PeakTree tree_;                     // live bytes per step, or more
};

}  // namespace

FewerRepeats RemoveUnneededRepeats(const StepProgram& program, const Csr& touches, std::span<const OpId> schedule,
                                   int64_t budget_bytes) {
  FewerRepeats result = Cleaner(program, touches, schedule, budget_bytes).Run();
  // An input that dies elsewhere now may take a shared buffer from another, which no sum of ranges foresees.
  if (ComputeLiveness(program, result.schedule).peak_bytes <= budget_bytes) return result;
  return {Schedule(schedule.begin(), schedule.end()), 0};
}

}  // namespace coopjax
