// The Python extension `coopjax._core`: the planner core and the HLO pass.
#include <nanobind/nanobind.h>

#include "python/bindings.h"

NB_MODULE(_core, m) {
  nanobind::set_leak_warnings(false);  // outcomes that are kept for the life of the process are no leak
  m.doc() = "The C++ core of coopjax: planners over a StepProgram, and the HLO pass (bytes in, bytes out).";
  coopjax::python::BindWork(m);
  coopjax::python::BindPlanners(m);
  coopjax::python::BindCoop(m);
  coopjax::python::BindOrders(m);
  coopjax::python::BindSegments(m);
  coopjax::python::BindSaving(m);
  coopjax::python::BindAnneal(m);
  coopjax::python::BindPacking(m);
  coopjax::python::BindHlo(m);
  coopjax::python::BindInspect(m);
  coopjax::python::BindRecomputeOrder(m);
}
