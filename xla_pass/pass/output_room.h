// Room in the buffers of outputs: until an output is there, XLA keeps temporaries in its buffer.
//
// So what is live may stand above the budget by what the outputs still to come take. To planners, who bound live bytes
// by one limit, this is said by counting: outputs count from when they are made to the end, and the limit is larger by
// all of their bytes.
#pragma once

#include <cstdint>
#include <span>

#include "bridge/hlo_program.h"
#include "program/step_program.h"

namespace coopjax {

// A program whose outputs count, which one last op reads.
struct CountedOutputs {
  HloProgram hlo;
  int64_t bytes = 0;  // of the outputs, as far as temporaries fit into them; 0: there is nothing to count
};

CountedOutputs CountOutputs(const HloProgram& hlo);

// Whether that room is used: the module as it came has so much more live than its temporaries take.
bool UsesOutputRoom(const HloProgram& hlo, int64_t temp_bytes);

// A schedule of the program as one of that with counted outputs, and the other way round. An empty one stays empty.
Schedule WithLastOp(const CountedOutputs& counted, std::span<const OpId> schedule);
Schedule WithoutLastOp(const CountedOutputs& counted, Schedule schedule);

}  // namespace coopjax
