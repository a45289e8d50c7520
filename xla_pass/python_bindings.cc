// The Python extension `coopjax._core`: thin bindings, one Bind function per component.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of coopjax: planners over a StepProgram, and the HLO pass (bytes in, bytes out).";
}
