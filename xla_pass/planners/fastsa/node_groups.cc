#include "planners/fastsa/node_groups.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/allowance.h"

namespace coopjax {
namespace {

// Cost per op in ticks; all alike when the program costs nothing.
std::vector<int64_t> CostTicks(const StepProgram& program) {
  const double total_s = std::accumulate(program.op_cost_s.begin(), program.op_cost_s.end(), 0.0);
  std::vector<int64_t> ticks(program.num_ops());
  for (OpId op = 0; op < program.num_ops(); ++op) {
    const double share = total_s > 0 ? program.op_cost_s[op] / total_s : 1.0 / program.num_ops();
    ticks[op] = std::llround(share * static_cast<double>(kProgramTicks));
  }
  return ticks;
}

// Whether a value's productions and reads matter to anyone.
enum class Tracking : uint8_t { kNone, kBytesOnly, kFull };

// The most that is live while a list of ops runs, above what was live before.
class InnerBytes {
 public:
  explicit InnerBytes(const StepProgram& program)
      : program_(program),
        touches_(OpTouches(program)),
        live_until_(program.num_values(), 0),
        made_in_(program.num_values(), -1) {}

  int64_t PeakOf(std::span<const OpId> members) {
    ++list_;
    const int32_t last = static_cast<int32_t>(members.size()) - 1;
    change_.assign(members.size() + 1, 0);
    for (int32_t i = 0; i <= last; ++i) {
      const OpId op = members[i];
      Add(program_.op_workspace_bytes[op], i, i + 1);
      for (ValueId v : touches_[op]) {
        if (made_in_[v] != list_) continue;
        Add(BytesOf(v), live_until_[v], i + 1);
        live_until_[v] = i + 1;
      }
      for (ValueId w : program_.op_outputs[op]) {
        made_in_[w] = list_;
        live_until_[w] = i + 1;
        Add(BytesOf(w), i, i + 1);
        // What the last op overwrites lasts until it runs; then it is counted as the output.
        const ValueId overwritten = program_.value_in_place_of[w];
        if (overwritten != kNoValue) Add(BytesOf(overwritten), 0, last);
      }
    }
    int64_t live = 0, peak = 0;
    for (int64_t bytes : change_) peak = std::max(peak, live += bytes);
    return peak;
  }

 private:
  int64_t BytesOf(ValueId v) const { return program_.takes_budget(v) ? program_.value_bytes[v] : 0; }
  void Add(int64_t bytes, int32_t begin, int32_t end) {
    change_[begin] += bytes;
    change_[end] -= bytes;
  }

  const StepProgram& program_;
  const Csr touches_;
  std::vector<int32_t> live_until_;   // by value: the member after its last use so far
  std::vector<int32_t> made_in_;      // by value: the last list that makes it
  std::vector<int64_t> change_;       // of live bytes, by member
  int32_t list_ = -1;
};

// Adds nodes to a NodeGraph, op list by op list.
class NodeBuilder {
 public:
  NodeBuilder(const StepProgram& program, NodeGraph* graph)
      : program_(program),
        graph_(graph),
        op_touches_(OpTouches(program)),
        ticks_(CostTicks(program)),
        inner_bytes_(program),
        tracking_(program.num_values(), Tracking::kNone),
        made_in_(program.num_values(), -1) {
    const Csr readers = ValueReaders(program);
    for (ValueId v = 0; v < program.num_values(); ++v) {
      if (program.value_producer[v] == kNoOp) continue;
      if (!readers[v].empty())
        tracking_[v] = Tracking::kFull;
      else if (program.takes_budget(v))
        tracking_[v] = Tracking::kBytesOnly;
    }
    for (ValueId w = 0; w < program.num_values(); ++w) {
      if (program.value_in_place_of[w] != kNoValue) tracking_[program.value_in_place_of[w]] = Tracking::kFull;
    }
  }

  // Appends the node that runs `members`. What all but the last one make stays inside.
  void AddNode(std::span<const OpId> members) {
    const NodeId node = graph_->num_nodes();
    graph_->members.AddRow(members);
    int64_t ticks = 0;
    for (OpId op : members) ticks += ticks_[op];
    graph_->cost_ticks.push_back(ticks);
    graph_->may_run_twice.push_back(!members.empty() && MayRunTwice(program_, members.back()));
    for (OpId op : members) {
      for (ValueId w : program_.op_outputs[op]) made_in_[w] = node;
    }
    AddTouches(node, members);
    int64_t output_bytes = 0;
    for (const Touch& touch : std::span(graph_->touches).subspan(graph_->touch_offsets.back())) {
      if (touch.kind == TouchKind::kMake) output_bytes += graph_->live_bytes[touch.value];
    }
    graph_->workspace_bytes.push_back(std::max<int64_t>(0, inner_bytes_.PeakOf(members) - output_bytes));
    graph_->touch_offsets.push_back(static_cast<int32_t>(graph_->touches.size()));
  }

