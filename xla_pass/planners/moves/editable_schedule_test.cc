#include "planners/moves/editable_schedule.h"

#include <algorithm>
#include <random>

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// Live bytes that the edits since the last commit lead to, at the steps that were there before.
std::vector<int64_t> Changed(const EditableSchedule& schedule) {
  std::vector<int64_t> live = schedule.live_bytes();
  for (const auto& change : schedule.changes()) {
    for (Step t = StepAtOrAfter(change.begin); t < StepAtOrAfter(change.end); ++t) live[t] += change.bytes;
  }
  return live;
}

TEST(KnowsWhatAnInsertionChanges) {
  // a(8) at step 0, read at steps 1 and 4; made again just before step 4 it is not live on steps 2 and 3.
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c1 = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId c2 = builder.Op({.inputs = {c1}, .output_bytes = {5}});
  builder.Op({.inputs = {a, c2}, .output_bytes = {1}});
  EditableSchedule schedule(builder.program(), builder.program().schedule);
  EXPECT_TRUE((schedule.live_bytes() == std::vector<int64_t>{8, 9, 14, 18, 14}));
  const Key key = StepKey(4) - 1;
  EXPECT_TRUE(schedule.CanInsert(0, key));
  schedule.Insert(0, key);
  EXPECT_TRUE((Changed(schedule) == std::vector<int64_t>{8, 9, 6, 10, 14}));
  EXPECT_TRUE(schedule.CanRemove(0, key));
  schedule.UndoTo(0);
  EXPECT_TRUE(schedule.changes().empty());
  schedule.Insert(0, key);
  schedule.Commit();
  EXPECT_TRUE((schedule.schedule() == Schedule{0, 1, 2, 3, 0, 4}));
  EXPECT_TRUE(schedule.is_repeat(4));
}

// Random edits, half of them undone: after every commit the live bytes are those of ComputeLiveness,
// and before it the logged changes already said so.
TEST(AgreesWithLivenessUnderRandomEdits) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const StepProgram program = testing::RandomProgram(seed, 25);
    EditableSchedule schedule(program, program.schedule);
    for (int round = 0; round < 12; ++round) {
      for (int n = 0; n < 6; ++n) {
        const Step step = static_cast<Step>(random() % schedule.schedule().size());
        if (random() % 2) {
          const OpId op = static_cast<OpId>(random() % program.num_ops());
          const Key key = StepKey(step) - 1 - static_cast<Key>(schedule.edits().size());
          const auto& steps = schedule.schedule();
          const bool has_run = std::find(steps.begin(), steps.begin() + step, op) != steps.begin() + step;
          if (has_run && schedule.may_run_twice(op) && schedule.CanInsert(op, key)) schedule.Insert(op, key);
        } else if (schedule.edits().empty() && schedule.is_repeat(step) &&
                   schedule.CanRemove(schedule.schedule()[step], StepKey(step))) {
          schedule.Remove(schedule.schedule()[step], StepKey(step));
        }
        if (random() % 2) schedule.UndoTo(random() % (schedule.edits().size() + 1));
      }
      const std::vector<int64_t> expected = Changed(schedule);
      const Schedule before = schedule.schedule();
      std::vector<Key> inserted, removed;
      for (const auto& edit : schedule.edits()) (edit.is_insert ? inserted : removed).push_back(edit.key);
      schedule.Commit();
      EXPECT_EQ(CheckSchedule(program, schedule.schedule()), "");
      EXPECT_TRUE(schedule.live_bytes() == ComputeLiveness(program, schedule.schedule()).live_bytes);
      size_t at = 0;
      for (Step t = 0; t < static_cast<Step>(before.size()); ++t) {
        at += std::count_if(inserted.begin(), inserted.end(),
                            [t](Key key) { return key > StepKey(t) - StepKey(1) && key < StepKey(t); });
        if (std::find(removed.begin(), removed.end(), StepKey(t)) != removed.end()) continue;
        EXPECT_EQ(schedule.live_bytes()[at++], expected[t]);
      }
    }
  }
}

}  // namespace
}  // namespace coopjax
