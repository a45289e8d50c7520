#include "verify/buffer_order.h"

#include <string>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax::verify {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const hlo::Shape kArray = F32({4});
const hlo::Shape kPair = TupleOf({F32({4}), F32({4})});

// p is donated to the output w = p * 2. The reader of p comes before w or after it.
std::string Donation(bool reads_late) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  int64_t reader = 0, w = 0;
  if (!reads_late) reader = b.Add("negate", kArray, {p});
  w = b.Add("add", kArray, {p, p});
  if (reads_late) reader = b.Add("negate", kArray, {p});
  b.Add("tuple", kPair, {w, reader});
  b.Donate(0, {0});
  return CheckBufferOrder(b.Finish());
}

TEST(ADonatedParameterIsReadBeforeItsOutputIsWritten) {
  EXPECT_EQ(Donation(false), "");
  EXPECT_EQ(Donation(true), "'negate.2' reads 'parameter.0' after 'add.1' has overwritten its buffer");
}

TEST(AParameterThatIsNotDonatedMayBeReadAtAnyTime) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  const int64_t w = b.Add("add", kArray, {p, p});
  b.Add("tuple", kPair, {w, b.Add("negate", kArray, {p})});
  EXPECT_EQ(CheckBufferOrder(b.Finish()), "");
}

TEST(AParameterThatIsReturnedAsItCameMustNotBeOverwritten) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  const int64_t w = b.Add("add", kArray, {p, p});
  b.Add("tuple", kPair, {w, p});
  b.Donate(0, {0});
  EXPECT_EQ(CheckBufferOrder(b.Finish()), "'tuple.2' reads 'parameter.0' after 'add.1' has overwritten its buffer");
}

// a = iota; u = update(bitcast(a)); the reader reads a directly or through a tuple, before u or after.
std::string InPlace(const std::string& update, bool reads_late, bool through_tuple) {
  HloBuilder b;
  b.Begin("main");
  const int64_t index = b.Parameter(0, F32({}));
  const int64_t a = b.Add("iota", kArray);
  const int64_t flat = b.Add("bitcast", kArray, {a});
  const int64_t seen = through_tuple ? b.Element(b.Add("tuple", kPair, {a, a}), 1) : a;
  int64_t reader = 0, u = 0;
  if (!reads_late) reader = b.Add("negate", kArray, {seen});
  u = b.Add(update, kArray, {flat, index, index});
  if (reads_late) reader = b.Add("negate", kArray, {seen});
  b.Add("tuple", kPair, {u, reader});
  return CheckBufferOrder(b.Finish());
}

TEST(InPlaceUpdatesComeAfterAllReaders) {
  for (const std::string update : {"dynamic-update-slice", "scatter", "set-dimension-size"}) {
    for (const bool through_tuple : {false, true}) {
      EXPECT_EQ(InPlace(update, false, through_tuple), "");
      EXPECT_TRUE(InPlace(update, true, through_tuple).ends_with("has overwritten its buffer"));
    }
  }
  EXPECT_EQ(InPlace("select", true, false), "");
  // Nobody knows what this one does to its operands.
  EXPECT_EQ(InPlace("frobnicate", true, false),
            "'negate.4' reads 'iota.1' after 'frobnicate.3' has overwritten its buffer");
}

// A fusion whose root updates its parameter in place, behind a bitcast and within a tuple.
std::string InPlaceFusion(bool reads_late, bool is_annotated) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  const int64_t x = b.Parameter(0, kArray), y = b.Parameter(1, kArray);
  const int64_t flat = b.Add("bitcast", kArray, {y});
  const int64_t u = b.Add(is_annotated ? "add" : "dynamic-update-slice", kArray, {flat, x});
  b.Add("tuple", kPair, {b.Add("negate", kArray, {x}), b.Add("bitcast", kArray, {u})});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  const int64_t a = b.Add("iota", kArray);
  int64_t reader = 0;
  if (!reads_late) reader = b.Add("negate", kArray, {a});
  const int64_t fusion = b.LoopFusion(kPair, {p, a}, fused);
  if (is_annotated) b.last().output_operand_aliasing.push_back({{1}, 1, {}});
  if (reads_late) reader = b.Add("negate", kArray, {a});
  b.Add("tuple", TupleOf({kArray, kArray}), {b.Element(fusion, 1), reader});
  return CheckBufferOrder(b.Finish());
}