 private:
  void AddTouches(NodeId node, std::span<const OpId> members) {
    const size_t first = graph_->touches.size();
    auto find = [&](ValueId v) {
      return std::find_if(graph_->touches.begin() + first, graph_->touches.end(),
                          [v](const Touch& touch) { return touch.value == v; });
    };
    for (OpId op : members) {
      for (ValueId v : op_touches_[op]) {
        if (made_in_[v] == node || tracking_[v] != Tracking::kFull) continue;
        if (find(v) == graph_->touches.end()) graph_->touches.push_back({v, TouchKind::kRead});
      }
      for (ValueId w : program_.op_outputs[op]) {
        if (program_.value_in_place_of[w] == kNoValue) continue;
        const auto overwritten = find(program_.value_in_place_of[w]);
        if (overwritten != graph_->touches.end()) overwritten->kind = TouchKind::kOverwrite;
      }
    }
    if (members.empty()) return;
    for (ValueId w : program_.op_outputs[members.back()]) {
      if (tracking_[w] == Tracking::kFull) graph_->touches.push_back({w, TouchKind::kMake});
    }
  }

  const StepProgram& program_;
  NodeGraph* graph_;
  const Csr op_touches_;
  const std::vector<int64_t> ticks_;
  InnerBytes inner_bytes_;
  std::vector<Tracking> tracking_;
  std::vector<NodeId> made_in_;   // by value: the last node added that makes it
};

// The pass of App. C.1 over an order.
class Grouper {
 public:
  Grouper(const StepProgram& program, std::span<const OpId> order, int64_t max_members)
      : program_(program),
        readers_(ValueReaders(program)),
        control_after_(Transpose(program.op_control, program.num_ops())),
        most_in_group_(max_members / 16),
        members_left_(max_members - program.num_ops()),
        position_(program.num_ops()),
        overwritten_at_(program.num_values(), static_cast<Step>(order.size())),
        members_(program.num_ops()),
        inputs_(program.num_ops()),
        inner_bytes_(program),
        has_member_(program.num_ops(), 0),
        seen_by_(program.num_values(), -1) {
    for (Step t = 0; t < static_cast<Step>(order.size()); ++t) {
      const OpId op = order[t];
      position_[op] = t;
      members_[op] = {op};
      inputs_[op].assign(program.op_inputs[op].begin(), program.op_inputs[op].end());
      for (ValueId w : program.op_outputs[op]) {
        if (program.value_in_place_of[w] != kNoValue) overwritten_at_[program.value_in_place_of[w]] = t;
      }
    }
    for (OpId op : order) {
      const std::vector<OpId> readers = ReadersThatTakeIn(op);
      for (OpId reader : readers) TakeIn(op, reader);
      if (!readers.empty()) members_[op].clear();
    }
  }

  const std::vector<OpId>& members(OpId op) const { return members_[op]; }

 private:
  // All readers of `op` when it is to join them, else nobody.
  std::vector<OpId> ReadersThatTakeIn(OpId op) const {
    if (!MayRunTwice(program_, op) || !program_.op_control[op].empty() || !control_after_[op].empty()) return {};
    int64_t input_bytes = 0, output_bytes = 0;
    Step latest = static_cast<Step>(position_.size());
    for (ValueId v : inputs_[op]) {
      input_bytes += program_.value_bytes[v];
      latest = std::min(latest, overwritten_at_[v]);
    }
    std::vector<OpId> readers;
    for (ValueId w : program_.op_outputs[op]) {
      output_bytes += program_.value_bytes[w];
      if (program_.value_in_place_of[w] != kNoValue) return {};
      if (overwritten_at_[w] < static_cast<Step>(position_.size())) return {};
      if (readers_[w].empty()) continue;
      if (readers.empty()) readers.assign(readers_[w].begin(), readers_[w].end());
      // Every reader takes in all outputs that anyone reads, or it would have to keep some for others.
      if (!std::equal(readers.begin(), readers.end(), readers_[w].begin(), readers_[w].end())) return {};
    }
    const bool is_late = std::any_of(readers.begin(), readers.end(), [&](OpId r) { return position_[r] > latest; });
    const int64_t size = static_cast<int64_t>(members_[op].size());
    const bool is_too_large = size * static_cast<int64_t>(readers.size()) > members_left_ ||
                              std::any_of(readers.begin(), readers.end(), [&](OpId r) {
                                return size + static_cast<int64_t>(members_[r].size()) > most_in_group_;
                              });
    if (input_bytes > output_bytes || is_late || is_too_large) return {};
    return readers;
  }

