#include "planners/segments/unneeded_repeats.h"

#include "program/dependences.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// a (4) -> c (3), and both again for the end; e (6) lies between.
TEST(RepeatsGoWhereTheBudgetHasRoom) {
  testing::ProgramBuilder b;
  const ValueId a = b.Op({.output_bytes = {4}});
  const ValueId c = b.Op({.inputs = {a}, .output_bytes = {3}});
  const ValueId e = b.Op({.inputs = {c}, .output_bytes = {6}});
  b.Op({.inputs = {c, e}, .output_bytes = {1}});
  const Csr touches = OpTouches(b.program());
  const Schedule remade = {0, 1, 2, 0, 1, 3};
  // Live bytes 4, 4 + 3, 3 + 6, 6 + 4, 6 + 4 + 3, 3 + 6 + 1; with c held 4, 7, 9, 10.
  EXPECT_TRUE(ComputeLiveness(b.program(), remade).peak_bytes == int64_t{13});
  const FewerRepeats fewer = RemoveUnneededRepeats(b.program(), touches, remade, 13);
  EXPECT_TRUE(fewer.schedule == (Schedule{0, 1, 2, 3}));   // op 0 served op 1 alone
  EXPECT_EQ(fewer.num_removed, int64_t{2});
}

TEST(RepeatsThatTheBudgetNeedsStay) {
  testing::ProgramBuilder b;
  const ValueId a = b.Op({.output_bytes = {8}});
  const ValueId c = b.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId d = b.Op({.inputs = {c}, .output_bytes = {9}});
  const ValueId e = b.Op({.inputs = {d}, .output_bytes = {1}});
  b.Op({.inputs = {a, e}, .output_bytes = {1}});
  const Csr touches = OpTouches(b.program());
  const Schedule remade = {0, 1, 2, 3, 0, 4};          // 8, 9, 10, 10, 9, 10; with a held 8 + 9 + 1 = 18
  EXPECT_TRUE(RemoveUnneededRepeats(b.program(), touches, remade, 17).schedule == remade);
  EXPECT_TRUE(RemoveUnneededRepeats(b.program(), touches, remade, 18).schedule == (Schedule{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace coopjax
