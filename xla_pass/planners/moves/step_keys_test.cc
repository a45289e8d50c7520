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

// 2^38 keys between two steps, halved each time.
TEST(SaysWhenRoomGetsShort) {
  StepKeys keys;
  keys.Reset(2);
  int num_rows = 0;
  for (; !keys.is_tight(); ++num_rows) keys.Reserve(keys.Before(keys[1], 1)[0]);
  EXPECT_EQ(num_rows, 24);   // 2^14 are left, and rows of 4,096 in the lower half leave every other key free
}

TEST(RoomIsMadeAroundWhereItIsTight) {
  StepKeys keys;
  keys.Reset(4);
  std::vector<Key> inserted;
  while (!keys.is_tight()) {
    inserted.push_back(keys.Before(keys[2], 1)[0]);
    keys.Reserve(inserted.back());
  }
  keys.Settle(inserted);
  const Step num_steps = keys.num_steps();
  std::vector<Key> before(num_steps);
  for (Step t = 0; t < num_steps; ++t) before[t] = keys[t];
  int num_windows = 0;
  keys.Loosen([&](Step first, std::span<const Key> old) {
    ++num_windows;
    EXPECT_TRUE(first > 0 && first + std::ssize(old) < num_steps);   // not all of them
    for (Step i = 0; i < std::ssize(old); ++i) EXPECT_EQ(old[i], before[first + i]);
    for (Step t = 0; t < num_steps; ++t) {
      EXPECT_TRUE(keys[t] == before[t] || (t >= first && t < first + std::ssize(old)));
    }
  });
  EXPECT_EQ(num_windows, 1);
  EXPECT_TRUE(!keys.is_tight());
  for (Step t = 0; t < num_steps; ++t) {
    EXPECT_EQ(keys.AtOrAfter(keys[t]), t);
    EXPECT_EQ(keys.AtOrAfter(keys[t] + 1), t + 1);
    if (t > 0) EXPECT_TRUE(keys[t] - keys[t - 1] >= Key{1} << 14);   // as before, or more
  }
  EXPECT_TRUE(keys[num_steps - 2] - keys[num_steps - 3] >= Key{1} << 28);
}

}  // namespace
}  // namespace coopjax
