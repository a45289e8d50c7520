#include "bridge/text.h"

#include <iterator>
#include <string_view>

namespace coopjax {

std::string OpKind(const hlo::Graph& graph, int32_t instruction) {
  const hlo::Op op = graph.op(instruction);
  const std::string_view opcode = graph.instruction(instruction).opcode;
  if (op == hlo::Op::kCustomCall) {
    const std::string_view target = graph.instruction(instruction).custom_call_target;
    if (target.find("conv") != std::string_view::npos) return "convolution";
    if (target.find("gemm") != std::string_view::npos || target.find("matmul") != std::string_view::npos) return "dot";
  }
  if (op != hlo::Op::kFusion && op != hlo::Op::kCall) return std::string(opcode);
  const int32_t computation = graph.called(instruction)[0];
  std::string most;
  for (const int32_t inner : graph.module().computations[computation].instructions) {
    const std::string kind = OpKind(graph, inner);
    if (kind == "convolution" || (kind == "dot" && most.empty())) most = kind;
  }
  if (!most.empty()) return most;
  int32_t root = graph.root(computation);
  while ((graph.op(root) == hlo::Op::kTuple || graph.op(root) == hlo::Op::kBitcast) && !graph.operands(root).empty()) {
    root = graph.operands(root)[0];
  }
  return OpKind(graph, root);
}

std::string ShapeText(const hlo::Shape& shape) {
  static constexpr const char* kNames[] = {
      "?",    "pred",   "s8",       "s16", "s32",   "s64",           "u8",         "u16",        "u32",
      "u64",  "f16",    "f32",      "f64", "tuple", "opaque",        "c64",        "bf16",       "token",
      "c128", "f8e5m2", "f8e4m3fn", "s4",  "u4",    "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s2",
      "u2",   "f8e4m3", "f8e3m4",   "s1",  "u1",    "f4e2m1fn",      "f8e8m0fnu"};
  std::string text;
  const auto append = [&text](const std::string& item, const char* separator) {
    if (!text.empty()) text += separator;
    text += item;
  };
  if (shape.is_tuple()) {
    for (const hlo::Shape& element : shape.tuple_shapes) append(ShapeText(element), ", ");
    return std::string("(").append(text).append(")");
  }
  const bool is_known = shape.element_type > 0 && shape.element_type < std::ssize(kNames);
  const std::string name = kNames[is_known ? shape.element_type : 0];
  if (!shape.is_array()) return name;
  for (const int64_t size : shape.dimensions) append(std::to_string(size), ",");
  return name + "[" + text + "]";
}

}  // namespace coopjax
