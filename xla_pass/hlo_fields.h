// What several bindings give to Python as a dict.
#pragma once

#include "bindings.h"
#include "hlo_heap.h"

namespace coopjax::python {

nb::dict HeapFields(const HeapResult& heap);   // the fields of coopjax.xla.program.HeapResult

}  // namespace coopjax::python
