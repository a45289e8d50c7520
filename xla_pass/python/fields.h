// What several bindings give to Python as a dict.
#pragma once

#include "bridge/hlo_program.h"
#include "buffers/heap.h"
#include "python/bindings.h"

namespace coopjax::python {

nb::dict HeapFields(const HeapResult& heap);      // of coopjax.xla.module.HeapResult
nb::dict ProgramFields(const HloProgram& hlo);    // of coopjax.program.step_program.StepProgram

}  // namespace coopjax::python
