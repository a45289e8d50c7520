#include "base/id_index.h"

#include <unordered_map>

#include "testing/expect.h"

namespace coopjax {
namespace {

TEST(AnEmptyIndexFindsNothing) { EXPECT_EQ(IdIndex().Find(0), -1); }

TEST(AnIdHasOneIndex) {
  IdIndex index;
  EXPECT_TRUE(index.Add(7, 0));
  EXPECT_TRUE(!index.Add(7, 1));
  EXPECT_EQ(index.Find(7), 0);
  EXPECT_TRUE(index.contains(7) && !index.contains(8));
}

// Ids as XLA makes them, ids that only differ in their highest bits, and negative ones.
TEST(ItIsAMap) {
  IdIndex index;
  std::unordered_map<int64_t, int32_t> map;
  for (int64_t k = 0; k < 3000; ++k) {
    for (const int64_t id : {(k / 7) << 32 | k % 7, k << 53, -k * k}) {
      const auto next = static_cast<int32_t>(map.size());
      EXPECT_EQ(index.Add(id, next), map.try_emplace(id, next).second);
    }
  }
  for (const auto& [id, i] : map) EXPECT_EQ(index.Find(id), i);
  EXPECT_EQ(index.Find(-3), -1);
}

}  // namespace
}  // namespace coopjax
