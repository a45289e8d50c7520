// Builds small StepPrograms for tests, op by op in schedule order, and random ones.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "program/step_program.h"

namespace coopjax::testing {

struct OpSpec {
  std::vector<ValueId> inputs = {};
  std::vector<int64_t> output_bytes = {};
  double cost_s = 1;
  ValueKind kind = ValueKind::kTemporary;   // of all outputs
  bool can_recompute = true;
  int64_t workspace_bytes = 0;
  ValueId in_place_of = kNoValue;           // of the first output
  std::vector<ValueId> share = {};          // inputs whose buffer the first output may take over
  std::vector<OpId> control = {};
};

class ProgramBuilder {
 public:
  ValueId Given(int64_t bytes, ValueKind kind = ValueKind::kParameter) {
    return AddValue(bytes, kNoOp, kind, kNoValue);
  }

  // The first output's id; the others follow it.
  ValueId Op(const OpSpec& spec) {
    const OpId op = program_.num_ops();
    std::vector<ValueId> outputs;
    for (size_t i = 0; i < spec.output_bytes.size(); ++i) {
      outputs.push_back(AddValue(spec.output_bytes[i], op, spec.kind, i == 0 ? spec.in_place_of : kNoValue));
    }
    program_.op_inputs.AddRow(spec.inputs);
    program_.op_outputs.AddRow(outputs);
    program_.op_control.AddRow(spec.control);
    program_.op_cost_s.push_back(spec.cost_s);
    program_.op_flops.push_back(spec.cost_s);
    program_.op_workspace_bytes.push_back(spec.workspace_bytes);
    program_.op_can_recompute.push_back(spec.can_recompute);
    for (ValueId v : spec.share) program_.may_share.push_back({op, v, outputs[0]});
    program_.schedule.push_back(op);
    return outputs.empty() ? kNoValue : outputs[0];
  }

  StepProgram& program() { return program_; }

 private:
  ValueId AddValue(int64_t bytes, OpId producer, ValueKind kind, ValueId in_place_of) {
    program_.value_bytes.push_back(bytes);
    program_.value_producer.push_back(producer);
    program_.value_kind.push_back(kind);
    program_.value_in_place_of.push_back(in_place_of);
    return program_.num_values() - 1;
  }

  StepProgram program_;
};

// A chain forward and back, as of one weight per layer: values of `bytes`, f1 .. fn, then b_n .. b_1, where
// b_i reads f_(i-1), its own f_i and b_(i+1). Ops cost 1. Op i - 1 makes f_i, op 2n - i makes b_i.
inline StepProgram ForwardBackwardChain(int num_layers, int64_t bytes) {
  ProgramBuilder builder;
  std::vector<ValueId> forward = {builder.Given(bytes)};
  for (int i = 1; i <= num_layers; ++i)
    forward.push_back(builder.Op({.inputs = {forward.back()}, .output_bytes = {bytes}}));
  ValueId cotangent = kNoValue;
  for (int i = num_layers; i >= 1; --i) {
    std::vector<ValueId> inputs = {forward[i - 1], forward[i]};
    if (cotangent != kNoValue) inputs.push_back(cotangent);
    cotangent = builder.Op({.inputs = inputs, .output_bytes = {bytes}});
  }
  builder.Op({.inputs = {cotangent}, .output_bytes = {bytes}, .kind = ValueKind::kOutput, .can_recompute = false});
  return builder.program();
}

// Everything the rules allow: several outputs, zero sizes, workspace, pinned ops, outputs, donated
// parameters, in-place pairs, shared buffers, control edges.
inline StepProgram RandomProgram(uint32_t seed, int num_ops) {
  std::mt19937 random(seed);
  auto below = [&random](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  ProgramBuilder builder;
  std::vector<ValueId> readable;
  std::vector<uint8_t> is_spoilt(num_ops * 3 + 8, 0);
  for (int i = 0; i < 3; ++i) readable.push_back(builder.Given(below(16)));
  for (OpId op = 0; op < num_ops; ++op) {
    OpSpec spec;
    for (int i = below(4); i >= 0; --i) {
      // Mostly recent values, sometimes old ones: residuals.
      const int size = static_cast<int>(readable.size());
      const ValueId v = readable[below(3) ? std::max(0, size - 1 - below(6)) : below(size)];
      if (!is_spoilt[v] && std::find(spec.inputs.begin(), spec.inputs.end(), v) == spec.inputs.end()) {
        spec.inputs.push_back(v);
      }
    }
    for (int i = below(8) ? 1 : below(4); i > 0; --i) spec.output_bytes.push_back(below(5) ? 1 + below(15) : 0);
    spec.cost_s = below(9);
    spec.kind = below(10) ? ValueKind::kTemporary : ValueKind::kOutput;
    spec.can_recompute = below(8) > 0;
    spec.workspace_bytes = below(6) ? 0 : below(10);
    if (op > 0 && below(12) == 0) spec.control.push_back(below(op));
    StepProgram& program = builder.program();
    if (!spec.output_bytes.empty() && !spec.inputs.empty() && below(6) == 0) {
      const ValueId v = spec.inputs[0];
      const bool is_donated = program.value_kind[v] == ValueKind::kParameter;
      const bool fits = is_donated ? spec.kind == ValueKind::kOutput : program.value_kind[v] == spec.kind;
      if (fits) {
        spec.in_place_of = v;
        spec.output_bytes[0] = program.value_bytes[v];
        is_spoilt[v] = 1;
      }
    } else if (!spec.output_bytes.empty()) {
      for (ValueId v : spec.inputs) {
        if (below(3) == 0 && program.value_bytes[v] >= spec.output_bytes[0]) spec.share.push_back(v);
      }
    }
    const ValueId first = builder.Op(spec);
    for (size_t i = 0; i < spec.output_bytes.size(); ++i) readable.push_back(first + static_cast<ValueId>(i));
  }
  return builder.program();
}

}  // namespace coopjax::testing
