#include "bridge/hlo_program.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "bridge/effects.h"
#include "bridge/text.h"
#include "bridge/trip_count.h"
#include "buffers/heap_simulator.h"
#include "hlo/async_distance.h"

namespace coopjax {
namespace {

// How often a computation runs in one run of the module, as far as trip counts are known.
double NumRuns(const hlo::Graph& graph, int32_t computation) {
  double num_runs = 1;
  while (computation != graph.module().entry) {
    const int32_t caller = graph.callers(computation)[0];
    if (graph.op(caller) == hlo::Op::kWhile) num_runs *= static_cast<double>(TripCount(graph, caller));
    computation = graph.instruction(caller).computation;
  }
  return num_runs;
}

// Something for every instruction of one computation.
template <typename T>
class PerInstruction {
 public:
  PerInstruction(const hlo::Computation& computation, const T& value)
      : first_(computation.instructions.front()), values_(computation.instructions.size(), value) {}
  T& operator[](int32_t i) { return values_[i - first_]; }
  const T& operator[](int32_t i) const { return values_[i - first_]; }

 private:
  const int32_t first_;
  std::vector<T> values_;
};

class ProgramBuilder {
 public:
  ProgramBuilder(const HloAnalysis& analysis, int32_t computation, const Roofline& roofline, HloProgram* result)
      : alias_(*analysis.alias),
        graph_(alias_.graph()),
        dataflow_(alias_.dataflow()),
        ranges_(analysis.ranges),
        metadata_(analysis.metadata),
        computation_(computation),
        own_(graph_.module().computations[computation]),
        roofline_(roofline),
        result_(*result),
        program_(result->program),
        cost_model_(graph_),
        num_runs_(NumRuns(graph_, computation)),
        op_of_(own_, kNoOp),
        dependences_(own_, {}),
        made_of_(own_, {}),
        start_of_(own_, -1),
        is_start_(own_, 0) {
    step_value_.assign(dataflow_.num_values(), kNoValue);
    last_in_buffer_.assign(alias_.num_buffers(), kNoValue);
    MarkOuterBuffers();
    FindMadeOf();
    FindStarts();
  }

  void Run() {
    // Parameters are there from the start, wherever they are scheduled.
    for (const bool are_parameters : {true, false}) {
      for (const int32_t i : graph_.sequence(computation_)) {
        if ((graph_.op(i) == hlo::Op::kParameter) != are_parameters) continue;
        if (hlo::IsGlue(graph_.op(i))) {
          AddGlue(i);
        } else {
          AddOp(i);
        }
      }
    }
    SetWorkspaces();
    SetCanRecompute();
  }

 private:
  void MarkOuterBuffers();
  void FindMadeOf();
  std::span<const int32_t> MadeOf(const int32_t& i) const {
    return IsNoOp(i) ? std::span<const int32_t>(made_of_[i]) : std::span(&i, 1);
  }
  bool IsNoOp(int32_t i) const { return hlo::IsGlue(graph_.op(i)) || graph_.is_dropped(i); }
  void FindStarts();
  void AddGlue(int32_t i);
  void AddOp(int32_t i);
  ValueId AddValue(int32_t value, OpId producer, ValueKind kind);
  ValueKind KindOf(int32_t value) const;
  void AddInputs(int32_t i);
  void AddOutputs(int32_t i, OpId op);
  void AddDependences(int32_t i);
  void AddControl(int32_t i);
  void KeepAsyncDistance(int32_t i, std::vector<OpId>* control);
  void AddMayShare(int32_t i, OpId op);
  void AddDescription(int32_t i);
  void SetWorkspaces();
  void SetCanRecompute();

