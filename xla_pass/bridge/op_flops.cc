#include "bridge/op_flops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>
#include <vector>

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

double CeilLog2(int64_t n) { return n > 1 ? static_cast<double>(std::bit_width(static_cast<uint64_t>(n - 1))) : 0; }

// The first array of a result: that of a reduce over several operands, say.
const hlo::Shape& FirstArray(const hlo::Shape& shape) {
  return shape.is_tuple() && !shape.tuple_shapes.empty() ? FirstArray(shape.tuple_shapes[0]) : shape;
}

double Elements(const hlo::Shape& shape) { return static_cast<double>(shape.num_elements()); }

// 2 b m k n, from the sizes b m k, b k n and b m n of the operands and the result of a product. A ragged product has
// its groups for b: they are in one of the three sizes, and each row meets one of them.
double ProductFlops(const hlo::Shape& lhs, const hlo::Shape& rhs, const hlo::Shape& result, double batch) {
  return 2 * std::sqrt(Elements(lhs) * Elements(rhs) * Elements(result) / std::max(batch, 1.0));
}

// Batch dimensions of a library's product: all but the last two.
double LeadingElements(const hlo::Shape& shape) {
  double count = 1;
  for (int64_t k = 0; k + 2 < std::ssize(shape.dimensions); ++k) count *= static_cast<double>(shape.dimensions[k]);
  return count;
}

// Products of all queries with all keys, of [batch, length, heads, features] or [batch, heads, length, features]:
// two, and five in the backward pass, which makes the scores again. Sequences are longer than heads are many.
double AttentionFlops(const hlo::Shape& queries, const hlo::Shape& keys, bool is_backward) {
  int64_t length = 1;
  for (int64_t k = 1; k + 1 < std::ssize(keys.dimensions); ++k) length = std::max(length, keys.dimensions[k]);
  return 2 * (is_backward ? 5 : 2) * Elements(queries) * static_cast<double>(length);
}

// What a call to a library does, by the name of its target; 0 for a name that says nothing.
double LibraryFlops(const hlo::Graph& graph, int32_t i) {
  const hlo::Instruction& instruction = graph.instruction(i);
  const std::string_view target = instruction.custom_call_target;
  const auto says = [&](std::string_view word) { return target.find(word) != std::string_view::npos; };
  if (graph.operands(i).size() < 2) return 0;
  const hlo::Shape& first = FirstArray(*graph.instruction(graph.operands(i)[0]).shape);
  const hlo::Shape& second = FirstArray(*graph.instruction(graph.operands(i)[1]).shape);
  const hlo::Shape& result = FirstArray(*instruction.shape);
  if (says("conv")) {  // the numbers of all three are those of the forward convolution
    const Attributes attributes = ParseAttributes(instruction);
    if (says("BackwardInput")) return ConvolutionFlops(result, second, first, attributes);
    if (says("BackwardFilter")) return ConvolutionFlops(first, result, second, attributes);
    return ConvolutionFlops(first, second, result, attributes);
  }
  if (says("gemm") || says("matmul")) return ProductFlops(first, second, result, LeadingElements(result));
  if (says("fmha") || says("attn") || says("attention")) {
    return AttentionFlops(first, second, says("Backward") || says("backward") || says("bwd"));
  }
  return 0;
}

}  // namespace

double OwnFlops(const hlo::Graph& graph, int32_t i) {
  const hlo::Instruction& instruction = graph.instruction(i);
  const auto operand = [&](size_t k) -> const hlo::Shape& {
    return FirstArray(*graph.instruction(graph.operands(i)[k]).shape);
  };
  const auto last_dimension = [](const hlo::Shape& shape) {
    return static_cast<double>(DimensionOr1(shape, std::ssize(shape.dimensions) - 1));
  };
  const hlo::Shape& result = FirstArray(*instruction.shape);
  switch (graph.op(i)) {
    case hlo::Op::kDot:
      return DotFlops(operand(0), result, ParseAttributes(instruction));
    case hlo::Op::kConvolution:
      return ConvolutionFlops(operand(0), operand(1), result, ParseAttributes(instruction));
    case hlo::Op::kSort:
      return Elements(operand(0)) * CeilLog2(operand(0).num_elements());
    case hlo::Op::kTriangularSolve:
      return 2 * Elements(operand(1)) * last_dimension(operand(0));
    case hlo::Op::kCholesky:
      return Elements(result) * last_dimension(result) / 3;
    case hlo::Op::kFft: {
      double factors = 1;
      for (const int64_t length : ParseAttributes(instruction).fft_length) factors *= std::floor(std::log2(length));
      return 8 * factors * Elements(operand(0));
    }
    case hlo::Op::kAllReduce:
    case hlo::Op::kAllReduceStart:
      return Elements(result);
    case hlo::Op::kCopy:
      return 0;
    case hlo::Op::kCustomCall:
      return LibraryFlops(graph, i);
    default:
      if (instruction.opcode == "ragged-dot") return ProductFlops(operand(0), operand(1), result, Elements(operand(2)));
      return graph.opcode(i).is_elementwise ? Elements(result) : 0;
  }
}

double ResultElements(const hlo::Instruction& instruction) {
  return static_cast<double>(FirstArray(*instruction.shape).num_elements());
}

double WindowElements(const hlo::Instruction& instruction) {
  double count = 1;
  for (const WindowDimension& dimension : ParseAttributes(instruction).window) {
    count *= static_cast<double>(dimension.size);
  }
  return count;
}

}  // namespace coopjax
