#include "planners/moves/step_keys.h"

#include "testing/expect.h"

namespace coopjax {
namespace {

TEST(RowsGoBetweenTwoSteps) {
  StepKeys keys;
  keys.Reset(3);
  const FreeKeys row = keys.Before(keys[2], 2);
  EXPECT_TRUE(keys[1] < row[0] && row[0] < row[1] && row[1] < keys[2]);
  EXPECT_EQ(keys.AtOrAfter(row[0]), 2);
  keys.Reserve(row[0]);
  keys.Reserve(row[1]);
  const FreeKeys before_the_first = keys.Before(row[0], 1), before_the_step = keys.Before(keys[2], 1);
  EXPECT_TRUE(keys[1] < before_the_first[0] && before_the_first[0] < row[0]);
  EXPECT_TRUE(row[1] < before_the_step[0] && before_the_step[0] < keys[2]);
  keys.Settle(std::vector<Key>{row[0], row[1]});
  EXPECT_EQ(keys.num_steps(), 5);
  EXPECT_EQ(keys.AtOrAfter(row[0]), 2);
  EXPECT_EQ(keys.AtOrAfter(row[0] + 1), 3);
  EXPECT_EQ(keys.AtOrAfter(StepKey(2)), 4);
  keys.TakeOut(std::vector<Step>{1, 2});
  EXPECT_EQ(keys.AtOrAfter(StepKey(1)), 1);
  EXPECT_EQ(keys[1], row[1]);
  EXPECT_EQ(keys.AtOrAfter(StepKey(9)), 3);   // after all of them
}

TEST(RowsGoBeforeTheFirstStep) {
  StepKeys keys;
  keys.Reset(2);
  const Key before = keys.Before(keys[0], 1)[0];
  keys.Settle(std::vector<Key>{before});
  EXPECT_EQ(keys.AtOrAfter(before), 0);
  EXPECT_EQ(keys.AtOrAfter(StepKey(0)), 1);
  EXPECT_EQ(keys.AtOrAfter(StepKey(1)), 2);
  keys.TakeOut(std::vector<Step>{0});
  EXPECT_EQ(keys.AtOrAfter(StepKey(1)), 1);
}

// 2^36 keys between two steps, halved each time: the 24th leaves 2^12 on one side, no more room for 4,096.
TEST(SaysWhenRoomGetsShort) {
  StepKeys keys;
  keys.Reset(2);
  int num_rows = 0;
  for (; !keys.is_tight(); ++num_rows) keys.Reserve(keys.Before(keys[1], 1)[0]);
  EXPECT_EQ(num_rows, 23);   // 2^13 are left, and rows of 4,096 leave every other key free
  keys.Settle({});
  EXPECT_TRUE(!keys.is_tight());
}

}  // namespace
}  // namespace coopjax
