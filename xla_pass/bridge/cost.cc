#include "bridge/cost.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>

#include "hlo/wire.h"

namespace coopjax {
namespace {

struct WindowDimension {
  int64_t size = 1, stride = 1, padding_low = 0, padding_high = 0, window_dilation = 1, base_dilation = 1;
};

// The attributes of one instruction that only its cost depends on.
struct Attributes {
  std::vector<WindowDimension> window;
  std::vector<int64_t> lhs_contracting_dimensions;
  std::vector<int64_t> fft_length;
  int64_t input_batch = 0, input_feature = 0, output_feature = 0;
  std::vector<int64_t> input_spatial, kernel_spatial, output_spatial;
  int64_t feature_group_count = 1, batch_group_count = 1;
};

void ParseWindow(std::string_view message, std::vector<WindowDimension>* window) {
  hlo::WireReader reader(message);
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number != 1) continue;
    WindowDimension& dimension = window->emplace_back();
    hlo::WireReader part(field.bytes);
    for (hlo::WireField attribute; part.Next(&attribute);) {
      switch (attribute.number) {
        case 1:
          dimension.size = attribute.as_int64();
          break;
        case 2:
          dimension.stride = attribute.as_int64();
          break;
        case 3:
          dimension.padding_low = attribute.as_int64();
          break;
        case 4:
          dimension.padding_high = attribute.as_int64();
          break;
        case 5:
          dimension.window_dilation = std::max<int64_t>(1, attribute.as_int64());
          break;
        case 6:
          dimension.base_dilation = std::max<int64_t>(1, attribute.as_int64());
          break;
      }
    }
  }
}

void ParseConvolutionDimensions(std::string_view message, Attributes* attributes) {
  hlo::WireReader reader(message);
  for (hlo::WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 6:
        hlo::ReadRepeatedInt64(field, &attributes->kernel_spatial);
        break;
      case 7:
        attributes->input_batch = field.as_int64();
        break;
      case 8:
        attributes->input_feature = field.as_int64();
        break;
      case 10:
        attributes->output_feature = field.as_int64();
        break;
      case 11:
        hlo::ReadRepeatedInt64(field, &attributes->input_spatial);
        break;
      case 12:
        hlo::ReadRepeatedInt64(field, &attributes->output_spatial);
        break;
    }
  }
}

Attributes ParseAttributes(const hlo::Instruction& instruction) {
  Attributes attributes;
  hlo::WireReader reader(instruction.raw);
  for (hlo::WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 15:
        ParseWindow(field.bytes, &attributes.window);
        break;
      case 16:
        ParseConvolutionDimensions(field.bytes, &attributes);
        break;
      case 30: {
        hlo::WireReader dimensions(field.bytes);
        for (hlo::WireField part; dimensions.Next(&part);) {
          if (part.number == 1) hlo::ReadRepeatedInt64(part, &attributes.lhs_contracting_dimensions);
        }
        break;
      }
      case 32:
        hlo::ReadRepeatedInt64(field, &attributes.fft_length);
        break;
      case 50:
        attributes.feature_group_count = std::max<int64_t>(1, field.as_int64());
        break;
      case 58:
        attributes.batch_group_count = std::max<int64_t>(1, field.as_int64());
        break;
    }
  }
  return attributes;
}

int64_t DimensionOr1(const hlo::Shape& shape, int64_t dimension) {
  return dimension >= 0 && dimension < std::ssize(shape.dimensions) ? shape.dimensions[dimension] : 1;
}

double DotFlops(const hlo::Shape& lhs, const hlo::Shape& result, const Attributes& attributes) {
  double width = 1;
  for (const int64_t dimension : attributes.lhs_contracting_dimensions) width *= DimensionOr1(lhs, dimension);
  return 2.0 * static_cast<double>(result.num_elements()) * width;
}

// Pairs (output position, kernel position) that meet an input element, not padding or a dilation hole.
double ValidPositions(const WindowDimension& window, int64_t input, int64_t kernel, int64_t output) {
  double count = 0;
  for (int64_t k = 0; k < kernel; ++k) {
    // Outputs o with 0 <= o * stride + shift < input * base_dilation, on a multiple of the dilation.
    const int64_t shift = k * window.window_dilation - window.padding_low;
    const int64_t stride = std::max<int64_t>(1, window.stride);
    const int64_t first = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
    const int64_t limit = (input - 1) * window.base_dilation - shift;
    const int64_t last = limit < 0 ? -1 : std::min(output - 1, limit / stride);
    const int64_t period = window.base_dilation / std::gcd(window.base_dilation, stride);
    for (int64_t o = first; o < first + period && o <= last; ++o) {
      if ((o * stride + shift) % window.base_dilation != 0) continue;
      count += static_cast<double>((last - o) / period + 1);
      break;
    }
  }
  return count;
}

