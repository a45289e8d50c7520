// Lists of ids, one list per row, in two flat arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace coopjax {

// Row r is items[offsets[r] .. offsets[r+1]).
struct Csr {
  std::vector<int32_t> offsets = {0};
  std::vector<int32_t> items;

  int32_t num_rows() const { return static_cast<int32_t>(offsets.size()) - 1; }
  std::span<const int32_t> operator[](int32_t row) const {
    return {items.data() + offsets[row], static_cast<size_t>(offsets[row + 1] - offsets[row])};
  }
  void AddRow(std::span<const int32_t> row) {
    items.insert(items.end(), row.begin(), row.end());
    offsets.push_back(static_cast<int32_t>(items.size()));
  }
};

}  // namespace coopjax
