#include "planners/segments/hill_search.h"

#include <algorithm>
#include <cmath>

#include "base/allowance.h"
#include "program/dependences.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

constexpr int32_t kNumRungs = 64;
constexpr int32_t kNumProbes = 8;
constexpr double kLowestPrice = 0.25;    // times the cheapest percentile of seconds per byte
constexpr double kHighestPrice = 1024;   // times the dearest: to remake a byte may take a whole segment

// Spreads any share of 0, 1, 2, ... evenly.
double Spread(int32_t i) {
  const double x = 0.6180339887498949 * i;
  return x - std::floor(x);
}

}  // namespace

std::vector<Hill> FindHills(std::span<const int64_t> live_bytes, int64_t budget_bytes) {
  const Step num_steps = static_cast<Step>(live_bytes.size());
  const int64_t highest = num_steps == 0 ? 0 : *std::max_element(live_bytes.begin(), live_bytes.end());
  std::vector<Hill> hills;
  if (highest <= budget_bytes) return hills;
  const int64_t least = budget_bytes + (highest - budget_bytes + 1) / 2;
  Step lowest = 0;            // since the last hill
  bool is_new = true;
  for (Step t = 0; t < num_steps; ++t) {
    if (live_bytes[t] <= budget_bytes) is_new = true;
    if (live_bytes[t] < live_bytes[lowest]) lowest = t;
    if (live_bytes[t] < least) continue;
    if (is_new) {
      if (!hills.empty()) hills.back().end = lowest;
      hills.push_back({hills.empty() ? 0 : lowest, t, num_steps});
    } else if (live_bytes[t] > live_bytes[hills.back().peak]) {
      hills.back().peak = t;
    }
    is_new = false;
    lowest = t;
  }
  return hills;
}

SegmentContext::SegmentContext(const StepProgram& step_program)
    : program(step_program), touches(OpTouches(step_program)), may_repeat(step_program.num_ops()) {
  for (OpId op = 0; op < program.num_ops(); ++op) {
    may_repeat[op] = MayRunTwice(program, op);
    for (ValueId w : program.op_outputs[op]) may_repeat[op] &= program.value_in_place_of[w] == kNoValue;
  }
}

HillSearch::HillSearch(const SegmentContext& context, std::span<const OpId> schedule, const Options& options,
                       SegmentCuts* cuts)
    : context_(context),
      program_(context.program),
      options_(options),
      cuts_(*cuts),
      flow_(context.program, context.touches, schedule),
      hills_(FindHills(ComputeLiveness(context.program, schedule).live_bytes, options.budget_bytes)),
      index_of_(flow_.num_productions(), -1),
      is_held_(flow_.num_productions(), 0),
      is_chosen_(schedule.size(), 0),
      hill_at_(hills_.size(), 0),
      hill_bytes_(hills_.size(), 0) {
  for (const Hill& hill : hills_) {
    Price price;
    price.first_segment = num_segments();
    Split(hill);
    price.end_segment = num_segments();
    price.ladder = Ladder(hill);
    prices_.push_back(std::move(price));
  }
}

// ---- segments -----------------------------------------------------------------------------------

// Per step t of [begin, peak], the bytes made in [begin, t) that a step of [t, peak) reads.
std::vector<int64_t> HillSearch::CrossingBytes(const Hill& hill) const {
  CountSteps(4 * (hill.peak - hill.begin));
  const int32_t first = flow_.first_made(hill.begin);
  std::vector<Step> last_read(flow_.first_made(hill.peak) - first, -1);
  for (Step t = hill.begin; t < hill.peak; ++t) {
    for (int32_t p : flow_.sources(t)) {
      if (p >= first) last_read[p - first] = t;
    }
  }
  std::vector<int64_t> crossing(hill.peak - hill.begin + 2, 0);
  for (size_t i = 0; i < last_read.size(); ++i) {
    const int32_t p = first + static_cast<int32_t>(i);
    if (last_read[i] < 0 || !program_.takes_budget(flow_.value(p))) continue;
    crossing[flow_.made_at(p) + 1 - hill.begin] += program_.value_bytes[flow_.value(p)];
    crossing[last_read[i] + 1 - hill.begin] -= program_.value_bytes[flow_.value(p)];
  }
  for (size_t i = 1; i < crossing.size(); ++i) crossing[i] += crossing[i - 1];
  return crossing;
}

