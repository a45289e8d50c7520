#include "buffers/synchronous.h"

#include <string>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const hlo::Shape kRow = F32({256});

// The done of each of these instructions of `b`, 0 for none.
std::vector<int64_t> DoneOf(HloBuilder& b, const std::vector<int64_t>& ids) {
  const hlo::Module module = b.Finish();
  const hlo::Graph graph(module);
  const std::vector<Synchronous> found = FindSynchronous(graph, graph.sequence(module.entry));
  std::vector<int64_t> of_ids;
  for (const int64_t id : ids) {
    const int32_t done = found[b.index(id)].done;
    of_ids.push_back(done < 0 ? 0 : graph.instruction(done).id);
  }
  return of_ids;
}

TEST(WithNothingBetween) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kRow);
  const int64_t first = b.Add("all-reduce-start", kRow, {p});
  const int64_t second = b.Add("all-reduce-start", kRow, {p});
  b.Add("bitcast", F32({1, 256}), {p});
  const int64_t x = b.Add("all-reduce-done", kRow, {first});
  const int64_t y = b.Add("all-reduce-done", kRow, {second});
  const int64_t third = b.Add("all-reduce-start", kRow, {p});
  b.Add("negate", kRow, {x});
  b.Add("add", kRow, {b.Add("all-reduce-done", kRow, {third}), y});
  EXPECT_TRUE((DoneOf(b, {first, second, third, x}) == std::vector<int64_t>{x, y, 0, 0}));
}

// A wrapped collective with what it wraps; another computation that runs at the side stays there, and is work itself.
TEST(OfWhatIsWrappedCollectivesAlone) {
  HloBuilder b;
  const int64_t wrapped_collective = b.Begin("wrapped_collective");
  const int64_t inside = b.Add("reduce-scatter", kRow, {b.Parameter(0, kRow)});
  const int64_t wrapped_work = b.Begin("wrapped_work");
  b.Add("negate", kRow, {b.Parameter(0, kRow)});
  b.Begin("main");
  const int64_t p = b.Parameter(0, kRow);
  const hlo::Shape in_flight = TupleOf({TupleOf({kRow}), kRow});
  const int64_t collective = b.Add("async-start", in_flight, {p}, {wrapped_collective});
  const int64_t scattered = b.Add("async-done", kRow, {collective});
  const int64_t around = b.Add("async-start", in_flight, {p}, {wrapped_collective});
  const int64_t work = b.Add("async-start", in_flight, {p}, {wrapped_work});
  const int64_t worked = b.Add("async-done", kRow, {work});
  b.Add("add", kRow, {b.Add("add", kRow, {worked, scattered}), b.Add("async-done", kRow, {around})});
  EXPECT_TRUE((DoneOf(b, {collective, inside, around, work}) == std::vector<int64_t>{scattered, scattered, 0, 0}));
}

}  // namespace
}  // namespace coopjax
