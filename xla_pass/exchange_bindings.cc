// Bindings of the exchange search.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "exchange_search.h"

namespace coopjax::python {

void BindExchange(nb::module_& m) {
  m.def("search_exchanges", [](const StepProgram& program, Array<int32_t> start, int64_t budget_bytes,
                               int64_t max_work, int32_t patience, double stop_at_cost_s, uint64_t seed,
                               double time_limit_s) {
    const coopjax::ExchangeOptions options = {max_work, patience, stop_at_cost_s, seed, time_limit_s};
    const std::vector<int32_t> steps = ToVector<int32_t>(start);
    coopjax::ExchangeResult result;
    {
      nb::gil_scoped_release release;
      result = coopjax::SearchExchanges(program, steps, budget_bytes, options);
    }
    nb::dict answer;
    answer["schedule"] = ToNumpy(result.schedule);
    answer["rounds"] = result.rounds;
    answer["improvements"] = result.improvements;
    answer["timed_out"] = result.timed_out;
    return answer;
  }, nb::arg("program"), nb::arg("start"), nb::arg("budget_bytes"), nb::kw_only(), nb::arg("max_work") = 3000000,
     nb::arg("patience") = 8, nb::arg("stop_at_cost_s") = 0.0, nb::arg("seed") = 1, nb::arg("time_limit_s") = 10.0,
     "A plan that is not worse than `start`, by exchanging many moves at once; see exchange_search.h.");
}

}  // namespace coopjax::python