void HillSearch::Split(const Hill& hill) {
  const std::vector<int64_t> crossing = CrossingBytes(hill);
  const Step least = std::max(1, options_.segment_steps / 2);
  for (Step begin = hill.begin; begin < hill.peak;) {
    Step end = hill.peak;
    if (hill.peak - begin >= 2 * least) {
      end = begin + least;
      for (Step t = end + 1; t <= std::min(begin + 3 * least, hill.peak - least); ++t) {
        if (crossing[t - hill.begin] < crossing[end - hill.begin]) end = t;
      }
    }
    const int32_t first_outside = static_cast<int32_t>(outside_.size());
    const int32_t kind = cuts_.KindOf(ProblemOf(hill, begin, end));
    segments_.push_back({begin, end, kind, first_outside});
    begin = end;
  }
}

uint8_t HillSearch::OutsideFlags(const Hill& hill, int32_t p) const {
  const ValueId v = flow_.value(p);
  uint8_t flags = flow_.overwritten_at(v) < hill.peak ? SegmentProblem::kLost : 0;
  // What a lost value is made from again is another segment's affair.
  const bool is_there_anyway = flow_.made_at(p) < hill.begin && flow_.last_read(p) >= hill.peak;
  if (flags == 0 && (!program_.takes_budget(v) || is_there_anyway)) flags |= SegmentProblem::kFree;
  return flags;
}

// Appends what comes from outside to outside_, in the order of the problem's numbers.
SegmentProblem HillSearch::ProblemOf(const Hill& hill, Step begin, Step end) {
  CountSteps(20 * (end - begin));
  SegmentProblem problem;
  const int32_t first_own = flow_.first_made(begin), end_own = flow_.first_made(end);
  const size_t first_outside = outside_.size();
  for (int32_t p = first_own; p < end_own; ++p) {
    const ValueId v = flow_.value(p);
    const bool is_wanted = flow_.last_read(p) >= hill.peak;
    const bool is_lost = !is_wanted && flow_.overwritten_at(v) < hill.peak;
    problem.producer.push_back(flow_.made_at(p) - begin);
    problem.bytes.push_back(program_.takes_budget(v) ? program_.value_bytes[v] : 0);
    problem.flags.push_back((is_wanted ? SegmentProblem::kWanted : 0) | (is_lost ? SegmentProblem::kLost : 0));
  }
  std::vector<int32_t> row;
  for (Step t = begin; t < end; ++t) {
    row.clear();
    for (int32_t p : flow_.sources(t)) {
      if (p < first_own && index_of_[p] < 0) {
        const ValueId v = flow_.value(p);
        index_of_[p] = problem.num_productions();
        outside_.push_back(p);
        problem.bytes.push_back(program_.takes_budget(v) ? program_.value_bytes[v] : 0);
        problem.flags.push_back(OutsideFlags(hill, p));
      }
      row.push_back(p < first_own ? index_of_[p] : p - first_own);
    }
    problem.inputs.AddRow(row);
    problem.step_cost_s.push_back(program_.op_cost_s[flow_.op(t)]);
    problem.may_repeat.push_back(context_.may_repeat[flow_.op(t)]);
  }
  for (size_t i = first_outside; i < outside_.size(); ++i) index_of_[outside_[i]] = -1;
  return problem;
}

