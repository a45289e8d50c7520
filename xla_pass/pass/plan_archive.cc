#include "pass/plan_archive.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace coopjax {
namespace {

constexpr int32_t kMaxLoose = 4;   // repacking one takes up to a quarter of the time that is left

bool IsNoBetter(const CarriedOut& a, const CarriedOut& b) {
  return a.heap.temp_bytes >= b.heap.temp_bytes && a.cost_s >= b.cost_s;
}

}  // namespace

void PlanArchive::Keep(const CarriedOut& plan) {
  if (plan.heap.temp_bytes >= options_.came_bytes) return;
  if (std::ranges::any_of(plans_, [&](const CarriedOut& other) { return IsNoBetter(plan, other); })) return;
  std::erase_if(plans_, [&](const CarriedOut& other) { return IsNoBetter(other, plan); });
  plans_.push_back(plan);
}

void PlanArchive::KeepLoose(const CarriedOut& plan) {
  const auto rank = [this](const CarriedOut& each) { return each.LeastRank(options_.budget_bytes); };
  const auto place = std::ranges::upper_bound(loose_, rank(plan), {}, rank);
  if (place - loose_.begin() == kMaxLoose) return;
  loose_.insert(place, plan);
  if (std::ssize(loose_) > kMaxLoose) loose_.pop_back();
}

const CarriedOut* PlanArchive::Chosen() const {
  if (plans_.empty()) return nullptr;
  const auto bytes = [](const CarriedOut& each) { return each.heap.temp_bytes; };
  const int64_t smallest_bytes = bytes(*std::ranges::min_element(plans_, {}, bytes));
  const int64_t most_bytes =
      smallest_bytes <= options_.budget_bytes ? options_.budget_bytes : Times(options_.near_smallest, smallest_bytes);
  const auto cost_s = [&](const CarriedOut& each) {
    return bytes(each) <= most_bytes ? each.cost_s : std::numeric_limits<double>::infinity();
  };
  return &*std::ranges::min_element(plans_, {}, cost_s);
}

bool PlanArchive::MayGain(const CarriedOut& loose) const {
  if (plans_.empty()) return true;
  const int64_t budget_bytes = options_.budget_bytes, least_bytes = loose.heap.least_temp_bytes;
  const PlanRank least = loose.LeastRank(budget_bytes);
  const auto is_as_good = [&](const CarriedOut& each) { return each.Rank(budget_bytes) <= least; };
  if (std::ranges::any_of(plans_, is_as_good)) return false;
  const CarriedOut& chosen = *Chosen();
  const bool would_fit = least_bytes <= budget_bytes && chosen.heap.temp_bytes > budget_bytes;
  if (would_fit || chosen.cost_s > loose.cost_s) return true;
  // A cheaper one stays the choice while it is near the smallest; of the same cost, what is as good as packed will do.
  const double near = chosen.cost_s < loose.cost_s ? std::max(options_.near_smallest, kNearlyPacked) : kNearlyPacked;
  return chosen.heap.temp_bytes > Times(near, least_bytes);
}

}  // namespace coopjax
