// Phis that are none: several values seem to meet, but only one does.
#pragma once

#include <cstdint>
#include <vector>

namespace coopjax {

// For each value, the value that stands for it (itself for most). A phi all of whose inputs, itself
// apart, are one value is that value; so is every phi of a group that a single other value reaches.
// `inputs` is empty where `is_phi` is 0.
std::vector<int32_t> SimplifyPhis(const std::vector<uint8_t>& is_phi, const std::vector<std::vector<int32_t>>& inputs);

}  // namespace coopjax
