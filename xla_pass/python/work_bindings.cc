// Bindings of the steps that this thread's searches have taken, and of its fuse.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "base/allowance.h"
#include "python/bindings.h"

namespace coopjax::python {

void BindWork(nb::module_& m) {
  m.attr("UNLIMITED_STEPS") = kUnlimitedSteps;
  m.def("steps_taken", [] { return thread_work.steps; }, "By this thread's searches; see base/allowance.h.");
  m.def("count_steps", &CountSteps, nb::arg("steps"), "Counts what was done outside of the core.");
  m.def("num_cuts", [] { return thread_work.num_cuts; }, "How often this thread found an allowance to be over.");
  m.def("count_cut", [] { ++thread_work.num_cuts; }, "Notes that one was found to be over outside of the core.");
  m.def(
      "light_fuse", [](std::optional<double> seconds) { thread_work.fuse = seconds ? Fuse(*seconds) : Fuse(); },
      nb::arg("seconds").none(), "After so many seconds every allowance of this thread is over; None: never.");
  m.def("is_fuse_blown", [] { return thread_work.fuse.IsBlown(); }, "Whether these seconds have passed.");
  m.def("fuse_seconds_left", [] { return thread_work.fuse.SecondsLeft(); }, "inf where no fuse is lit.");
}

}  // namespace coopjax::python