  void TakeIn(OpId op, OpId reader) {
    // An op that both bring along runs twice only if holding what it makes takes more bytes.
    std::vector<OpId>& old = members_[reader];
    std::vector<OpId> twice = members_[op], once = members_[op];
    twice.insert(twice.end(), old.begin(), old.end());
    for (OpId member : members_[op]) has_member_[member] = 1;
    std::copy_if(old.begin(), old.end(), std::back_inserter(once), [&](OpId member) { return !has_member_[member]; });
    for (OpId member : members_[op]) has_member_[member] = 0;
    const bool saves_bytes = inner_bytes_.PeakOf(twice) < inner_bytes_.PeakOf(once);
    std::vector<OpId>& joined = saves_bytes ? twice : once;
    members_left_ -= static_cast<int64_t>(joined.size()) - static_cast<int64_t>(old.size());
    old = std::move(joined);
    // Inputs: those of `op`, and those of `reader` that `op` does not make.
    std::vector<ValueId> inputs = inputs_[op];
    for (ValueId v : inputs) seen_by_[v] = stamp_;
    for (ValueId w : program_.op_outputs[op]) seen_by_[w] = stamp_;
    for (ValueId v : inputs_[reader]) {
      if (seen_by_[v] != stamp_) inputs.push_back(v);
    }
    inputs_[reader] = std::move(inputs);
    ++stamp_;
  }

  const StepProgram& program_;
  const Csr readers_;
  const Csr control_after_;
  const int64_t most_in_group_;
  int64_t members_left_;
  std::vector<Step> position_;
  std::vector<Step> overwritten_at_;            // the order's length: never
  std::vector<std::vector<OpId>> members_;      // empty: joined its readers
  std::vector<std::vector<ValueId>> inputs_;
  InnerBytes inner_bytes_;
  std::vector<uint8_t> has_member_;             // scratch of TakeIn, by op
  std::vector<int32_t> seen_by_;                // scratch: equals `stamp_` when seen
  int32_t stamp_ = 0;
};

}  // namespace

NodeGraph::NodeGraph(const StepProgram& program)
    : control_before(program.op_control),
      control_after(Transpose(program.op_control, program.num_ops())),
      live_bytes(program.num_values(), 0),
      is_given(program.num_values(), 0),
      may_be_shared(program.num_values(), 0),
      shares(program) {
  for (ValueId v = 0; v < program.num_values(); ++v) {
    if (program.takes_budget(v)) live_bytes[v] = program.value_bytes[v];
    is_given[v] = program.value_producer[v] == kNoOp;
  }
  for (OpId op = 0; op < program.num_ops(); ++op) {
    for (const MayShare& share : shares[op]) may_be_shared[share.input] = 1;
  }
}

NodeGraph SingleNodes(const StepProgram& program) {
  NodeGraph graph(program);
  NodeBuilder builder(program, &graph);
  for (OpId op = 0; op < program.num_ops(); ++op) builder.AddNode({&op, 1});
  return graph;
}

GroupedOrder GroupNodes(const StepProgram& program, std::span<const OpId> order, int64_t max_members) {
  CountSteps(100 * std::ssize(order));
  const Grouper grouper(program, order, max_members);
  GroupedOrder result = {NodeGraph(program), {}};
  NodeBuilder builder(program, &result.nodes);
  for (OpId op = 0; op < program.num_ops(); ++op) builder.AddNode(grouper.members(op));
  for (OpId op : order) {
    if (!grouper.members(op).empty()) result.order.push_back(op);
  }
  return result;
}

Schedule MembersInOrder(const NodeGraph& nodes, std::span<const NodeId> sequence) {
  Schedule schedule;
  for (NodeId node : sequence) {
    schedule.insert(schedule.end(), nodes.members[node].begin(), nodes.members[node].end());
  }
  return schedule;
}

}  // namespace coopjax
