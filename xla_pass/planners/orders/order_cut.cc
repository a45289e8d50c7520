#include "planners/orders/order_cut.h"

#include <algorithm>
#include <limits>

#include "base/allowance.h"
#include "base/min_cut.h"
#include "program/dependences.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

constexpr double kForced = std::numeric_limits<double>::infinity();
constexpr int32_t kSource = 0, kSink = 1, kFirstNode = 2;

class CutOrderer {
 public:
  CutOrderer(const StepProgram& program, std::span<const OpId> order, const OrderCutOptions& options)
      : program_(program),
        options_(options),
        predecessors_(OpPredecessors(program)),
        readers_(ValueReaders(program)),
        touches_(OpTouches(program)),
        overwriter_(program.num_values(), kNoOp),
        shares_(program),
        unshared_(program),
        given_(order.begin(), order.end()),
        step_of_(program.num_ops()),
        node_(program.num_ops()),
        allowance_(options.max_steps) {
    for (ValueId w = 0; w < program.num_values(); ++w) {
      const ValueId v = program.value_in_place_of[w];
      if (v != kNoValue) overwriter_[v] = program.value_producer[w];
    }
    unshared_.may_share.clear();
    result_.schedule = given_;
    result_.peak_bytes = ComputeLiveness(program, given_).peak_bytes;
    result_.bound_bytes = options.bound_bytes;
  }

  OrderCutResult Run() {
    std::vector<OpId>& stuck_at = result_.stuck_at;
    for (int32_t descent = 0; descent < options_.max_descents && !IsDone(); ++descent) {
      const OpId op = Descend(stuck_at);
      if (op == kNoOp || std::find(stuck_at.begin(), stuck_at.end(), op) != stuck_at.end()) break;
      stuck_at.insert(stuck_at.begin(), op);
    }
    return std::move(result_);
  }

 private:
  bool IsDone() {
    result_.is_cut_short = allowance_.IsOver();
    return result_.is_cut_short || (1 - options_.relative_gap) * result_.peak_bytes <= result_.bound_bytes;
  }

  // Cuts at the ops of `first`, then peak by peak. Returns the op that a peak can't be moved away from; kNoOp
  // when the descent ended for another reason.
  OpId Descend(std::span<const OpId> first) {
    order_ = given_;
    is_boundary_.assign(program_.num_ops() + 1, 0);
    is_boundary_.front() = is_boundary_.back() = 1;
    for (OpId op : first) CutAt(op);
    for (int32_t cut = 0; cut < options_.max_cuts; ++cut) {
      const Liveness liveness = ComputeLiveness(program_, order_);
      if (liveness.peak_bytes < result_.peak_bytes) {
        result_.peak_bytes = liveness.peak_bytes;
        result_.schedule = order_;
      }
      if (liveness.peak_step < 0 || IsDone()) return kNoOp;
      const OpId op = order_[liveness.peak_step];
      if (!CutAt(op)) return op;
    }
    return kNoOp;
  }

  // Reorders the piece that holds `op`; false when that is the op alone.
  bool CutAt(OpId op) {
    const Step step = static_cast<Step>(std::find(order_.begin(), order_.end(), op) - order_.begin());
    Step begin = step, end = step + 1;
    while (!is_boundary_[begin]) --begin;
    while (!is_boundary_[end]) ++end;
    if (end - begin == 1) return false;
    const Reordered best = BestCut(begin, end, step);
    order_ = best.order;
    is_boundary_[best.step] = is_boundary_[best.step + 1] = 1;
    if (end - begin == program_.num_ops()) result_.bound_bytes = std::max(result_.bound_bytes, best.bytes);
    return true;
  }

  struct Reordered {
    Schedule order;
    Step step = 0;        // of the op that was cut at
    int64_t bytes = 0;    // live there, at most
  };

  // The cut of fewest bytes over what the op's output may share. Shares of its other outputs are credited in full.
  Reordered BestCut(Step begin, Step end, Step step) {
    CountSteps(4 * program_.num_ops());
    const OpId op = order_[step];
    const auto shares = shares_[op];
    int64_t credit = 0;
    std::vector<ValueId> sharers;
    for (const MayShare& share : shares) {
      const bool is_first = share.output == shares.front().output;
      if (is_first) {
        sharers.push_back(share.input);
      } else {
        credit += program_.value_bytes[share.input];
      }
    }
    if (sharers.empty()) sharers.push_back(kNoValue);
    for (Step t = 0; t < program_.num_ops(); ++t) step_of_[order_[t]] = t;
    NumberNodes(begin, end, step);
    Reordered best;
    for (ValueId shared : sharers) {
      Reordered cut = Reorder(begin, end, step, Cut(begin, end, shared));
      cut.bytes = ComputeLiveness(unshared_, cut.order).live_bytes[cut.step] - credit;
      if (shared != kNoValue && IsLastReader(shared, cut)) cut.bytes -= program_.value_bytes[shared];
      if (best.order.empty() || cut.bytes < best.bytes) best = std::move(cut);
    }
    return best;
  }

  bool IsLastReader(ValueId v, const Reordered& cut) const {
    return std::none_of(cut.order.begin() + cut.step + 1, cut.order.end(), [&](OpId later) {
      const auto inputs = program_.op_inputs[later];
      return std::find(inputs.begin(), inputs.end(), v) != inputs.end();
    });
  }

