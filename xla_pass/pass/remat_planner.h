// What chooses the recomputes of one computation: the core's own planners, or one that the caller brings.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "bridge/hlo_program.h"
#include "program/step_program.h"

namespace coopjax {

struct RematTask {
  const HloProgram& hlo;
  std::span<const OpId> order = {};   // to start from; empty: the planner chooses
  std::string planner = "";           // of an earlier plan for a nearby limit; empty: there is none
  int64_t limit_bytes = 0;            // of live bytes
  int64_t max_steps = kDefaultSteps;
};

struct ModulePlan {
  Schedule schedule = {};             // repeats are recomputes
  Schedule order = {};                // without repeats, that it was made from
  std::string planner = "";           // that made it
  int64_t limit_bytes = 0;            // that it was made for
  // Of the schedule, whatever its planner says.
  int64_t peak_bytes = 0;
  double cost_s = 0;

  bool fits() const { return peak_bytes <= limit_bytes; }
  std::pair<int64_t, double> Rank() const { return {std::max<int64_t>(peak_bytes - limit_bytes, 0), cost_s}; }
};

// Fills in schedule, order and planner: a schedule within the limit, or near it.
using RematPlanner = std::function<ModulePlan(const RematTask& task)>;

struct RematPlanners {
  // Null for the core's own: from each order the peak planner's plan, Coop's polished by the peak planner, whose
  // victims are chosen by recompute cost in an arena with the cheap ranks at one end and the expensive ones at the
  // other, and the segment planner's.
  RematPlanner given = nullptr;
  bool is_large = false;              // of the core's own the segment planner alone

  // The valid plans, the best first; `fault` says what is wrong with others.
  std::vector<ModulePlan> Plan(const RematTask& task, std::string* fault) const;
};

// By the peak planner alone; where the limit is out of reach, the cheap one of two near the smallest peak.
ModulePlan PlanQuickly(const RematTask& task);

}  // namespace coopjax
