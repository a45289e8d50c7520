#include "planners/bounds/byte_bound.h"

#include <algorithm>

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// u and v (10 bytes each) can be made only once, by one op; a reads u, b reads v or a copy of it, and both need 3 bytes
// of workspace.
struct Pair {
  testing::ProgramBuilder builder;
  const ValueId u = builder.Op({.output_bytes = {10, 10}, .can_recompute = false});
  const ValueId v = u + 1;

  void Add(ValueId read_by_b) {
    for (const ValueId read : {u, read_by_b}) {
      builder.Op({.inputs = {read}, .output_bytes = {1}, .kind = ValueKind::kOutput, .workspace_bytes = 3});
    }
  }
  int64_t Bytes() { return ComputeByteBound(builder.program()).bytes; }
};

// Whichever of a and b comes first runs next to 10 bytes of the other: 10 + 3 + 10. Alone, neither needs more than
// 10 + 3, and what makes u and v 20.
TEST(TheFirstOfTwoHoldsWhatTheOtherReads) {
  Pair pair;
  pair.Add(pair.v);
  EXPECT_EQ(ComputeLowerBound(pair.builder.program()).bytes, 20);
  EXPECT_EQ(pair.Bytes(), 23);
}

// b reads a narrow copy (4 bytes) of v: next to it, a takes 10 + 3 + 4, but while it was made u and v were there, 10 +
// 4
// + 10. Made after a, it holds v next to a: 10 + 3 + 10.
TEST(WhatCanBeMadeAgainIsHeldOrWhatItIsMadeFrom) {
  Pair pair;
  pair.Add(pair.builder.Op({.inputs = {pair.v}, .output_bytes = {4}}));
  EXPECT_EQ(pair.Bytes(), 23);
}

// The same with a before the copy by control: of a and the copy only a can come first.
TEST(WhatMustComeFirstIsNoPair) {
  Pair pair;
  pair.builder.Op({.inputs = {pair.u}, .output_bytes = {1}, .kind = ValueKind::kOutput, .workspace_bytes = 5});
  pair.builder.Op({.inputs = {pair.v}, .output_bytes = {1}, .kind = ValueKind::kOutput, .control = {1}});
  EXPECT_EQ(pair.Bytes(), 10 + 5 + 10);
}

TEST(NeverLessThanThePlainBoundNorMoreThanAPeak) {
  int32_t num_higher = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 4 + seed % 40);
    const int64_t plain_bytes = ComputeLowerBound(program).bytes;
    const int64_t bytes = ComputeByteBound(program).bytes;
    EXPECT_TRUE(bytes >= plain_bytes);
    EXPECT_TRUE(bytes <= ComputeLiveness(program, program.schedule).peak_bytes);
    EXPECT_TRUE(ComputeByteBound(program, {.max_work = 0}).bytes <= bytes);
    num_higher += bytes > plain_bytes;
  }
  EXPECT_TRUE(num_higher > 20);
}

}  // namespace
}  // namespace coopjax
