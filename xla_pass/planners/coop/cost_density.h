// Which ops are cheap to run again for the bytes that they make.
#pragma once

#include <vector>

#include "planners/coop/arena_groups.h"
#include "program/step_program.h"

namespace coopjax {

// The class of each op by cost density: seconds over bytes of temporary outputs. Cheap is what lies below
// `cheap_below_s_per_byte`; 0 stands for the program's median, by bytes.
std::vector<CostClass> ClassesByDensity(const StepProgram& program, double cheap_below_s_per_byte);

}  // namespace coopjax
