#include "buffers/analysis.h"

#include <string>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;

// sine(p), or where `is_faulty` sine of p read as a tuple.
const hlo::Module& Build(HloBuilder& b, bool is_faulty) {
  b.Begin("main");
  int64_t x = b.Parameter(0, F32({4}));
  if (is_faulty) x = b.Add("get-tuple-element", F32({4}), {x});
  b.Add("sine", F32({4}), {x});
  return b.Finish();
}

TEST(EveryPartIsOfTheOneBefore) {
  HloBuilder b;
  std::string error = "from before";
  const auto analysis = AnalyzeHlo(Build(b, /*is_faulty=*/false), &error);
  EXPECT_EQ(error, "");
  EXPECT_TRUE(&analysis->dataflow->graph() == &analysis->graph);
  EXPECT_TRUE(&analysis->alias->dataflow() == &*analysis->dataflow);
  EXPECT_EQ(analysis->dataflow->num_values(), 2);   // p and its sine
  EXPECT_EQ(analysis->ranges.of_value.size(), 2u);
  EXPECT_EQ(analysis->ranges.end_time(), 2);
}

TEST(AFaultyGraphIsNotAnalysed) {
  HloBuilder b;
  std::string error;
  EXPECT_TRUE(AnalyzeHlo(Build(b, /*is_faulty=*/true), &error) == nullptr);
  EXPECT_EQ(error, "'get-tuple-element.1' is not a well-formed get-tuple-element");
}

}  // namespace
}  // namespace coopjax
