// A loop whose body no order helps and recomputing does, for tests of what plans it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "buffers/analysis.h"
#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax::testing {

struct AnalyzedModule {
  std::unique_ptr<const hlo::Module> module;
  std::unique_ptr<const HloAnalysis> analysis;
};

// The module that these bytes are; anything else fails the test.
inline AnalyzedModule Analyzed(const std::string& bytes) {
  std::string error;
  AnalyzedModule result = {Parsed(bytes), nullptr};
  result.analysis = AnalyzeHlo(*result.module, &error);
  EXPECT_EQ(error, "");
  return result;
}

// x -> w1 -> ... -> w6, 4 KiB each, each read once more on the way back; returns the last. As it comes w1 to w6 are
// there at once, and one that is made of them.
inline int64_t AddForwardBackward(HloProtoBuilder& builder, int64_t x) {
  int64_t last = x;
  std::vector<int64_t> kept;
  for (int i = 0; i < 6; ++i) kept.push_back(last = builder.Add("slice", F32({64, 16}), {last}));
  for (int i = 5; i >= 0; --i) last = builder.Add("concatenate", F32({64, 16}), {last, kept[i]});
  return last;
}

// while (x), `num_trips` times, x = forward and backward (x); around it, with `has_around`, the same in the entry:
// forward, the loop, backward. In `depth` loops, each the body of the next; `num_loops` such loops, one after the
// other.
inline std::string LoopModule(int num_trips, bool has_around = false, int depth = 1, int num_loops = 1) {
  const std::string wide = F32({64, 16}), state = TupleShape({wide});
  HloProtoBuilder builder;
  std::string trips;
  hlo::AppendBytesField(43, R"({"known_trip_count":{"n":")" + std::to_string(num_trips) + R"("}})", &trips);
  const auto add_loop = [&](const std::vector<int64_t>& called, int64_t x) {
    const int64_t init = builder.Add("tuple", state, {x});
    return builder.Element(wide, builder.Add("while", state, {init}, {.called = called, .fields = trips}), 0);
  };
  std::vector<std::vector<int64_t>> loops(num_loops);   // body and condition of the outermost
  for (int i = 0; i < num_loops; ++i) {
    for (int level = 0; level < depth; ++level) {
      const std::string number = std::to_string(i) + "_" + std::to_string(level);
      const int64_t body = builder.Begin("body" + number);
      const int64_t x = builder.Element(wide, builder.Parameter(0, state), 0);
      const int64_t last =
          level == 0 ? AddForwardBackward(builder, x) : builder.Add("slice", wide, {add_loop(loops[i], x)});
      builder.Add("tuple", state, {last});
      loops[i] = {body, builder.Begin("condition" + number)};
      builder.Add("is-finite", F32({}), {builder.Element(wide, builder.Parameter(0, state), 0)});
    }
  }
  builder.Begin("main");
  int64_t last = builder.Add("slice", wide, {builder.Parameter(0, wide)});
  std::vector<int64_t> kept;
  for (int i = 0; has_around && i < 3; ++i) kept.push_back(last = builder.Add("slice", wide, {last}));
  for (const auto& loop : loops) last = add_loop(loop, builder.Add("slice", wide, {last}));
  for (; !kept.empty(); kept.pop_back()) last = builder.Add("concatenate", wide, {last, kept.back()});
  builder.Add("slice", F32({16}), {last});
  return builder.Build();
}

}  // namespace coopjax::testing
