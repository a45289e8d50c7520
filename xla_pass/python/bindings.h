// What the Python extension's parts share: arrays in and out, and who binds what.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

namespace coopjax::python {

namespace nb = nanobind;

void BindWork(nb::module_& m);       // steps counted, and the fuse
void BindPlanners(nb::module_& m);   // StepProgram and what plans it
void BindCoop(nb::module_& m);       // Coop, DTR and DTE
void BindOrders(nb::module_& m);     // orders without repeats
void BindSegments(nb::module_& m);   // the planner of large programs
void BindSaving(nb::module_& m);     // what a checkpointed region saves
void BindAnneal(nb::module_& m);     // FastSA
void BindPacking(nb::module_& m);    // offsets
void BindHlo(nb::module_& m);        // HLO modules: read, rewrite, verify, predict
void BindInspect(nb::module_& m);    // HLO modules: what people want to see of them
void BindRecomputeOrder(nb::module_& m);   // HLO modules: the pass as a whole

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename To, typename From>
std::vector<To> ToVector(const Array<From>& array) {
  return std::vector<To>(array.data(), array.data() + array.size());
}

// A numpy array that owns a copy of `values`.
template <typename T>
nb::object ToNumpy(const std::vector<T>& values) {
  T* data = new T[values.size() + 1];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {values.size()}, owner));
}

}  // namespace coopjax::python
