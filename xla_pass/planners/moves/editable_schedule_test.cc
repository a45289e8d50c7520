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
    const Step end = schedule.StepAtOrAfter(change.end);
    for (Step t = schedule.StepAtOrAfter(change.begin); t < end; ++t) live[t] += change.bytes;
  }
  return live;
}

// Steps instead of keys, which differ.
void ExpectSame(const EditableSchedule& a, const EditableSchedule& b) {
  EXPECT_TRUE(a.live_bytes_before() == b.live_bytes_before());
  for (Step t = 0; t < static_cast<Step>(a.schedule().size()); ++t) {
    EXPECT_EQ(a.is_repeat(t), b.is_repeat(t));
    EXPECT_EQ(a.StepAtOrAfter(a.key(t)), t);
    EXPECT_EQ(a.StepAtOrAfter(a.key(t) + 1), t + 1);
  }
  for (ValueId v = 0; v < a.program().num_values(); ++v) {
    EXPECT_EQ(a.made(v).size(), b.made(v).size());
    for (size_t i = 0; i < a.made(v).size(); ++i) {
      const auto &in_a = a.made(v)[i], &in_b = b.made(v)[i];
      EXPECT_EQ(a.StepAtOrAfter(in_a.key), b.StepAtOrAfter(in_b.key));
      if (a.program().value_producer[v] == kNoOp) continue;
      EXPECT_EQ(a.StepAtOrAfter(in_a.last_read), b.StepAtOrAfter(in_b.last_read));
      if (a.program().takes_budget(v)) EXPECT_EQ(a.StepAtOrAfter(in_a.end), b.StepAtOrAfter(in_b.end));
    }
    EXPECT_EQ(a.reads(v).size(), b.reads(v).size());
    for (size_t i = 0; i < a.reads(v).size(); ++i) {
      EXPECT_EQ(a.StepAtOrAfter(a.reads(v)[i].key), b.StepAtOrAfter(b.reads(v)[i].key));
    }
  }
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

// Random edits, half of them undone: after every commit the live bytes are those of ComputeLiveness, before it the
// logged changes already said so, and what is kept is what a schedule that starts there knows.
TEST(AgreesWithLivenessUnderRandomEdits) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const StepProgram program = testing::RandomProgram(seed, 25);
    EditableSchedule schedule(program, program.schedule);
    for (int round = 0; round < 30; ++round) {
      for (int n = 0; n < 6; ++n) {
        const Step step = static_cast<Step>(random() % schedule.schedule().size());
        if (random() % 2) {
          const OpId op = static_cast<OpId>(random() % program.num_ops());
          const auto free = schedule.KeysBefore(schedule.key(step), 40);
          const Key key = free[39 - schedule.edits().size()];
          const auto& steps = schedule.schedule();
          const bool has_run = std::find(steps.begin(), steps.begin() + step, op) != steps.begin() + step;
          if (has_run && schedule.may_run_twice(op) && schedule.CanInsert(op, key)) schedule.Insert(op, key);
        } else if (schedule.edits().empty() && schedule.is_repeat(step) &&
                   schedule.CanRemove(schedule.schedule()[step], schedule.key(step))) {
          schedule.Remove(schedule.schedule()[step], schedule.key(step));
        }
        if (random() % 2) schedule.UndoTo(random() % (schedule.edits().size() + 1));
      }
      const std::vector<int64_t> expected = Changed(schedule);
      const Schedule before = schedule.schedule();
      std::vector<Key> keys(before.size());
      for (Step t = 0; t < static_cast<Step>(before.size()); ++t) keys[t] = schedule.key(t);
      std::vector<Key> inserted, removed;
      for (const auto& edit : schedule.edits()) (edit.is_insert ? inserted : removed).push_back(edit.key);
      schedule.Commit();
      EXPECT_EQ(CheckSchedule(program, schedule.schedule()), "");
      EXPECT_TRUE(schedule.live_bytes() == ComputeLiveness(program, schedule.schedule()).live_bytes);
      ExpectSame(schedule, EditableSchedule(program, schedule.schedule()));
      size_t at = 0;
      for (Step t = 0; t < static_cast<Step>(before.size()); ++t) {
        at += std::count_if(inserted.begin(), inserted.end(),
                            [&](Key key) { return (t == 0 || key > keys[t - 1]) && key < keys[t]; });
        if (std::find(removed.begin(), removed.end(), keys[t]) != removed.end()) continue;
        EXPECT_EQ(schedule.live_bytes()[at++], expected[t]);
      }
    }
  }
}

// Moves that are kept, some of them undone before, come out as if each had been committed by itself, and later ones may
// build on them.
TEST(KeptEditsAreCommittedTogether) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const StepProgram program = testing::RandomProgram(seed, 25);
    EditableSchedule schedule(program, program.schedule);
    for (int round = 0; round < 5; ++round) {
      for (int n = 0; n < 20 && !schedule.is_tight(); ++n) {
        const ValueId v = static_cast<ValueId>(random() % program.num_values());
        const OpId producer = program.value_producer[v];
        if (producer == kNoOp || !schedule.may_run_twice(producer) || schedule.reads(v).empty()) continue;
        const Key next = schedule.reads(v)[random() % schedule.reads(v).size()].key;   // a kept op's, too
        const Key key = schedule.KeysBefore(next, 1)[0];
        if (!schedule.CanInsert(producer, key)) continue;
        schedule.Insert(producer, key);
        if (random() % 3 == 0) {
          schedule.UndoTo(0);
          continue;
        }
        if (random() % 3 == 0 && schedule.CanRemove(producer, key)) schedule.Remove(producer, key);
        schedule.Keep();
        EXPECT_TRUE(schedule.edits().empty() && schedule.changes().empty());
      }
      schedule.Commit();
      EXPECT_EQ(CheckSchedule(program, schedule.schedule()), "");
      EXPECT_TRUE(schedule.live_bytes() == ComputeLiveness(program, schedule.schedule()).live_bytes);
      ExpectSame(schedule, EditableSchedule(program, schedule.schedule()));
    }
  }
}

// Keys run out where again and again something is put at the same place; a commit gives those around new ones then.
TEST(ThereIsAlwaysRoom) {
  const StepProgram program = testing::ForwardBackwardChain(4, 10);
  EditableSchedule schedule(program, program.schedule);
  int num_tight = 0;
  for (int n = 0; n < 200; ++n) {
    const Key last = schedule.key(static_cast<Step>(schedule.schedule().size()) - 1);
    const FreeKeys row = schedule.KeysBefore(last, 2);
    for (OpId op : {0, 1}) schedule.Insert(op, row[op]);
    if (n % 5 == 0) schedule.Remove(0, row[0]);
    schedule.Keep();
    num_tight += schedule.is_tight();
    if (n % 3 == 0 || schedule.is_tight()) {
      schedule.Commit();
      ExpectSame(schedule, EditableSchedule(program, schedule.schedule()));
    }
    EXPECT_TRUE(!schedule.is_tight());
  }
  schedule.Commit();
  EXPECT_TRUE(num_tight >= 3);
  EXPECT_EQ(schedule.schedule().size(), program.schedule.size() + 400 - 40);
  ExpectSame(schedule, EditableSchedule(program, schedule.schedule()));
}

}  // namespace
}  // namespace coopjax
