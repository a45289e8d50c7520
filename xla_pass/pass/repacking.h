// A plan that was carried out in an order of its runs that packs better: what runs, and what reads what, stays as it
// is.
#pragma once

#include <optional>
#include <string>

#include "bridge/read_module.h"
#include "pass/carried_out.h"
#include "planners/orders/packed_order.h"
#include "program/step_program.h"

namespace coopjax {

// Moves the runs about inside, where something was planned there, then those of the entry, which `entry` is as it was
// planned. Nothing where no run moves, or, with a sentence in `fault`, where what came of it can't be read.
std::optional<CarriedOut> Repacked(const CarriedOut& loose, const StepProgram& entry, const ProgramReader& reader,
                                   const PackedOrderOptions& options, std::string* fault);

}  // namespace coopjax
