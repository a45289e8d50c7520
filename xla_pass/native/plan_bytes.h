// The pass of pass/recompute_order.h on serialized modules, behind types that C++17 has: the core is C++20, XLA is not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace coopjax {

struct PlanBytesOptions {
  std::optional<int64_t> budget_bytes = std::nullopt;  // of temporary memory; none: as little as an order takes
  bool may_reorder = true;
  bool may_recompute = true;  // without a budget nothing is recomputed
  int64_t max_steps = 1'000'000'000;  // base/allowance.h
};

struct PlanBytesResult {
  std::string bytes;  // of the new module; empty where the old one stays
  std::string reason;  // why it stays; empty otherwise
  std::string error;  // why the module can't be read; empty otherwise
  int64_t temp_bytes = 0;  // predicted, of the module that is left
};

PlanBytesResult PlanBytes(const std::string& module_bytes, const PlanBytesOptions& options);

}  // namespace coopjax