  Reordered Reorder(Step begin, Step end, Step step, const std::vector<uint8_t>& runs_before) {
    Schedule before, after;
    for (Step t = begin; t < end; ++t) {
      if (t != step) (runs_before[t - begin] ? before : after).push_back(order_[t]);
    }
    Reordered result = {order_, begin + static_cast<Step>(before.size()), 0};
    std::copy(before.begin(), before.end(), result.order.begin() + begin);
    result.order[result.step] = order_[step];
    std::copy(after.begin(), after.end(), result.order.begin() + result.step + 1);
    ++result_.num_cuts;
    return result;
  }

  // The smallest down-set of the steps [begin, end) with the fewest live bytes after it; by step, from `begin`.
  // The op cut at need not have `shared` to itself, but may: the value costs nothing once its other readers ran.
  std::vector<uint8_t> Cut(Step begin, Step end, ValueId shared) {
    const std::vector<ValueId> values = ValuesTouched(begin, end);
    CountSteps(program_.num_values() + 4 * (end - begin));
    MinCut network(num_nodes_ + static_cast<int32_t>(values.size()));
    for (Step t = begin; t < end; ++t) {
      if (node_[t] < kFirstNode) continue;
      for (OpId before : predecessors_[order_[t]]) {
        if (step_of_[before] >= begin) network.AddEdge(node_[t], node_[step_of_[before]], kForced);
      }
    }
    for (size_t k = 0; k < values.size(); ++k) {
      AddValue(&network, values[k], num_nodes_ + static_cast<int32_t>(k), values[k] == shared);
    }
    network.Solve(kSource, kSink);
    std::vector<uint8_t> runs_before(end - begin);
    for (Step t = begin; t < end; ++t) runs_before[t - begin] = network.IsOnSourceSide(node_[t]);
    return runs_before;
  }

  // What precedes the op at `step` in every order is the source, that op and what follows it is the sink; mostly
  // few ops are left to be nodes of their own.
  void NumberNodes(Step begin, Step end, Step step) {
    std::fill(node_.begin(), node_.begin() + begin, kSource);
    std::fill(node_.begin() + begin, node_.begin() + end, kFirstNode);
    std::fill(node_.begin() + end, node_.end(), kSink);
    node_[step] = kSink;
    cut_at_ = order_[step];
    for (Step t = step; t >= begin; --t) {
      if (t != step && node_[t] != kSource) continue;
      for (OpId before : predecessors_[order_[t]]) node_[step_of_[before]] = kSource;
    }
    for (Step t = step + 1; t < end; ++t) {
      for (OpId before : predecessors_[order_[t]]) {
        if (step_of_[before] >= step && node_[step_of_[before]] == kSink) node_[t] = kSink;
      }
    }
    num_nodes_ = kFirstNode;
    for (Step t = begin; t < end; ++t) {
      if (node_[t] == kFirstNode) node_[t] = num_nodes_++;
    }
  }

  // `held` is on the source's side if the value is made and all its users have run, or free to be there.
  void AddValue(MinCut* network, ValueId v, int32_t held, bool is_shared) {
    const OpId producer = program_.value_producer[v];
    const int32_t made = producer == kNoOp ? kSource : node_[step_of_[producer]];
    if (made == kSink) return;
    network->AddEdge(made, held, static_cast<double>(program_.value_bytes[v]));
    auto add_use = [&](OpId op) {
      if (node_[step_of_[op]] != kSource) network->AddEdge(held, node_[step_of_[op]], kForced);
    };
    if (overwriter_[v] != kNoOp) {
      add_use(overwriter_[v]);
    } else {
      for (OpId reader : readers_[v]) {
        if (!is_shared || reader != cut_at_) add_use(reader);
      }
    }
  }

  // Temporaries that ops at steps [begin, end) make, read or overwrite.
  std::vector<ValueId> ValuesTouched(Step begin, Step end) const {
    std::vector<uint8_t> is_touched(program_.num_values(), 0);
    for (Step t = begin; t < end; ++t) {
      for (ValueId v : touches_[order_[t]]) is_touched[v] = 1;
      for (ValueId v : program_.op_outputs[order_[t]]) is_touched[v] = 1;
    }
    std::vector<ValueId> values;
    for (ValueId v = 0; v < program_.num_values(); ++v) {
      if (is_touched[v] && program_.takes_budget(v) && program_.value_bytes[v] > 0) values.push_back(v);
    }
    return values;
  }

  const StepProgram& program_;
  const OrderCutOptions& options_;
  const Csr predecessors_, readers_, touches_;
  std::vector<OpId> overwriter_;         // by value; an overwritten value is needed until then by somebody else
  const ShareIndex shares_;
  StepProgram unshared_;                 // the program without may_share
  const Schedule given_;
  Schedule order_;
  std::vector<uint8_t> is_boundary_;     // between pieces: before step t; [num_ops + 1]
  std::vector<Step> step_of_;            // by op, in `order_`
  std::vector<int32_t> node_;            // by step, in the network at hand
  int32_t num_nodes_ = 0;
  OpId cut_at_ = kNoOp;
  const Allowance allowance_;
  OrderCutResult result_;
};

}  // namespace

OrderCutResult ReorderByCuts(const StepProgram& program, std::span<const OpId> order, const OrderCutOptions& options) {
  return CutOrderer(program, order, options).Run();
}

}  // namespace coopjax
