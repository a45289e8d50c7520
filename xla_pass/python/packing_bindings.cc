// Bindings of the packers: arrays in, offsets out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "packing/blocks.h"
#include "packing/of_schedule.h"
#include "packing/packing.h"
#include "packing/search.h"
#include "python/bindings.h"

namespace coopjax::python {
namespace {

nb::dict ToDict(const PackingProblem& problem, const PackingSearchResult& result) {
  nb::dict answer;
  answer["offsets"] = ToNumpy(result.packing.offsets);
  answer["heap_bytes"] = result.packing.heap_bytes;
  answer["peak_live_bytes"] = PeakLiveBytes(problem);
  answer["lower_bound_bytes"] = result.lower_bound;
  answer["status"] = static_cast<int>(result.status);
  answer["effort"] = result.effort;
  return answer;
}

// The greedy packer's heap, with the verdict that needs no search.
PackingSearchResult Judge(const PackingProblem& problem, Packing packing) {
  PackingSearchResult result;
  result.lower_bound = PackingLowerBound(MakePackingBlocks(problem));
  result.status = packing.heap_bytes <= result.lower_bound ? PackingStatus::kOptimal : PackingStatus::kFeasible;
  if (problem.capacity != kNoCapacity && packing.heap_bytes > problem.capacity) {
    const bool can_fit = result.lower_bound <= problem.capacity;
    result.status = can_fit ? PackingStatus::kEffortSpent : PackingStatus::kInfeasible;
  }
  result.packing = std::move(packing);
  return result;
}

void BindProblem(nb::module_& m) {
  nb::class_<PackingProblem>(m, "PackingProblem", "Buffers to be given offsets; see packing.h.")
      .def(
          "__init__",
          [](PackingProblem* self, Array<int32_t> lower, Array<int32_t> upper, Array<int64_t> sizes,
             Array<int64_t> alignments, Array<int64_t> fixed_offsets, Array<int32_t> same_offset_as, int64_t capacity) {
            new (self) PackingProblem();
            self->capacity = capacity;
            for (size_t k = 0; k < sizes.size(); ++k) {
              self->buffers.push_back({lower.data()[k], upper.data()[k], sizes.data()[k], alignments.data()[k],
                                       fixed_offsets.data()[k], same_offset_as.data()[k]});
            }
          })
      .def("check", &CheckPackingProblem, "The first fault in one sentence, or an empty string.")
      .def(
          "lower_bound", [](const PackingProblem& self) { return PackingLowerBound(MakePackingBlocks(self)); },
          "Live bytes with offsets aligned: no heap is smaller.")
      .def(
          "pack_best_fit",
          [](const PackingProblem& self) {
            PackingSearchResult result;
            {
              nb::gil_scoped_release release;
              result = Judge(self, PackBestFit(self));
            }
            return ToDict(self, result);
          },
          "Best fit by size and by duration, the smaller heap.")
      .def(
          "pack_in_order",
          [](const PackingProblem& self, int order, bool is_first_fit) {
            PackingSearchResult result;
            {
              nb::gil_scoped_release release;
              const auto rule = is_first_fit ? FitRule::kFirst : FitRule::kBest;
              result = Judge(self, PackInOrder(self, static_cast<PackingOrder>(order), rule));
            }
            return ToDict(self, result);
          },
          "One greedy packer: an order of packing.h, first or best fit.")
      .def(
          "search",
          [](const PackingProblem& self, int64_t effort, bool peels, bool branches, bool anneals, uint64_t seed) {
            PackingSearchResult result;
            {
              nb::gil_scoped_release release;
              result = SearchPacking(self, {effort, peels, branches, anneals, seed});
            }
            return ToDict(self, result);
          },
          nb::kw_only(), nb::arg("effort"), nb::arg("peels") = true, nb::arg("branches") = true,
          nb::arg("anneals") = true, nb::arg("seed") = 0, "The search of packing/search.h.");
}

}  // namespace

void BindPacking(nb::module_& m) {
  BindProblem(m);
  m.def(
      "schedule_buffers",
      [](const StepProgram& program, Array<int32_t> schedule, bool shares_always) {
        const auto policy = shares_always ? SharePolicy::kAlways : SharePolicy::kWhereNeeded;
        const ScheduleBuffers buffers = BuffersOfSchedule(program, {schedule.data(), schedule.size()}, policy);
        std::vector<int32_t> lower, upper, same_offset_as;
        std::vector<int64_t> sizes;
        for (const PackingBuffer& buffer : buffers.problem.buffers) {
          lower.push_back(buffer.lower);
          upper.push_back(buffer.upper);
          sizes.push_back(buffer.size);
          same_offset_as.push_back(buffer.same_offset_as);
        }
        return nb::make_tuple(ToNumpy(buffers.values), ToNumpy(lower), ToNumpy(upper), ToNumpy(sizes),
                              ToNumpy(same_offset_as));
      },
      "(value or -1 for workspace, lower, upper, bytes, buffer at whose offset it lies or -1) of each buffer of a "
      "valid "
      "schedule, as arrays; see packing/of_schedule.h.");
}

}  // namespace coopjax::python
