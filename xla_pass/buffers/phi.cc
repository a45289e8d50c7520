#include "buffers/phi.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace coopjax {
namespace {

class Simplifier {
 public:
  Simplifier(const std::vector<uint8_t>& is_phi, const std::vector<std::vector<int32_t>>& inputs)
      : is_phi_(is_phi), inputs_(inputs), replacement_(is_phi.size()) {
    std::iota(replacement_.begin(), replacement_.end(), 0);
  }

  std::vector<int32_t> Run() {
    for (bool is_changed = true; is_changed;) {
      is_changed = false;
      for (int32_t value = 0; value < std::ssize(replacement_); ++value) {
        if (is_phi_[value] && replacement_[value] == value && !inputs_[value].empty()) is_changed |= Simplify(value);
      }
    }
    for (int32_t value = 0; value < std::ssize(replacement_); ++value) replacement_[value] = Resolved(value);
    return std::move(replacement_);
  }

 private:
  int32_t Resolved(int32_t value) const {
    while (replacement_[value] != value) value = replacement_[value];
    return value;
  }

  // Walks from the phi through other phis until two distinct values that are none are met.
  bool Simplify(int32_t phi) {
    std::vector<int32_t> phis = {phi}, others;
    for (size_t next = 0; next < phis.size(); ++next) {
      for (int32_t input : inputs_[phis[next]]) {
        input = Resolved(input);
        std::vector<int32_t>& list = is_phi_[input] ? phis : others;
        if (std::ranges::find(list, input) == list.end()) list.push_back(input);
      }
      // phi(A, A, itself) is A, even where A is a phi that stays.
      if (next == 0 && phis.size() - 1 + others.size() == 1) {
        replacement_[phi] = others.empty() ? phis[1] : others[0];
        return true;
      }
      if (others.size() > 1) return false;
    }
    if (others.size() != 1) return false;
    for (const int32_t member : phis) replacement_[member] = others[0];
    return true;
  }

  const std::vector<uint8_t>& is_phi_;
  const std::vector<std::vector<int32_t>>& inputs_;
  std::vector<int32_t> replacement_;
};

}  // namespace

std::vector<int32_t> SimplifyPhis(const std::vector<uint8_t>& is_phi, const std::vector<std::vector<int32_t>>& inputs) {
  return Simplifier(is_phi, inputs).Run();
}

}  // namespace coopjax
