// The choice that one op's first run forces: which values to hold across it and which to make after it.
// planners/bounds/cost_bound.h has the argument.
#pragma once

#include <cstdint>
#include <vector>

#include "base/min_cut.h"
#include "program/dependences.h"
#include "program/step_program.h"

namespace coopjax {

// Who must have run for the first time before whom, whatever is repeated: producers of what an op touches, control
// predecessors, and the other readers of what it overwrites for good (that can't be made anew).
struct FirstRunOrder {
  // If given, `first` runs for the first time before `then` does.
  explicit FirstRunOrder(const StepProgram& program, OpId first = kNoOp, OpId then = kNoOp);
  Csr before;   // per op
  Csr after;    // the reverse
};

class FirstRunCut {
 public:
  // All must outlive this. O(edges); the network, which takes most of the time, is built by the first cut.
  FirstRunCut(const StepProgram& program, const FirstRunOrder& order, const ShareIndex& shares, OpId op);

  // Bytes live at the first run if all that is needed later and can be held is held.
  int64_t most_bytes() const { return base_bytes_ + held_bytes_; }
  // The same if as much as possible is made again instead; about, and never more.
  int64_t least_bytes();

  // The Lagrangian bound at a price in seconds per byte: no more than what any schedule under the budget pays.
  double At(double price, int64_t budget_bytes) { return Cut(price, 1).Value(price, budget_bytes); }
  // The best of all prices, with the price; infinite when the budget can't be held.
  struct Best {
    double cost_s = 0;
    double price = 0;
  };
  Best OverPrices(int64_t budget_bytes);

 private:
  enum class Side : uint8_t { kUnrelated, kBefore, kAfter, kSelf };
  struct Hold {
    int32_t from;
    int32_t to;
    int64_t bytes;   // kForced: can't be held, or must be followed
  };
  struct Remake {
    int32_t node;
    double cost_s;
  };
  // One way to choose, as a line over the price.
  struct Line {
    double cost_s = 0;
    int64_t bytes = 0;       // live at the first run
    double slack_s = 0;      // by which rounding may have raised the value
    double Value(double price, int64_t budget_bytes) const {
      return cost_s + price * static_cast<double>(bytes - budget_bytes) - slack_s;
    }
  };
  static constexpr int64_t kForced = -1;
  static constexpr int32_t kSource = 0, kSink = 1;

  void FindSides(const FirstRunOrder& order, OpId op);
  void CountWorkingSet(const ShareIndex& shares, OpId op);
  void FindNeeded();
  bool IsThereAnyway(ValueId v) const;
  void BuildNetwork();
  void AddHold(int32_t from, ValueId v);
  int32_t NodeOf(OpId op);
  // The cut that is least at `price`, op costs weighted.
  Line Cut(double price, double cost_weight);

  const StepProgram& program_;
  std::vector<Side> side_;              // per op
  std::vector<int64_t> hold_bytes_;     // per value: added to the working set if held
  int64_t base_bytes_ = 0;              // the op's working set, as small as it can be
  int64_t held_bytes_ = 0;              // of `needed_`
  std::vector<ValueId> needed_;         // by ops after it, whatever is repeated
  bool has_network_ = false;
  std::vector<int32_t> op_node_, value_node_;
  std::vector<OpId> frontier_;          // ops in the network, inputs not yet added from the end
  std::vector<Hold> holds_;
  std::vector<Remake> remakes_;
  int32_t num_nodes_ = 2;
};

}  // namespace coopjax
