#include "planners/peak/hold_cut.h"

#include <algorithm>
#include <random>

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// a (10 bytes, 4 s) is made into b (10 bytes, 1 s); the late op reads b. Step 2 lies between.
StepProgram Pair() {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {10}, .cost_s = 4});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {10}, .cost_s = 1});
  const ValueId c = builder.Op({.inputs = {x}, .output_bytes = {1}});
  builder.Op({.inputs = {b, c}, .output_bytes = {1}});
  builder.Op({.inputs = {a}, .output_bytes = {1}});
  return builder.program();
}

TEST(HoldsOrRemakesByPrice) {
  const StepProgram program = Pair();
  const std::vector<Step> cuts = {3};
  const HoldCut cut(program, program.schedule, cuts);
  auto choose = [&](double price) { return cut.Choose(std::vector<double>{0, 0, price, 0, 0}); };
  EXPECT_TRUE((choose(0.05) == Schedule{0, 1, 2, 3, 4}));         // 0.5 s a value: hold both
  EXPECT_TRUE((choose(0.2) == Schedule{0, 1, 2, 1, 3, 4}));       // 2 s: b again (1 s), a held
  EXPECT_TRUE((choose(1.0) == Schedule{0, 1, 2, 0, 1, 3, 4}));    // 10 s: both again, a once for b and the last op
}

TEST(NeverReadsWhatIsOverwritten) {
  std::mt19937 random(4);
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 30);
    std::vector<Step> cuts(1 + random() % 3);
    for (Step& step : cuts) step = static_cast<Step>(random() % 31);
    std::sort(cuts.begin(), cuts.end());
    const HoldCut cut(program, program.schedule, cuts);
    std::vector<double> price(30);
    for (double& p : price) p = (random() % 100) / 100.0;
    EXPECT_EQ(CheckSchedule(program, cut.Choose(price)), "");
  }
}

}  // namespace
}  // namespace coopjax