TEST(FusionsUpdateInPlaceToo) {
  for (const bool is_annotated : {false, true}) {
    EXPECT_EQ(InPlaceFusion(false, is_annotated), "");
    EXPECT_TRUE(InPlaceFusion(true, is_annotated).ends_with("has overwritten its buffer"));
  }
}

// A loop over (x, w) that changes x and hands w on. Afterwards one of the initial values is read.
std::string Loop(int64_t element_read_late) {
  HloBuilder b;
  const int64_t body = b.Begin("body");
  const int64_t state = b.Parameter(0, kPair);
  const int64_t x = b.Element(state, 0), w = b.Element(state, 1);
  b.Add("tuple", kPair, {b.Add("add", kArray, {x, w}), w});
  const int64_t condition = b.Begin("condition");
  b.Parameter(0, kPair);
  b.Add("constant", F32({}));
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  const int64_t initial[2] = {b.Add("negate", kArray, {p}), b.Add("negate", kArray, {p})};
  const int64_t loop = b.Add("while", kPair, {b.Add("tuple", kPair, {initial[0], initial[1]})}, {body, condition});
  const int64_t late = b.Add("negate", kArray, {initial[element_read_late]});
  b.Add("tuple", TupleOf({kArray, kArray, kArray}), {b.Element(loop, 0), b.Element(loop, 1), late});
  return CheckBufferOrder(b.Finish());
}

TEST(ALoopOverwritesWhatItChangesAndNothingElse) {
  EXPECT_EQ(Loop(1), "");
  EXPECT_EQ(Loop(0), "'negate.12' reads 'negate.8' after 'while.11' has overwritten its buffer");
}

// A loop's body over (x, w): x' = x + w, y = -x, w' = w + y. It reads x before it writes x', or after.
std::string Body(bool reads_late, const std::string& condition_op) {
  HloBuilder b;
  const int64_t body = b.Begin("body");
  const int64_t state = b.Parameter(0, kPair);
  const int64_t x = b.Element(state, 0), w = b.Element(state, 1);
  int64_t next = 0, y = 0;
  if (!reads_late) y = b.Add("negate", kArray, {x});
  next = b.Add("add", kArray, {x, w});
  if (reads_late) y = b.Add("negate", kArray, {x});
  b.Add("tuple", kPair, {next, b.Add("add", kArray, {w, y})});
  const int64_t condition = b.Begin("condition");
  b.Add(condition_op, kArray, {b.Element(b.Parameter(0, kPair), 0)});
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray), q = b.Parameter(1, kArray);
  const int64_t initial = b.Add("tuple", kPair, {b.Add("negate", kArray, {p}), b.Add("negate", kArray, {q})});
  b.Add("while", kPair, {initial}, {body, condition});
  return CheckBufferOrder(b.Finish());
}

// Both branches return their operand as it came, the second one a copy of it if `is_changed`.
std::string Conditional(bool is_changed) {
  HloBuilder b;
  const int64_t first = b.Begin("first");
  b.Parameter(0, kArray);
  const int64_t second = b.Begin("second");
  const int64_t p = b.Parameter(0, kArray);
  if (is_changed) b.Add("negate", kArray, {p});
  b.Begin("main");
  const int64_t choice = b.Parameter(0, F32({}));
  const int64_t operand = b.Add("iota", kArray);
  const int64_t result = b.Add("conditional", kArray, {choice, operand, operand}, {first, second});
  b.Add("tuple", kPair, {result, b.Add("negate", kArray, {operand})});
  return CheckBufferOrder(b.Finish());
}

TEST(AConditionalOverwritesWhatABranchChanges) {
  EXPECT_EQ(Conditional(false), "");
  EXPECT_EQ(Conditional(true), "'negate.6' reads 'iota.4' after 'conditional.5' has overwritten its buffer");
}

