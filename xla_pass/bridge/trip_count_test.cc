#include "bridge/trip_count.h"

#include <string>

#include "testing/hlo_proto_builder.h"

namespace coopjax {
namespace {

using testing::ArrayShape;
using testing::F32;
using testing::HloProtoBuilder;
using testing::Parsed;
using testing::TupleShape;

const std::string kS32 = ArrayShape(4, {}), kState = TupleShape({F32({8}), kS32, kS32});

std::string Number(int64_t value) {
  std::string literal, fields;
  const std::vector<int64_t> values = {value};
  hlo::AppendPackedField(4, values, &literal);
  hlo::AppendBytesField(8, literal, &fields);
  return fields;
}

std::string Field(uint32_t number, const std::string& text) {
  std::string fields;
  hlo::AppendBytesField(number, text, &fields);
  return fields;
}

// A loop over (x, counter, bound): how it counts.
struct Counting {
  int64_t first = 0, step = 1, last = 10;
  std::string direction = "LT", op = "add";
  bool is_mirrored = false;               // bound against counter, step plus counter
  bool is_bound_carried = false;          // the bound is an element of the state, which no turn changes
  bool is_bound_changed = false;          // or which one does
  std::string config = "";
};

class Loops {
 public:
  int64_t Constant(int64_t value) { return builder.Add("constant", kS32, {}, {.fields = Number(value)}); }

  void Body(const Counting& how) {
    body = builder.Begin("body" + std::to_string(++num_bodies));
    const int64_t state = builder.Parameter(0, kState);
    const int64_t x = builder.Element(F32({8}), state, 0);
    const int64_t counter = builder.Add("copy", kS32, {builder.Element(kS32, state, 1)});
    const int64_t bound = builder.Element(kS32, state, 2);
    const int64_t by = Constant(how.step);
    const int64_t next =
        builder.Add(how.op, kS32, how.is_mirrored ? std::vector{by, counter} : std::vector{counter, by});
    const int64_t kept = how.is_bound_changed ? builder.Add("add", kS32, {bound, by}) : bound;
    builder.Add("tuple", kState, {x, builder.Add("copy", kS32, {next}), kept});
  }

  void Condition(const Counting& how) {
    condition = builder.Begin("condition" + std::to_string(num_bodies));
    const int64_t state = builder.Parameter(0, kState);
    const int64_t counter = builder.Element(kS32, state, 1);
    const int64_t bound = how.is_bound_carried ? builder.Element(kS32, state, 2) : Constant(how.last);
    builder.Add("compare", ArrayShape(1, {}),
                how.is_mirrored ? std::vector{bound, counter} : std::vector{counter, bound},
                {.fields = Field(63, how.direction)});
  }

  int64_t Loop(const Counting& how, int64_t x) {
    const int64_t first = builder.Add("copy", kS32, {Constant(how.first)});
    const int64_t init = builder.Add("tuple", kState, {x, first, Constant(how.last)});
    return builder.Add("while", kState, {init},
                       {.called = {body, condition}, .fields = how.config.empty() ? "" : Field(43, how.config)});
  }

  HloProtoBuilder builder;
  int64_t body = 0, condition = 0;
  int num_bodies = 0;
};

int64_t CountOf(const std::string& bytes) {
  const auto module = Parsed(bytes);
  const hlo::Graph graph(*module);
  for (int32_t i = graph.num_instructions() - 1; i >= 0; --i) {
    if (graph.op(i) == hlo::Op::kWhile) return TripCount(graph, i);
  }
  return -1;
}

int64_t Turns(const Counting& how) {
  Loops loops;
  loops.Body(how);
  loops.Condition(how);
  loops.builder.Begin("main");
  loops.Loop(how, loops.builder.Parameter(0, F32({8})));
  return CountOf(loops.builder.Build());
}

TEST(WhatTheCompilerWroteIsTaken) {
  EXPECT_EQ(Turns({.config = R"({"known_trip_count":{"n":"7"}})"}), 7);
  EXPECT_EQ(Turns({.config = R"({"flag_configs":[]})"}), 10);
}

TEST(CountersAreFollowed) {
  EXPECT_EQ(Turns({}), 10);
  EXPECT_EQ(Turns({.first = 3, .step = 2}), 4);
  EXPECT_EQ(Turns({.direction = "LE"}), 11);
  EXPECT_EQ(Turns({.step = 2, .direction = "NE"}), 5);
  EXPECT_EQ(Turns({.first = 9, .step = -1, .last = 0, .direction = "GE"}), 10);
  EXPECT_EQ(Turns({.first = 9, .step = 3, .last = 0, .direction = "GT", .op = "subtract"}), 3);
  EXPECT_EQ(Turns({.direction = "GT", .is_mirrored = true}), 10);
  EXPECT_EQ(Turns({.first = -5, .last = 5}), 10);
}

TEST(BoundsAreFoundInTheState) {
  EXPECT_EQ(Turns({.is_bound_carried = true}), 10);
  EXPECT_EQ(Turns({.is_bound_carried = true, .is_bound_changed = true}), 1);
}

TEST(WhatIsNotUnderstoodTurnsOnce) {
  EXPECT_EQ(Turns({.step = 0}), 1);
  EXPECT_EQ(Turns({.step = -1}), 1);
  EXPECT_EQ(Turns({.step = 3, .direction = "NE"}), 1);
  EXPECT_EQ(Turns({.direction = "EQ"}), 1);
  EXPECT_EQ(Turns({.op = "multiply"}), 1);
  EXPECT_EQ(Turns({.op = "subtract", .is_mirrored = true}), 1);
  EXPECT_EQ(Turns({.last = int64_t{1} << 50}), 1);
  EXPECT_EQ(Turns({.first = 10}), 1);     // none, in fact
}

// What a loop inside starts from is carried there by the loop around.
TEST(ConstantsComeThroughLoopsAround) {
  Loops loops;
  const Counting how = {.is_bound_carried = true};
  loops.Body(how);
  loops.Condition(how);
  const int64_t inner_body = loops.body, inner_condition = loops.condition;
  HloProtoBuilder& builder = loops.builder;
  const int64_t outer = builder.Begin("outer");
  const int64_t state = builder.Parameter(0, kState);
  const int64_t counter = builder.Element(kS32, state, 1), bound = builder.Element(kS32, state, 2);
  const int64_t init = builder.Add("tuple", kState, {builder.Element(F32({8}), state, 0), loops.Constant(4), bound});
  const int64_t inner = builder.Add("while", kState, {init}, {.called = {inner_body, inner_condition}});
  builder.Add("tuple", kState,
              {builder.Element(F32({8}), inner, 0), builder.Add("add", kS32, {counter, loops.Constant(1)}), bound});
  loops.Condition(how);
  const int64_t outer_condition = loops.condition;
  builder.Begin("main");
  loops.body = outer;
  loops.condition = outer_condition;
  loops.Loop({.last = 20}, builder.Parameter(0, F32({8})));
  const auto module = Parsed(builder.Build());
  const hlo::Graph graph(*module);
  std::vector<int64_t> counts;
  for (int32_t i = 0; i < graph.num_instructions(); ++i) {
    if (graph.op(i) == hlo::Op::kWhile) counts.push_back(TripCount(graph, i));
  }
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[0], 16);               // from 4 to the bound that the outer loop carries
  EXPECT_EQ(counts[1], 20);
}

}  // namespace
}  // namespace coopjax
