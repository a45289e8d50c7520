#include "base/peak_tree.h"

#include <algorithm>
#include <random>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

TEST(KnowsThePeakAndItsFirstSlot) {
  PeakTree tree(8);
  tree.Add(1, 6, 5);    // 0 5 5 5 5 5 0 0
  tree.Add(4, 8, 3);    // 0 5 5 5 8 8 3 3
  EXPECT_EQ(tree.peak(), 8);
  EXPECT_EQ(tree.PeakSlot(), 4);
  EXPECT_EQ(tree.At(0), 0);
  EXPECT_EQ(tree.At(6), 3);
  tree.Add(0, 8, -10);
  EXPECT_EQ(tree.peak(), -2);
  tree.Add(3, 3, 100);  // empty
  EXPECT_EQ(tree.peak(), -2);
}

TEST(AgreesWithAnArrayUnderRandomAdds) {
  for (int32_t num_slots = 2; num_slots <= 128; num_slots *= 2) {
    std::mt19937 random(num_slots);
    PeakTree tree(num_slots);
    std::vector<int64_t> expected(num_slots, 0);
    for (int round = 0; round < 2000; ++round) {
      const int32_t begin = random() % (num_slots + 1), end = random() % (num_slots + 1);
      const int64_t bytes = static_cast<int64_t>(random() % 21) - 10;
      tree.Add(begin, end, bytes);
      for (int32_t slot = begin; slot < end; ++slot) expected[slot] += bytes;
      const auto peak = std::max_element(expected.begin(), expected.end());
      EXPECT_EQ(tree.peak(), *peak);
      EXPECT_EQ(tree.PeakSlot(), static_cast<int32_t>(peak - expected.begin()));
      const int32_t slot = random() % num_slots;
      EXPECT_EQ(tree.At(slot), expected[slot]);
    }
  }
}

}  // namespace
}  // namespace coopjax