// Prices from 0, where everything is held, to where whole segments are made again for a byte.
std::vector<double> HillSearch::Ladder(const Hill& hill) const {
  std::vector<double> density;
  for (Step t = hill.begin; t < hill.peak; ++t) {
    double bytes = 0;
    for (ValueId w : program_.op_outputs[flow_.op(t)]) {
      bytes += program_.takes_budget(w) ? static_cast<double>(program_.value_bytes[w]) : 0;
    }
    const double cost_s = program_.op_cost_s[flow_.op(t)];
    if (bytes > 0 && cost_s > 0) density.push_back(cost_s / bytes);
  }
  if (density.empty()) return {0, 1};
  auto percentile = [&density](size_t percent) {
    const auto at = density.begin() + (density.size() - 1) * percent / 100;
    std::nth_element(density.begin(), at, density.end());
    return *at;
  };
  const double low = kLowestPrice * percentile(1), high = kHighestPrice * percentile(99);
  std::vector<double> ladder = {0};
  for (int32_t i = 0; i < kNumRungs; ++i) {
    ladder.push_back(low * std::pow(high / low, static_cast<double>(i) / (kNumRungs - 1)));
  }
  return ladder;
}

// ---- a choice, and the schedule it makes --------------------------------------------------------

void HillSearch::ChooseSegment(const Segment& segment, double seconds_per_byte, std::vector<int32_t>* held) {
  const int32_t first_own = flow_.first_made(segment.begin), end_own = flow_.first_made(segment.end);
  const size_t index = static_cast<size_t>(&segment - segments_.data());
  const int32_t end_outside =
      index + 1 < segments_.size() ? segments_[index + 1].first_outside : static_cast<int32_t>(outside_.size());
  is_held_scratch_.assign(is_held_.begin() + first_own, is_held_.begin() + end_own);
  for (int32_t i = segment.first_outside; i < end_outside; ++i) is_held_scratch_.push_back(is_held_[outside_[i]]);
  const SegmentChoice& choice = cuts_.Choose(segment.kind, seconds_per_byte, is_held_scratch_);
  for (int32_t step : choice.repeated) is_chosen_[segment.begin + step] = 1;
  for (int32_t p : choice.held_outside) {
    const int32_t production = outside_[segment.first_outside + p - (end_own - first_own)];
    is_held_[production] = 1;
    held->push_back(production);
  }
}

// From the last segment to the first: what a segment needs from outside is held by those before it.
void HillSearch::Choose(const Hill& hill, const Price& price) {
  std::fill(is_chosen_.begin() + hill.begin, is_chosen_.begin() + hill.peak, 0);
  const double floor = std::floor(price.at);
  const size_t rung = static_cast<size_t>(floor);
  std::vector<int32_t> held;
  for (int32_t i = price.end_segment; i-- > price.first_segment;) {
    const bool is_higher = Spread(i - price.first_segment) < price.at - floor;
    ChooseSegment(segments_[i], price.ladder[rung + (is_higher ? 1 : 0)], &held);
  }
  for (int32_t p : held) is_held_[p] = 0;
}

// Pairs (t, step): a late step t overwrites what the chosen step reads, which must run again before it.
std::vector<std::pair<Step, Step>> HillSearch::LastChances() const {
  std::vector<std::pair<Step, Step>> chances;
  if (!flow_.overwrites()) return chances;
  for (const Hill& hill : hills_) {
    for (Step t = hill.begin; t < hill.peak; ++t) {
      if (!is_chosen_[t]) continue;
      for (int32_t p : flow_.sources(t)) {
        const Step overwritten = flow_.overwritten_at(flow_.value(p));
        if (overwritten != kNeverStep && overwritten >= hill.peak) chances.push_back({overwritten, t});
      }
    }
  }
  std::sort(chances.begin(), chances.end());
  return chances;
}

