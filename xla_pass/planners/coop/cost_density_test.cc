#include "planners/coop/cost_density.h"

#include <vector>

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

constexpr CostClass kC = CostClass::kCheap, kE = CostClass::kExpensive;
using Classes = std::vector<CostClass>;

// `first_bytes` in 1 s, 4 bytes in 2 s, 4 bytes in 4 s; then an output, which takes no budget, and workspace alone.
StepProgram Three(int64_t first_bytes) {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {first_bytes}, .cost_s = 1});
  builder.Op({.inputs = {a}, .output_bytes = {3, 1}, .cost_s = 2});
  builder.Op({.inputs = {a}, .output_bytes = {4}, .cost_s = 4});
  builder.Op({.inputs = {a}, .output_bytes = {4}, .cost_s = 4, .kind = ValueKind::kOutput});
  builder.Op({.inputs = {a}, .cost_s = 4, .workspace_bytes = 4});
  return builder.program();
}

// Of 7 + 4 + 4 bytes half are reached with the second op's, at 2 s / 4 bytes; of 8 + 4 + 4 with the first one's.
TEST(CheapIsWhatLiesBelowTheMedianByBytes) {
  EXPECT_TRUE((ClassesByDensity(Three(7), 0) == Classes{kC, kE, kE, kC, kC}));
  EXPECT_TRUE((ClassesByDensity(Three(8), 0) == Classes{kE, kE, kE, kC, kC}));
}

// The densities are 1/8, 1/2 and 1 s a byte.
TEST(CheapIsWhatLiesBelowTheLimit) {
  EXPECT_TRUE((ClassesByDensity(Three(8), 0.5) == Classes{kC, kE, kE, kC, kC}));
  EXPECT_TRUE((ClassesByDensity(Three(8), 0.51) == Classes{kC, kC, kE, kC, kC}));
  EXPECT_TRUE((ClassesByDensity(Three(8), 1.01) == Classes{kC, kC, kC, kC, kC}));
}

TEST(ProgramsWithoutOpsHaveNoClasses) { EXPECT_TRUE(ClassesByDensity(StepProgram(), 0).empty()); }

}  // namespace
}  // namespace coopjax