  const HloAlias& alias_;
  const hlo::Graph& graph_;
  const HloDataflow& dataflow_;
  const HloLiveRanges& ranges_;
  const hlo::MetadataReader& metadata_;
  const int32_t computation_;
  const hlo::Computation& own_;
  const Roofline& roofline_;
  HloProgram& result_;
  StepProgram& program_;
  CostModel cost_model_;
  const double num_runs_;
  std::vector<ValueId> step_value_;                // [HloDataflow value]
  PerInstruction<OpId> op_of_;
  std::vector<int32_t> op_instruction_;            // [op]
  PerInstruction<std::vector<OpId>> dependences_;  // ops it must follow, other than by data
  PerInstruction<std::vector<int32_t>> made_of_;   // of what is no op: the ops that it shows or reads
  std::vector<OpId> feeds_;                        // [op]: the latest op that reads a value of it
  std::vector<ValueId> last_in_buffer_;            // [alias buffer]: its latest value
  OpId last_with_effects_ = kNoOp;
  PerInstruction<int32_t> start_of_;               // the start that it is the done of, -1: none
  PerInstruction<uint8_t> is_start_;
  std::vector<OpId> in_flight_;                    // starts whose done is still to come
  std::vector<uint8_t> is_outer_;                  // [alias buffer]: somebody else's, see MarkOuterBuffers
};

// The caller owns the buffers that come in by parameters, and those that the root hands to it.
void ProgramBuilder::MarkOuterBuffers() {
  is_outer_.assign(alias_.num_buffers(), 0);
  const auto mark = [&](int32_t i) {
    for (hlo::Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
      const int32_t value = dataflow_.value_at(node);
      if (value != HloDataflow::kNoValue) is_outer_[alias_.buffer_of(value)] = 1;
    }
  };
  for (const int32_t i : graph_.sequence(computation_)) {
    if (graph_.op(i) == hlo::Op::kParameter) mark(i);
  }
  mark(graph_.root(computation_));
}

// The graph sees a value where it is defined, however it comes to its reader: through a barrier with others, or through
// an op that hands it on (an asynchronous done, a loop around it). The module's schedule must have those, too.
void ProgramBuilder::FindMadeOf() {
  for (const int32_t i : own_.instructions) {  // operands come first
    if (!IsNoOp(i)) continue;
    std::vector<int32_t>& made_of = made_of_[i];
    for (const int32_t operand : graph_.instruction(i).operands) {
      const auto shown = MadeOf(operand);
      made_of.insert(made_of.end(), shown.begin(), shown.end());
    }
    std::ranges::sort(made_of);
    made_of.erase(std::ranges::unique(made_of).begin(), made_of.end());
  }
}

void ProgramBuilder::FindStarts() {
  for (const int32_t i : graph_.sequence(computation_)) {
    const hlo::Instruction* start = hlo::StartOf(graph_.module(), graph_.instruction(i));
    if (start != nullptr) start_of_[i] = static_cast<int32_t>(start - graph_.module().instructions.data());
    if (start != nullptr) is_start_[start_of_[i]] = 1;
  }
}

ValueId ProgramBuilder::AddValue(int32_t value, OpId producer, ValueKind kind) {
  const ValueId id = program_.num_values();
  step_value_[value] = id;
  program_.value_bytes.push_back(alias_.value_bytes(value));
  program_.value_producer.push_back(producer);
  program_.value_kind.push_back(kind);
  result_.value_types.push_back(ShapeText(graph_.shape(dataflow_.definition(value))));
  // What had the buffer before is overwritten. (Values of one buffer are never live together.)
  ValueId& last = last_in_buffer_[alias_.buffer_of(value)];
  program_.value_in_place_of.push_back(producer == kNoOp ? kNoValue : last);
  last = id;
  return id;
}

ValueKind ProgramBuilder::KindOf(int32_t value) const {
  return is_outer_[alias_.buffer_of(value)] ? ValueKind::kOutput : ValueKind::kTemporary;
}

void ProgramBuilder::AddGlue(int32_t i) {
  AddDependences(i);
  const bool is_parameter = graph_.op(i) == hlo::Op::kParameter;
  if (!is_parameter && graph_.op(i) != hlo::Op::kConstant) return;
  for (hlo::Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
    const int32_t value = dataflow_.value_at(node);
    // A caller may hand one value in twice.
    if (!graph_.shape(node).is_array() || value == HloDataflow::kNoValue || step_value_[value] != kNoValue) continue;
    AddValue(value, kNoOp, is_parameter ? ValueKind::kParameter : ValueKind::kConstant);
  }
}

void ProgramBuilder::AddOp(int32_t i) {
  const OpId op = program_.num_ops();
  op_of_[i] = op;
  feeds_.push_back(kNoOp);
  op_instruction_.push_back(i);
  AddInputs(i);
  AddOutputs(i, op);
  AddDependences(i);
  AddControl(i);
  AddMayShare(i, op);
  const OpCost cost = cost_model_.Cost(i);
  program_.op_cost_s.push_back(num_runs_ * cost_model_.Seconds(i, roofline_));
  program_.op_flops.push_back(num_runs_ * (cost.flops + kTranscendentalFlops * cost.transcendentals));
  program_.schedule.push_back(op);
  AddDescription(i);
}

void ProgramBuilder::AddInputs(int32_t i) {
  std::vector<ValueId> inputs;
  for (const int32_t operand : graph_.operands(i)) {
    for (hlo::Node node = graph_.node_base(operand); node < graph_.node_end(operand); ++node) {
      const int32_t value = dataflow_.value_at(node);
      if (value == HloDataflow::kNoValue || step_value_[value] == kNoValue) continue;
      // What an asynchronous start has overwritten stays in its result, but its done does not read it.
      if (start_of_[i] >= 0 && last_in_buffer_[alias_.buffer_of(value)] != step_value_[value]) continue;
      if (std::ranges::find(inputs, step_value_[value]) == inputs.end()) inputs.push_back(step_value_[value]);
    }
  }
  program_.op_inputs.AddRow(inputs);
}

void ProgramBuilder::AddOutputs(int32_t i, OpId op) {
  std::vector<ValueId> outputs;
  for (hlo::Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
    const int32_t value = dataflow_.value_at(node);
    if (value == HloDataflow::kNoValue || !graph_.shape(node).is_array() || step_value_[value] != kNoValue) continue;
    if (graph_.op(dataflow_.defining_instruction(value)) == hlo::Op::kConstant) {
      AddValue(value, kNoOp, ValueKind::kConstant);  // a call that returns a constant
    } else {
      outputs.push_back(AddValue(value, op, KindOf(value)));
    }
  }
  program_.op_outputs.AddRow(outputs);
}

// Order that no value carries: control predecessors, tokens, and those of the glue in between.
void ProgramBuilder::AddDependences(int32_t i) {
  std::vector<OpId>& dependences = dependences_[i];
  const auto follow = [&](int32_t earlier) {
    if (op_of_[earlier] != kNoOp) {
      dependences.push_back(op_of_[earlier]);
      return;
    }
    const auto& inherited = dependences_[earlier];
    dependences.insert(dependences.end(), inherited.begin(), inherited.end());
    for (const int32_t operand : graph_.operands(earlier)) {
      if (op_of_[operand] != kNoOp) dependences.push_back(op_of_[operand]);
    }
  };
  for (const int32_t predecessor : graph_.control_predecessors(i)) follow(predecessor);
  const auto operands = graph_.operands(i);
  for (size_t number = 0; number < operands.size(); ++number) {
    const int32_t operand = operands[number];
    const bool orders = graph_.instruction(operand).shape->is_token() || graph_.op(i) == hlo::Op::kAfterAll ||
                        (graph_.op(i) == hlo::Op::kAddDependency && number == 1);
    if (orders) {
      follow(operand);
    } else if (op_of_[operand] == kNoOp) {
      dependences.insert(dependences.end(), dependences_[operand].begin(), dependences_[operand].end());
    }
  }
  std::ranges::sort(dependences);
  dependences.erase(std::ranges::unique(dependences).begin(), dependences.end());
}

void ProgramBuilder::AddControl(int32_t i) {
  std::vector<OpId> control = dependences_[i];
  for (const ValueId input : program_.op_inputs[op_of_[i]]) {
    if (program_.value_producer[input] != kNoOp) feeds_[program_.value_producer[input]] = op_of_[i];
  }
  for (const int32_t operand : graph_.instruction(i).operands) {
    for (const int32_t earlier : MadeOf(operand)) {
      if (feeds_[op_of_[earlier]] != op_of_[i]) control.push_back(op_of_[earlier]);
    }
  }
  if (HasEffects(graph_, i)) {
    if (last_with_effects_ != kNoOp) control.push_back(last_with_effects_);
    last_with_effects_ = op_of_[i];
  }
  KeepAsyncDistance(i, &control);
  std::ranges::sort(control);
  control.erase(std::ranges::unique(control).begin(), control.end());
  program_.op_control.AddRow(control);
}

// What hides an asynchronous operation follows its start and precedes its done.
void ProgramBuilder::KeepAsyncDistance(int32_t i, std::vector<OpId>* control) {
  if (start_of_[i] >= 0) {
    const OpId start = op_of_[start_of_[i]];
    std::erase(in_flight_, start);
    for (OpId between = start + 1; between < op_of_[i]; ++between) control->push_back(between);
  }
  control->insert(control->end(), in_flight_.begin(), in_flight_.end());
  if (is_start_[i]) in_flight_.push_back(op_of_[i]);
}

void ProgramBuilder::AddMayShare(int32_t i, OpId op) {
  if (graph_.op(i) == hlo::Op::kCopy) return;
  const auto is_candidate = [&](int32_t value) {
    return value != HloDataflow::kNoValue && step_value_[value] != kNoValue &&
           program_.value_kind[step_value_[value]] == ValueKind::kTemporary &&
           alias_.values(alias_.buffer_of(value)).size() == 1;
  };
  for (hlo::Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
    const int32_t output = dataflow_.value_at(node);
    if (!is_candidate(output) || dataflow_.definition(output) != node) continue;
    for (const int32_t operand : graph_.operands(i)) {
      const int32_t input = dataflow_.value_at(graph_.node_base(operand));
      // XLA looks at operands that define their value themselves, not through a bitcast.
      if (!is_candidate(input) || !graph_.is_user_of(i, dataflow_.defining_instruction(input))) continue;
      if (!alias_.CanShareOperandBuffer(dataflow_.definition(input), node)) continue;
      const MayShare share = {op, step_value_[input], step_value_[output]};
      const bool is_known = !program_.may_share.empty() && program_.may_share.back().op == op &&
                            program_.may_share.back().input == share.input &&
                            program_.may_share.back().output == share.output;
      if (!is_known) program_.may_share.push_back(share);
    }
  }
}

void ProgramBuilder::AddDescription(int32_t i) {
  const hlo::Instruction& instruction = graph_.instruction(i);
  result_.op_instruction_ids.push_back(instruction.id);
  result_.op_names.emplace_back(instruction.name);
  result_.op_kinds.push_back(OpKind(graph_, i));
  const hlo::Metadata metadata = metadata_.Read(instruction);
  result_.op_scopes.emplace_back(metadata.op_name);
  result_.op_sources.push_back(metadata.Source());
}

// What lives only inside an op's computations, at its worst moment.
void ProgramBuilder::SetWorkspaces() {
  program_.op_workspace_bytes.assign(program_.num_ops(), 0);
  const auto runs_others = [this](int32_t i) { return hlo::IsControlFlowCall(graph_.op(i)); };
  if (std::ranges::none_of(own_.instructions, runs_others)) return;
  const HloLiveRanges::Span span = ranges_.span[computation_];
  std::vector<uint8_t> is_inner(dataflow_.num_values(), 0);
  for (int32_t buffer = 0; buffer < alias_.num_buffers(); ++buffer) {
    const auto values = alias_.values(buffer);
    const bool is_temporary = std::ranges::all_of(values, [&](int32_t value) {
      const hlo::Node node = dataflow_.definition(value);
      const int32_t start = ranges_.of_value[value].start;
      return start >= span.start && start < span.end && step_value_[value] == kNoValue &&
             graph_.shape(node).is_array() && graph_.op(graph_.owner(node)) != hlo::Op::kConstant;
    });
    for (const int32_t value : values) is_inner[value] = is_temporary;
  }
  // Intervals come in order of time, and each op's inner instructions stand right before it.
  const std::vector<HeapInterval> intervals = SimulateHeap(alias_, ranges_, is_inner);
  size_t next = 0;
  for (OpId op = 0; op < program_.num_ops() && next < intervals.size(); ++op) {
    const size_t first = next;
    std::vector<HeapInterval> inner;
    for (; next < intervals.size() && intervals[next].start_time < ranges_.time[op_instruction_[op]]; ++next) {
      inner.push_back(intervals[next]);
      if (inner.back().shared_with >= 0) inner.back().shared_with -= static_cast<int32_t>(first);
    }
    program_.op_workspace_bytes[op] = PeakLiveBytes(inner);
  }
}

void ProgramBuilder::SetCanRecompute() {
  PerInstruction<uint8_t> is_tied(own_, 0);
  for (const int32_t i : graph_.sequence(computation_)) {
    for (const int32_t predecessor : graph_.control_predecessors(i)) is_tied[i] = is_tied[predecessor] = 1;
  }
  for (OpId op = 0; op < program_.num_ops(); ++op) {
    const int32_t i = op_instruction_[op];
    bool can_recompute = !is_tied[i] && dependences_[i].empty() && IsPure(graph_, i) && !HasEffects(graph_, i) &&
                         !WritesInPlace(graph_, i);
    for (const ValueId value : program_.op_outputs[op]) {
      can_recompute &= program_.value_kind[value] == ValueKind::kTemporary;
      can_recompute &= program_.value_in_place_of[value] == kNoValue;
    }
    program_.op_can_recompute.push_back(can_recompute);
  }
}

}  // namespace

std::string BuildHloProgram(const HloAnalysis& analysis, const Roofline& roofline, HloProgram* result,
                            int32_t computation) {
  const hlo::Graph& graph = analysis.graph;
  if (computation == hlo::kEntryComputation) computation = graph.module().entry;
  const bool is_planned =
      computation >= 0 && computation < std::ssize(graph.module().computations) && graph.is_control_flow(computation);
  if (!is_planned) return "the computation is not called by a loop, a conditional or a call";
  ProgramBuilder(analysis, computation, roofline, result).Run();
  return CheckProgram(result->program);
}

}  // namespace coopjax