double ConvolutionFlops(const hlo::Shape& lhs, const hlo::Shape& rhs, const hlo::Shape& result,
                        const Attributes& attributes) {
  double positions = 1;
  for (size_t k = 0; k < attributes.window.size(); ++k) {
    if (k >= attributes.input_spatial.size() || k >= attributes.kernel_spatial.size() ||
        k >= attributes.output_spatial.size()) {
      break;
    }
    positions *= ValidPositions(attributes.window[k], DimensionOr1(lhs, attributes.input_spatial[k]),
                                DimensionOr1(rhs, attributes.kernel_spatial[k]),
                                DimensionOr1(result, attributes.output_spatial[k]));
  }
  return 2.0 * static_cast<double>(DimensionOr1(lhs, attributes.input_feature) / attributes.feature_group_count) *
         static_cast<double>(DimensionOr1(result, attributes.output_feature)) *
         static_cast<double>(DimensionOr1(lhs, attributes.input_batch) / attributes.batch_group_count) * positions;
}

double WindowElements(const Attributes& attributes) {
  double count = 1;
  for (const WindowDimension& dimension : attributes.window) count *= static_cast<double>(dimension.size);
  return count;
}

double CeilLog2(int64_t n) { return n > 1 ? static_cast<double>(std::bit_width(static_cast<uint64_t>(n - 1))) : 0; }

// The first array of a result: that of a reduce over several operands, say.
const hlo::Shape& FirstArray(const hlo::Shape& shape) {
  return shape.is_tuple() && !shape.tuple_shapes.empty() ? FirstArray(shape.tuple_shapes[0]) : shape;
}

}  // namespace

int64_t TripCount(const hlo::Instruction& loop) {
  hlo::WireReader reader(loop.raw);
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number != 43) continue;
    const size_t key = field.bytes.find("\"known_trip_count\"");
    if (key == std::string_view::npos) return 1;
    const size_t digits = field.bytes.find_first_of("0123456789", key);
    int64_t count = 0;
    if (digits != std::string_view::npos) {
      std::from_chars(field.bytes.data() + digits, field.bytes.data() + field.bytes.size(), count);
    }
    return std::max<int64_t>(count, 1);
  }
  return 1;
}

CostModel::CostModel(const hlo::Graph& graph, bool count_iterations)
    : graph_(graph), count_iterations_(count_iterations) {
  computation_cost_.resize(graph.module().computations.size());
  is_known_.assign(graph.module().computations.size(), 0);
}

double CostModel::ArrayBytes(int32_t i) const {
  double bytes = 0;
  for (hlo::Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
    if (graph_.shape(node).is_array()) bytes += static_cast<double>(graph_.shape(node).byte_size());
  }
  return bytes;
}

double CostModel::OperandAndResultBytes(int32_t i) const {
  double bytes = ArrayBytes(i);
  for (const int32_t operand : graph_.operands(i)) bytes += ArrayBytes(operand);
  return bytes;
}

OpCost CostModel::ComputationCost(int32_t computation) {
  if (!is_known_[computation]) {
    OpCost sum;
    for (const int32_t i : graph_.module().computations[computation].instructions) {
      const OpCost cost = Cost(i);
      sum.flops += cost.flops;
      sum.transcendentals += cost.transcendentals;
      sum.bytes_accessed += cost.bytes_accessed;
    }
    computation_cost_[computation] = sum;
    is_known_[computation] = 1;
  }
  return computation_cost_[computation];
}

// The called computation's cost `count` times, with the bytes of the instruction itself.
OpCost CostModel::ScaledCallee(int32_t i, int32_t called_number, double count) {
  if (called_number >= std::ssize(graph_.called(i))) return {0, 0, OperandAndResultBytes(i)};
  const OpCost callee = ComputationCost(graph_.called(i)[called_number]);
  return {callee.flops * count, callee.transcendentals * count, OperandAndResultBytes(i)};
}

