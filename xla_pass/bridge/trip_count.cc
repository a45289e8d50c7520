#include "bridge/trip_count.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "hlo/wire.h"

namespace coopjax {
namespace {

// Fields of HloInstructionProto and of LiteralProto (hlo.proto, xla_data.proto).
constexpr uint32_t kLiteral = 8, kBackendConfig = 43, kComparisonDirection = 63;
constexpr uint32_t kInt32s = 4, kInt64s = 5, kUint32s = 6, kUint64s = 7;
constexpr int kMostLoops = 64;            // around a loop, that carry a constant to it
constexpr int64_t kMost = int64_t{1} << 40;  // turns, and what a counter counts from, to and by: sums do not overflow

std::string_view BytesOf(std::string_view message, uint32_t number) {
  hlo::WireReader reader(message);
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number == number) return field.bytes;
  }
  return {};
}

std::optional<int64_t> AnnotatedCount(const hlo::Instruction& loop) {
  const std::string_view config = BytesOf(loop.raw, kBackendConfig);
  const size_t key = config.find("\"known_trip_count\"");
  if (key == std::string_view::npos) return std::nullopt;
  int64_t count = 0;
  if (const size_t digits = config.find_first_of("0123456789", key); digits != std::string_view::npos) {
    std::from_chars(config.data() + digits, config.data() + config.size(), count);
  }
  return count;
}

// The value of an integer that is one number.
std::optional<int64_t> Literal(const hlo::Instruction& constant) {
  hlo::WireReader reader(BytesOf(constant.raw, kLiteral));
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number < kInt32s || field.number > kUint64s) continue;
    std::vector<int64_t> values;
    if (!hlo::ReadRepeatedInt64(field, &values) || values.size() != 1) break;
    return -kMost <= values[0] && values[0] <= kMost ? std::optional(values[0]) : std::nullopt;
  }
  return std::nullopt;
}

std::string_view Mirrored(std::string_view direction) {
  if (direction == "LT") return "GT";
  if (direction == "LE") return "GE";
  if (direction == "GT") return "LT";
  return direction == "GE" ? "LE" : direction;
}

class Counter {
 public:
  explicit Counter(const hlo::Graph& graph) : graph_(graph) {}

  std::optional<int64_t> Turns(int32_t loop) const {
    const auto called = graph_.called(loop);  // body, condition
    if (called.size() != 2) return std::nullopt;
    const int32_t test = graph_.root(called[1]);
    if (test < 0 || graph_.instruction(test).opcode != "compare") return std::nullopt;
    std::string_view direction = BytesOf(graph_.instruction(test).raw, kComparisonDirection);
    int32_t counter = Source(Operand(test, 0)), limit = Operand(test, 1);
    if (!IsElementOfState(counter)) {
      direction = Mirrored(direction);
      limit = std::exchange(counter, Source(limit));
    }
    if (!IsElementOfState(counter)) return std::nullopt;
    const int64_t element = graph_.instruction(counter).tuple_index;
    const auto first = Constant(Element(Operand(loop, 0), element));
    const auto last = Constant(limit);
    const auto step = Step(called[0], element);
    if (!first || !last || !step || *step == 0) return std::nullopt;
    return Turns(direction, *first, *last, *step);
  }

 private:
  static std::optional<int64_t> Turns(std::string_view direction, int64_t first, int64_t last, int64_t step) {
    int64_t distance = last - first;
    if (direction == "NE") return distance % step == 0 ? std::optional(distance / step) : std::nullopt;
    if (direction == "GT" || direction == "GE") {
      distance = -distance;
      step = -step;
    } else if (direction != "LT" && direction != "LE") {
      return std::nullopt;
    }
    if (step < 0) return std::nullopt;
    if (direction.back() == 'E') ++distance;
    return distance <= 0 ? 0 : (distance - 1) / step + 1;
  }

  // By how much one turn changes an element of the state.
  std::optional<int64_t> Step(int32_t body, int64_t element) const {
    const int32_t next = Source(Element(graph_.root(body), element));
    if (next < 0) return std::nullopt;
    const bool is_difference = graph_.instruction(next).opcode == "subtract";
    if (!is_difference && graph_.op(next) != hlo::Op::kAdd) return std::nullopt;
    int32_t before = Operand(next, 0), by = Operand(next, 1);
    if (!is_difference && !IsElement(Source(before), body, element)) std::swap(before, by);
    if (!IsElement(Source(before), body, element)) return std::nullopt;
    const auto step = Constant(by);
    return step && is_difference ? std::optional(-*step) : step;
  }

  std::optional<int64_t> Constant(int32_t i) const {
    for (int loops = 0; i >= 0 && loops < kMostLoops; ++loops) {
      i = Source(i);
      if (i < 0) break;
      if (graph_.op(i) == hlo::Op::kConstant) return Literal(graph_.instruction(i));
      i = graph_.op(i) == hlo::Op::kGetTupleElement ? BeforeLoop(i) : -1;
    }
    return std::nullopt;
  }

  // What an element of a loop's state was before the loop, if no turn changes it; -1 otherwise.
  int32_t BeforeLoop(int32_t i) const {
    const int32_t computation = graph_.instruction(i).computation;
    const int64_t element = graph_.instruction(i).tuple_index;
    if (!IsElementOfState(i) || graph_.callers(computation).size() != 1) return -1;
    const int32_t loop = graph_.callers(computation)[0];
    if (graph_.op(loop) != hlo::Op::kWhile) return -1;
    const int32_t body = graph_.called(loop)[0];
    if (!IsElement(Source(Element(graph_.root(body), element)), body, element)) return -1;
    return Element(Operand(loop, 0), element);
  }

  // Behind copies, and behind elements of tuples made in the same computation.
  int32_t Source(int32_t i) const {
    while (i >= 0) {
      const hlo::Op op = graph_.op(i);
      const int32_t of = Operand(i, 0);
      if (op == hlo::Op::kCopy || op == hlo::Op::kBitcast) {
        i = of;
      } else if (op == hlo::Op::kGetTupleElement && of >= 0 && graph_.op(of) == hlo::Op::kTuple) {
        i = Element(of, graph_.instruction(i).tuple_index);
      } else {
        break;
      }
    }
    return i;
  }

  int32_t Element(int32_t tuple, int64_t element) const {
    return tuple >= 0 && graph_.op(tuple) == hlo::Op::kTuple ? Operand(tuple, element) : -1;
  }

  int32_t Operand(int32_t i, int64_t number) const {
    const auto operands = graph_.operands(i);
    return number >= 0 && number < std::ssize(operands) ? operands[number] : -1;
  }

  bool IsElementOfState(int32_t i) const {
    if (i < 0 || graph_.op(i) != hlo::Op::kGetTupleElement) return false;
    const int32_t of = Operand(i, 0);
    return of >= 0 && graph_.op(of) == hlo::Op::kParameter;
  }

  bool IsElement(int32_t i, int32_t computation, int64_t element) const {
    return IsElementOfState(i) && graph_.instruction(i).computation == computation &&
           graph_.instruction(i).tuple_index == element;
  }

  const hlo::Graph& graph_;
};

}  // namespace

int64_t TripCount(const hlo::Graph& graph, int32_t loop) {
  const std::optional<int64_t> annotated = AnnotatedCount(graph.instruction(loop));
  const std::optional<int64_t> count = annotated ? annotated : Counter(graph).Turns(loop);
  return std::clamp<int64_t>(count.value_or(1), 1, kMost);
}

}  // namespace coopjax