TEST(ABodyReadsItsStateBeforeItOverwritesIt) {
  EXPECT_EQ(Body(false, "is-finite"), "");
  EXPECT_EQ(Body(true, "is-finite"), "'negate.4' reads 'parameter.0' after 'add.3' has overwritten its buffer");
}

TEST(AConditionLeavesTheStateToTheBody) {
  EXPECT_EQ(Body(false, "dynamic-update-slice"),
            "'while.15' reads 'parameter.7' after 'dynamic-update-slice.9' has overwritten its buffer");
}

// A call that updates its operand inside, and returns something else.
TEST(ACallMayOverwriteItsOperand) {
  for (const bool reads_late : {false, true}) {
    HloBuilder b;
    const int64_t callee = b.Begin("callee");
    const int64_t inner = b.Parameter(0, kArray);
    const int64_t u = b.Add("dynamic-update-slice", kArray, {inner, inner});
    b.Add("negate", kArray, {u});
    b.Begin("main");
    const int64_t a = b.Add("iota", kArray);
    if (!reads_late) b.Add("negate", kArray, {a});
    b.Add("call", kArray, {a}, {callee});
    if (reads_late) b.Add("negate", kArray, {a});
    EXPECT_EQ(CheckBufferOrder(b.Finish()).empty(), !reads_late);
  }
}

TEST(AnAsynchronousCopyReadsUntilItIsDone) {
  for (const bool is_overwritten : {false, true}) {
    HloBuilder b;
    b.Begin("main");
    const int64_t a = b.Add("iota", kArray);
    const int64_t start = b.Add("copy-start", TupleOf({kArray, kArray, F32({})}), {a});
    const int64_t early = is_overwritten ? b.Add("dynamic-update-slice", kArray, {a, a}) : 0;
    const int64_t done = b.Add("copy-done", kArray, {start});
    const int64_t u = is_overwritten ? early : b.Add("dynamic-update-slice", kArray, {a, a});
    b.Add("tuple", kPair, {u, done});
    const std::string fault = "'copy-done.3' reads 'iota.0' after 'dynamic-update-slice.2' has overwritten its buffer";
    EXPECT_EQ(CheckBufferOrder(b.Finish()), is_overwritten ? fault : "");
  }
}

// The start updates its operand in place; the operand stays in its result, and nobody may write there until the done.
TEST(AnAsynchronousStartMayOverwriteItsOperand) {
  for (const bool is_overwritten : {false, true}) {
    HloBuilder b;
    const int64_t callee = b.Begin("callee");
    const int64_t inner = b.Parameter(0, kArray);
    b.Add("dynamic-update-slice", kArray, {inner, inner});
    b.Begin("main");
    const int64_t a = b.Add("iota", kArray);
    const int64_t start = b.Add("async-start", TupleOf({TupleOf({kArray}), kArray, F32({})}), {a}, {callee});
    if (is_overwritten) b.Add("dynamic-update-slice", kArray, {a, a});
    b.Add("async-done", kArray, {start});
    EXPECT_EQ(CheckBufferOrder(b.Finish()).empty(), !is_overwritten);
  }
}

TEST(WhatCannotBeResolvedIsAFault) {
  HloBuilder unknown_output;
  unknown_output.Begin("main");
  unknown_output.Parameter(0, kArray);
  unknown_output.Donate(0, {3});
  EXPECT_EQ(CheckBufferOrder(unknown_output.Finish()), "an aliased parameter or output does not exist");
  HloBuilder shared;
  const int64_t callee = shared.Begin("callee");
  shared.Parameter(0, kArray);
  shared.Begin("main");
  const int64_t first = shared.Add("call", kArray, {shared.Parameter(0, kArray)}, {callee});
  shared.Add("call", kArray, {first}, {callee});
  EXPECT_EQ(CheckBufferOrder(shared.Finish()), "'callee' has two callers");
}

}  // namespace
}  // namespace coopjax::verify
