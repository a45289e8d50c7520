#include "program/dependences.h"

#include <vector>

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

Rows RowsOf(const Csr& csr) {
  Rows rows;
  for (int32_t r = 0; r < csr.num_rows(); ++r) rows.emplace_back(csr[r].begin(), csr[r].end());
  return rows;
}

// x -> a (op 0); op 1 reads a; op 2 reads a and writes b over it; op 3 reads b and follows op 1 by decree.
StepProgram Overwrite(bool can_remake_a) {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {4}, .can_recompute = can_remake_a});
  builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {4}, .in_place_of = a});
  builder.Op({.inputs = {b}, .output_bytes = {1}, .control = {1}});
  return builder.program();
}

TEST(WhoMayRunTwice) {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(4), donated = builder.Given(4);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {4}});
  builder.Op({.inputs = {x}, .output_bytes = {4}, .can_recompute = false});
  builder.Op({.inputs = {x}, .output_bytes = {4}, .kind = ValueKind::kOutput});
  builder.Op({.inputs = {a}, .output_bytes = {4}, .in_place_of = a});
  builder.Op({.inputs = {x}, .output_bytes = {4}, .in_place_of = donated});
  const std::vector<bool> expected = {true, false, false, true, false};
  for (OpId op = 0; op < 5; ++op) EXPECT_EQ(MayRunTwice(builder.program(), op), expected[op]);
}

TEST(TransposedRowsAreInOrder) {
  Csr lists;
  for (const std::vector<int32_t>& row : Rows{{2, 0}, {}, {2}}) lists.AddRow(row);
  EXPECT_TRUE(RowsOf(Transpose(lists, 4)) == (Rows{{0}, {}, {0, 2}, {}}));
  EXPECT_TRUE(RowsOf(Transpose(Csr(), 0)).empty());
}

TEST(ReadersAreListedByValue) {
  // x is read by op 0, a by ops 1 and 2, what op 1 makes by nobody, b by op 3.
  EXPECT_TRUE(RowsOf(ValueReaders(Overwrite(true))) == (Rows{{0}, {1, 2}, {}, {3}, {}}));
}

TEST(WhatIsOverwrittenUnreadIsTouched) {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(4), donated = builder.Given(4);
  builder.Op({.inputs = {x}, .output_bytes = {4}, .kind = ValueKind::kOutput, .in_place_of = donated});
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {4}});
  builder.Op({.inputs = {a}, .output_bytes = {4}, .in_place_of = a});   // once, though read and overwritten
  EXPECT_TRUE(RowsOf(OpTouches(builder.program())) == (Rows{{x, donated}, {x}, {a}}));
}

TEST(AnInPlaceWriterFollowsTheOtherReaders) {
  EXPECT_TRUE(RowsOf(OpPredecessors(Overwrite(true))) == (Rows{{}, {0}, {0, 1}, {1, 2}}));
  // With repeats op 1 may come later, if a can be made again for it.
  EXPECT_TRUE(RowsOf(FirstRunPredecessors(Overwrite(true))) == (Rows{{}, {0}, {0}, {1, 2}}));
  EXPECT_TRUE(RowsOf(FirstRunPredecessors(Overwrite(false))) == (Rows{{}, {0}, {0, 1}, {1, 2}}));
}

TEST(SharesThatCantActAreLeftOut) {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(4);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {4}, .share = {x}});   // a parameter takes no budget
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {4}, .share = {a}});
  builder.Op({.inputs = {b}, .output_bytes = {4}, .in_place_of = b, .share = {b}});   // shares already
  const ShareIndex shares(builder.program());
  EXPECT_EQ(shares[0].size(), 0u);
  EXPECT_EQ(shares[1].size(), 1u);
  EXPECT_EQ(shares[1][0].input, a);
  EXPECT_EQ(shares[1][0].output, b);
  EXPECT_EQ(shares[2].size(), 0u);
}

}  // namespace
}  // namespace coopjax
