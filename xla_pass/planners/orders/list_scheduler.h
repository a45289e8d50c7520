// Orders that need less memory, without recomputing anything.
//
// A greedy list scheduler runs, of the ops that may run next, the one that frees most bytes. Being
// greedy it is sometimes worse than the order it was given, so there are several rules, and
// ScheduleForMemory keeps the order with the smallest peak. Data, control and anti-dependences (all
// readers of a value before its in-place writer) are kept. O(edges log ops) per rule.
#pragma once

#include <cstdint>

#include "program/step_program.h"

namespace coopjax {

enum class OrderRule : uint8_t {
  kGiven = 0,        // the program's own order
  kMostFreed = 1,    // largest net of bytes freed - bytes made, then fewest made
  kFreeFirst = 2,    // ops that do not grow memory at once, the others in the given order
  kLookAhead = 3,    // kMostFreed over the chain of sole readers that an op opens
  kBackward = 4,     // kMostFreed from the end of the program towards its start
  kLateBackward = 5, // kFreeFirst from the end: everything as late as its readers allow
};
inline constexpr int kNumOrderRules = 6;

Schedule ScheduleByRule(const StepProgram& program, OrderRule rule);

// The best of all rules: smallest peak, then smallest sum of live bytes over the steps, then the
// first rule.
Schedule ScheduleForMemory(const StepProgram& program);

}  // namespace coopjax