Schedule HillSearch::Build() {
  const auto chances = LastChances();
  CountSteps(3 * flow_.num_steps());
  std::vector<uint8_t> is_pending = is_chosen_;
  Schedule schedule;
  schedule.reserve(flow_.num_steps() + flow_.num_steps() / 2);
  std::vector<Step> chain;
  Step early_end = 0;                   // chosen steps before it may run again
  auto need = [&](Step step) {
    if (step < 0 || step >= early_end || !is_pending[step]) return;
    is_pending[step] = 0;
    chain.push_back(step);
  };
  size_t hill = 0, chance = 0;
  for (Step t = 0; t < flow_.num_steps(); ++t) {
    if (hill < hills_.size() && hills_[hill].begin == t) hill_at_[hill] = static_cast<Step>(schedule.size());
    if (hill < hills_.size() && hills_[hill].peak == t) early_end = hills_[hill++].peak;
    chain.clear();
    for (int32_t p : flow_.sources(t)) need(flow_.made_at(p));
    for (; chance < chances.size() && chances[chance].first == t; ++chance) need(chances[chance].second);
    for (size_t i = 0; i < chain.size(); ++i) {
      for (int32_t p : flow_.sources(chain[i])) need(flow_.made_at(p));
    }
    std::sort(chain.begin(), chain.end());
    for (Step step : chain) schedule.push_back(flow_.op(step));
    schedule.push_back(flow_.op(t));
  }
  return schedule;
}

// ---- prices -------------------------------------------------------------------------------------

// Builds and measures what all hills choose at their prices.
void HillSearch::Evaluate() {
  for (size_t h = 0; h < hills_.size(); ++h) Choose(hills_[h], prices_[h]);
  const std::vector<int64_t> live_bytes = ComputeLiveness(program_, Build()).live_bytes;
  for (size_t h = 0; h < hills_.size(); ++h) {
    const auto end = h + 1 < hills_.size() ? live_bytes.begin() + hill_at_[h + 1] : live_bytes.end();
    hill_bytes_[h] = *std::max_element(live_bytes.begin() + hill_at_[h], end);
    Price& price = prices_[h];
    if (price.lowest_bytes > 0 && hill_bytes_[h] >= price.lowest_bytes) continue;
    price.lowest_at = price.at;
    price.lowest_bytes = hill_bytes_[h];
  }
  ++num_evaluations_;
}

// Walks up the ladder in long strides, each hill until it fits.
void HillSearch::Probe(const std::function<bool()>& is_over) {
  for (int32_t i = 1; i <= kNumProbes && !is_over(); ++i) {
    bool is_done = true;
    for (Price& price : prices_) {
      if (price.fits < 0) price.at = static_cast<double>((price.ladder.size() - 1) * i / kNumProbes);
      is_done &= price.fits >= 0;
    }
    if (is_done) return;
    Evaluate();
    for (size_t h = 0; h < hills_.size(); ++h) {
      Price& price = prices_[h];
      if (price.fits >= 0) continue;
      (hill_bytes_[h] <= options_.budget_bytes ? price.fits : price.too_high) = price.at;
    }
  }
}

void HillSearch::Bisect(const std::function<bool()>& is_over) {
  for (int32_t round = 0; round < options_.num_rounds && !is_over(); ++round) {
    bool is_done = true;
    for (Price& price : prices_) {
      price.at = price.fits < 0 ? price.lowest_at : price.fits;
      if (price.fits < 0) continue;
      const int32_t num_segments = price.end_segment - price.first_segment;
      if ((price.fits - price.too_high) * num_segments < 0.5) continue;
      price.at = (price.too_high + price.fits) / 2;
      is_done = false;
    }
    if (is_done) return;
    Evaluate();
    for (size_t h = 0; h < hills_.size(); ++h) {
      Price& price = prices_[h];
      if (price.fits < 0 || price.at == price.fits) continue;
      (hill_bytes_[h] <= options_.budget_bytes ? price.fits : price.too_high) = price.at;
    }
  }
}

Schedule HillSearch::Run(const std::function<bool()>& is_over) {
  Probe(is_over);
  Bisect(is_over);
  for (size_t h = 0; h < hills_.size(); ++h) {
    Price& price = prices_[h];
    price.at = price.fits < 0 ? price.lowest_at : price.fits;
    Choose(hills_[h], price);
  }
  return Build();
}

}  // namespace coopjax