// Bytes that a fusion reads of a parameter: slices read only what they return, and everything else
// shares one pass.
double CostModel::FusionParameterBytes(int32_t parameter) const {
  double bytes = 0;
  bool is_read_whole = false;
  for (const int32_t user : graph_.users(parameter)) {
    const hlo::Op op = graph_.op(user);
    const auto operands = graph_.operands(user);
    if (op == hlo::Op::kFusion) {
      for (int32_t number = 0; number < std::ssize(operands); ++number) {
        const int32_t inner = graph_.parameter(graph_.called(user)[0], number);
        if (operands[number] == parameter && inner >= 0) bytes += FusionParameterBytes(inner);
      }
    } else if (op == hlo::Op::kSlice ||
               ((op == hlo::Op::kDynamicSlice || op == hlo::Op::kGather) && operands[0] == parameter)) {
      bytes += ArrayBytes(user);
    } else if (op == hlo::Op::kBroadcast || op == hlo::Op::kReshape) {
      bytes += ArrayBytes(parameter);
    } else if (!(op == hlo::Op::kDynamicUpdateSlice && operands[0] == parameter) && !is_read_whole) {
      is_read_whole = true;
      bytes += ArrayBytes(parameter);
    }
  }
  return bytes;
}

OpCost CostModel::FusionCost(int32_t i) {
  const int32_t computation = graph_.called(i)[0];
  OpCost cost = ComputationCost(computation);
  cost.bytes_accessed = 0;
  const int32_t root = graph_.root(computation);
  const auto written_bytes = [&](int32_t result) {
    // A dynamic-update-slice at the root writes only the update.
    return ArrayBytes(graph_.op(result) == hlo::Op::kDynamicUpdateSlice ? graph_.operands(result)[1] : result);
  };
  if (graph_.op(root) == hlo::Op::kTuple) {
    for (const int32_t result : graph_.operands(root)) cost.bytes_accessed += written_bytes(result);
  } else {
    cost.bytes_accessed += written_bytes(root);
  }
  for (int32_t number = 0; number < std::ssize(graph_.operands(i)); ++number) {
    const int32_t parameter = graph_.parameter(computation, number);
    if (parameter >= 0) cost.bytes_accessed += FusionParameterBytes(parameter);
  }
  return cost;
}

OpCost CostModel::ControlFlowCost(int32_t i) {
  OpCost cost;
  if (graph_.op(i) == hlo::Op::kConditional) {
    for (const int32_t branch : graph_.called(i)) {
      const OpCost inner = ComputationCost(branch);
      cost = {std::max(cost.flops, inner.flops), std::max(cost.transcendentals, inner.transcendentals),
              std::max(cost.bytes_accessed, inner.bytes_accessed)};
    }
    return cost;
  }
  const bool is_loop = graph_.op(i) == hlo::Op::kWhile && count_iterations_;
  const double count = is_loop ? static_cast<double>(TripCount(graph_.instruction(i))) : 1;
  for (const int32_t callee : graph_.called(i)) {
    const OpCost inner = ComputationCost(callee);
    cost.flops += count * inner.flops;
    cost.transcendentals += count * inner.transcendentals;
    cost.bytes_accessed += count * inner.bytes_accessed;
  }
  return cost;
}

// Ops that apply a computation to elements: reduce, map, reduce-window, select-and-scatter, scatter.
OpCost CostModel::AppliedCost(int32_t i) {
  const auto operands = graph_.operands(i);
  const auto elements = [&](int32_t of) {
    return static_cast<double>(FirstArray(*graph_.instruction(of).shape).num_elements());
  };
  switch (graph_.op(i)) {
    case hlo::Op::kReduce:
      return ScaledCallee(i, 0, elements(operands[0]) - elements(i));
    case hlo::Op::kReduceWindow:
      return ScaledCallee(i, 0, (WindowElements(ParseAttributes(graph_.instruction(i))) - 1) * elements(i));
    case hlo::Op::kSelectAndScatter: {
      const double sources = elements(operands[1]);
      OpCost cost = ScaledCallee(i, 0, sources * (WindowElements(ParseAttributes(graph_.instruction(i))) - 1));
      cost.flops += ScaledCallee(i, 1, sources).flops;
      return cost;
    }
    case hlo::Op::kScatter: {
      // Operands, indices, updates; the updates are read, and as much of the operands is read and written.
      const size_t num_results = (operands.size() - 1) / 2;
      OpCost cost = ScaledCallee(i, 0, elements(operands[num_results + 1]));
      cost.bytes_accessed = ArrayBytes(operands[num_results]);
      for (size_t k = num_results + 1; k < operands.size(); ++k) cost.bytes_accessed += 3 * ArrayBytes(operands[k]);
      return cost;
    }
    default:  // map
      return ScaledCallee(i, 0, elements(i));
  }
}

