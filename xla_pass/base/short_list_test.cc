#include "base/short_list.h"

#include <random>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

TEST(AListIsOneLineOfTheCache) { EXPECT_EQ(sizeof(ShortList<int64_t, 6>), size_t{64}); }

TEST(ItIsWhatAVectorIs) {
  std::mt19937 random(0);
  for (int32_t most : {2, 3, 20}) {   // within, at and beyond what lies inside
    ShortList<int32_t, 3> list;
    std::vector<int32_t> vector;
    for (int32_t i = 0; i < 1000; ++i) {
      const size_t at = vector.empty() ? 0 : random() % vector.size();
      if (vector.size() < most && random() % 2 == 0) {
        list.insert(list.begin() + at, i);
        vector.insert(vector.begin() + at, i);
      } else if (!vector.empty() && random() % 50 > 0) {
        list.erase(list.begin() + at);
        vector.erase(vector.begin() + at);
      } else {
        list.clear();
        vector.clear();
        list.push_back(i);
        vector.push_back(i);
      }
      EXPECT_TRUE(std::equal(list.begin(), list.end(), vector.begin(), vector.end()));
      EXPECT_EQ(list.empty(), vector.empty());
      if (!list.empty()) EXPECT_EQ(list.back(), vector.back());
    }
  }
}

}  // namespace
}  // namespace coopjax
