// What several bindings give to Python as a dict.
#pragma once

#include "bindings.h"
#include "hlo_heap.h"
#include "hlo_program.h"

namespace coopjax::python {

nb::dict HeapFields(const HeapResult& heap);      // of coopjax.xla.program.HeapResult
nb::dict ProgramFields(const HloProgram& hlo);    // of coopjax.program.step_program.StepProgram

}  // namespace coopjax::python
