#include "buffers/phi.h"

#include <cstdint>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

using Values = std::vector<int32_t>;

TEST(PhisThatOneValueReachesAreThatValue) {
  // 3 = phi(0, 3), 4 = phi(3, 5), 5 = phi(4, 0): all are 0. 6 = phi(1, 6), 7 = phi(1, 2): 7 stays.
  const std::vector<uint8_t> is_phi = {0, 0, 0, 1, 1, 1, 1, 1};
  const std::vector<Values> inputs = {{}, {}, {}, {0, 3}, {3, 5}, {0, 4}, {1, 6}, {1, 2}};
  EXPECT_TRUE((SimplifyPhis(is_phi, inputs) == Values{0, 1, 2, 0, 0, 0, 1, 7}));
}

// 2 = phi(0, 1) stays; 3 = phi(2, 3) and 4 = phi(3, 2) are 2, a phi itself.
TEST(APhiOfOnePhiIsThatPhi) {
  EXPECT_TRUE((SimplifyPhis({0, 0, 1, 1, 1}, {{}, {}, {0, 1}, {2, 3}, {2, 3}}) == Values{0, 1, 2, 2, 2}));
}

// 2 and 3 are each other's input and 0's: both are 0. With 1 in one of them both stay.
TEST(ACircleOfPhisIsWhatComesIn) {
  EXPECT_TRUE((SimplifyPhis({0, 0, 1, 1}, {{}, {}, {0, 3}, {0, 2}}) == Values{0, 1, 0, 0}));
  EXPECT_TRUE((SimplifyPhis({0, 0, 1, 1}, {{}, {}, {0, 3}, {1, 2}}) == Values{0, 1, 2, 3}));
}

TEST(PhisWithoutInputsStay) {
  EXPECT_TRUE((SimplifyPhis({1}, {{}}) == Values{0}));
  EXPECT_TRUE(SimplifyPhis({}, {}).empty());
}

}  // namespace
}  // namespace coopjax
