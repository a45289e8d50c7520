#include "planners/coop/cost_density.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace coopjax {
namespace {

// The median over bytes; of (density, bytes).
double Median(std::vector<std::pair<double, int64_t>> densities) {
  std::sort(densities.begin(), densities.end());
  int64_t total = 0, sum = 0;
  for (const auto& entry : densities) total += entry.second;
  for (const auto& [density, bytes] : densities) {
    if (2 * (sum += bytes) >= total) return density;
  }
  return 0;
}

}  // namespace

std::vector<CostClass> ClassesByDensity(const StepProgram& program, double cheap_below_s_per_byte) {
  std::vector<double> density(program.num_ops(), 0);
  std::vector<std::pair<double, int64_t>> weighted;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    int64_t bytes = 0;
    for (ValueId v : program.op_outputs[op]) bytes += program.takes_budget(v) ? program.value_bytes[v] : 0;
    if (bytes == 0) continue;
    density[op] = program.op_cost_s[op] / static_cast<double>(bytes);
    weighted.push_back({density[op], bytes});
  }
  const double limit = cheap_below_s_per_byte > 0 ? cheap_below_s_per_byte : Median(std::move(weighted));
  std::vector<CostClass> classes;
  for (double d : density) classes.push_back(d < limit ? CostClass::kCheap : CostClass::kExpensive);
  return classes;
}

}  // namespace coopjax