// FLOPs of the ops that do their arithmetic themselves.
double CostModel::OwnFlops(int32_t i) const {
  const hlo::Instruction& instruction = graph_.instruction(i);
  const auto operand = [&](size_t k) -> const hlo::Shape& {
    return FirstArray(*graph_.instruction(graph_.operands(i)[k]).shape);
  };
  const auto elements = [](const hlo::Shape& shape) { return static_cast<double>(shape.num_elements()); };
  const auto last_dimension = [](const hlo::Shape& shape) {
    return static_cast<double>(DimensionOr1(shape, std::ssize(shape.dimensions) - 1));
  };
  const hlo::Shape& result = FirstArray(*instruction.shape);
  switch (graph_.op(i)) {
    case hlo::Op::kDot:
      return DotFlops(operand(0), result, ParseAttributes(instruction));
    case hlo::Op::kConvolution:
      return ConvolutionFlops(operand(0), operand(1), result, ParseAttributes(instruction));
    case hlo::Op::kSort:
      return elements(operand(0)) * CeilLog2(operand(0).num_elements());
    case hlo::Op::kTriangularSolve:
      return 2 * elements(operand(1)) * last_dimension(operand(0));
    case hlo::Op::kCholesky:
      return elements(result) * last_dimension(result) / 3;
    case hlo::Op::kFft: {
      double factors = 1;
      for (const int64_t length : ParseAttributes(instruction).fft_length) factors *= std::floor(std::log2(length));
      return 8 * factors * elements(operand(0));
    }
    case hlo::Op::kAllReduce:
    case hlo::Op::kAllReduceStart:
      return elements(result);
    case hlo::Op::kCopy:
      return 0;
    default:
      return graph_.opcode(i).is_elementwise ? elements(result) : 0;
  }
}

double CostModel::AccessedBytes(int32_t i) const {
  const auto operands = graph_.operands(i);
  switch (graph_.op(i)) {
    case hlo::Op::kSlice:
    case hlo::Op::kDynamicSlice:
      return 2 * ArrayBytes(i);
    case hlo::Op::kGather:
      return 2 * ArrayBytes(i) + ArrayBytes(operands[1]);
    case hlo::Op::kDynamicUpdateSlice:
      return 2 * ArrayBytes(operands[1]);
    default:
      return OperandAndResultBytes(i);
  }
}

OpCost CostModel::Cost(int32_t i) {
  const hlo::Op op = graph_.op(i);
  if (hlo::IsGlue(op)) return {};
  switch (op) {
    case hlo::Op::kFusion:
      return FusionCost(i);
    case hlo::Op::kCall:
    case hlo::Op::kWhile:
    case hlo::Op::kConditional:
    case hlo::Op::kAsyncStart:
      return ControlFlowCost(i);
    case hlo::Op::kReduce:
    case hlo::Op::kMap:
    case hlo::Op::kReduceWindow:
    case hlo::Op::kSelectAndScatter:
    case hlo::Op::kScatter:
      return AppliedCost(i);
    case hlo::Op::kAsyncUpdate:
    case hlo::Op::kAsyncDone:
    case hlo::Op::kCopyDone:
    case hlo::Op::kRecvDone:
    case hlo::Op::kAllReduceDone:
    case hlo::Op::kAllGatherDone:
    case hlo::Op::kCollectivePermuteDone:
      return {};  // counted at the start
    default:
      break;
  }
  const bool is_random = op == hlo::Op::kRng || op == hlo::Op::kRngBitGenerator;
  if (graph_.opcode(i).is_transcendental || is_random) {
    return {0, static_cast<double>(FirstArray(*graph_.instruction(i).shape).num_elements()), AccessedBytes(i)};
  }
  return {OwnFlops(i), 0, AccessedBytes(i)};
}

double CostModel::ComputationSeconds(int32_t computation, const Roofline& roofline) {
  double seconds = 0;
  for (const int32_t i : graph_.module().computations[computation].instructions) seconds += Seconds(i, roofline);
  return seconds;
}

double CostModel::Seconds(int32_t i, const Roofline& roofline) {
  if (hlo::IsGlue(graph_.op(i))) return 0;
  double seconds = 0;
  switch (graph_.op(i)) {
    case hlo::Op::kWhile: {
      for (const int32_t callee : graph_.called(i)) seconds += ComputationSeconds(callee, roofline);
      if (count_iterations_) seconds *= static_cast<double>(TripCount(graph_.instruction(i)));
      break;
    }
    case hlo::Op::kConditional:
      for (const int32_t callee : graph_.called(i)) seconds = std::max(seconds, ComputationSeconds(callee, roofline));
      break;
    case hlo::Op::kCall:
    case hlo::Op::kAsyncStart:
      seconds = ComputationSeconds(graph_.called(i)[0], roofline);
      break;
    default: {
      const OpCost cost = Cost(i);
      seconds = std::max(cost.flops / roofline.flops_per_s + cost.transcendentals / roofline.transcendentals_per_s,
                         cost.bytes_accessed / roofline.bytes_per_s);
    }
  }
  return seconds + roofline.op_overhead_s;
}

}  // namespace coopjax
