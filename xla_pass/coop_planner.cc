#include "coop_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "arena.h"
#include "dependences.h"
#include "next_need.h"

namespace coopjax {
namespace {

constexpr int64_t kNowhere = -1;                    // zero bytes, or not a temporary
constexpr Arena::Owner kWorkspace = -2;
constexpr double kUnevictable = std::numeric_limits<double>::infinity();

// The median over bytes of op seconds per output byte.
double MedianDensity(const StepProgram& program) {
  std::vector<std::pair<double, int64_t>> densities;
  int64_t total = 0;
  for (ValueId v = 0; v < program.num_values(); ++v) {
    const int64_t bytes = program.value_bytes[v];
    if (!program.takes_budget(v) || bytes == 0) continue;
    densities.push_back({program.op_cost_s[program.value_producer[v]] / static_cast<double>(bytes), bytes});
    total += bytes;
  }
  std::sort(densities.begin(), densities.end());
  int64_t sum = 0;
  for (const auto& [density, bytes] : densities) {
    if (2 * (sum += bytes) >= total) return density;
  }
  return 0;
}

class Simulation {
 public:
  Simulation(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes, const CoopOptions& options)
      : program_(program),
        order_(order),
        options_(options),
        shares_(program),
        readers_(ValueReaders(program)),
        arena_(budget_bytes, options.alignment_bytes),
        cost_(program, options.cost),
        cheap_below_(options.cheap_below_s_per_byte > 0 ? options.cheap_below_s_per_byte : MedianDensity(program)),
        offset_(program.num_values(), kNowhere),
        reads_left_(program.num_values()),
        num_pins_(program.num_values(), 0),
        last_access_s_(program.num_values(), 0),
        next_need_(program, order, options.knows_future),
        most_s_((1 + options.max_overhead) * next_need_.total_s()),
        is_bound_(program.num_values(), 0),
        is_made_(program.num_values(), 0),
        held_(order.size()) {
    for (ValueId v = 0; v < program.num_values(); ++v) {
      reads_left_[v] = static_cast<int32_t>(readers_[v].size());
      const ValueId overwritten = program.value_in_place_of[v];
      if (overwritten != kNoValue && !options.recomputes_in_place) is_bound_[v] = is_bound_[overwritten] = 1;
    }
  }

  CoopResult Run() {
    result_.is_feasible = true;
    for (step_ = 0; step_ < static_cast<Step>(order_.size()) && result_.is_feasible; ++step_) {
      const OpId op = order_[step_];
      result_.is_feasible = SaveWhatIsOverwritten(op) && Execute(op, /*is_repeat=*/false);
      if (!result_.is_feasible) break;
      for (ValueId v : program_.op_inputs[op]) --reads_left_[v];
      for (ValueId v : program_.op_inputs[op]) ReleaseIfDead(v);
      for (ValueId w : program_.op_outputs[op]) ReleaseIfDead(w);
      for (ValueId v : std::exchange(held_[step_], {})) ReleaseIfDead(v);
    }
    if (result_.is_feasible) {
      result_.counters.fragmentation = num_holes_ > 0 ? sum_free_share_ / static_cast<double>(num_holes_) : 0;
    } else {
      result_.failed_step = step_;
      result_.schedule.assign(order_.begin(), order_.end());
      result_.placements.clear();
    }
    return std::move(result_);
  }

 private:
  struct Frame {
    OpId op;
    size_t next_input = 0;   // inputs before it are resident and pinned
  };

  // ---- running ops ----------------------------------------------------------------------------

  // Runs `target`, first what must come back for it. Depth first, without recursion: chains are long.
  bool Execute(OpId target, bool is_repeat) {
    std::vector<Frame> stack = {{target}};
    while (!stack.empty()) {
      Frame& frame = stack.back();
      const OpId op = frame.op;
      const auto inputs = program_.op_inputs[op];
      if (frame.next_input < inputs.size()) {
        const ValueId v = inputs[frame.next_input];
        if (cost_.is_resident(v)) {
          ++num_pins_[v];
          ++frame.next_input;
        } else if (cost_.IsPossible(v)) {
          stack.push_back({program_.value_producer[v]});
        } else {
          return false;
        }
        continue;
      }
      stack.pop_back();
      if (!RunOp(op, is_repeat || !stack.empty())) return false;
      if (stack.empty()) continue;
      const ValueId wanted = program_.op_inputs[stack.back().op][stack.back().next_input];
      for (ValueId w : program_.op_outputs[op]) {
        if (w != wanted) ReleaseIfDead(w);
      }
    }
    return true;
  }

  // Everything `op` reads is resident and pinned.
  bool RunOp(OpId op, bool is_repeat) {
    for (ValueId w : program_.op_outputs[op]) {
      if (!PlaceOutput(op, w, is_repeat)) return false;
      ++num_pins_[w];   // or the next output might evict it
    }
    int64_t workspace = kNowhere;
    if (program_.op_workspace_bytes[op] > 0) {
      if (!Allocate(program_.op_workspace_bytes[op], Side::kLow, kWorkspace, &workspace)) return false;
      arena_.Free(workspace);
    }
    for (ValueId v : program_.op_inputs[op]) last_access_s_[v] = now_s_;
    for (ValueId w : program_.op_outputs[op]) {
      last_access_s_[w] = now_s_;
      --num_pins_[w];
    }
    now_s_ += program_.op_cost_s[op];
    if (now_s_ > most_s_) return false;
    result_.schedule.push_back(op);
    for (ValueId v : program_.op_inputs[op]) {
      --num_pins_[v];
      if (is_repeat) ReleaseIfDead(v);
    }
    return true;
  }

  // Gives `w` its bytes: those of what it overwrites, those of an input that dies here, or a new piece.
  bool PlaceOutput(OpId op, ValueId w, bool is_repeat) {
    is_made_[w] = 1;
    const ValueId overwritten = program_.value_in_place_of[w];
    if (overwritten != kNoValue) {
      if (cost_.is_resident(w)) Release(w);   // made again for a sibling's sake
      TakeOver(overwritten, w);
    } else if (!cost_.is_resident(w)) {
      const ValueId giver = SharedInput(op, w, is_repeat);
      if (giver != kNoValue) TakeOver(giver, w);
    }
    const bool needs_piece = program_.takes_budget(w) && program_.value_bytes[w] > 0;
    if (needs_piece && offset_[w] == kNowhere && !Allocate(program_.value_bytes[w], SideOf(w), w, &offset_[w])) {
      return false;
    }
    cost_.SetResident(w);
    if (program_.takes_budget(w)) {
      result_.placements.push_back({w, static_cast<Step>(result_.schedule.size()), std::max<int64_t>(0, offset_[w])});
    }
    return true;
  }

  // `giver` is gone; its piece passes to `w` where that has use for it.
  void TakeOver(ValueId giver, ValueId w) {
    const int64_t offset = offset_[giver];
    offset_[giver] = kNowhere;
    if (IsLostWhenOverwritten(giver) && program_.value_in_place_of[w] == giver) {
      cost_.SetLost(giver);
    } else {
      cost_.SetEvicted(giver);
    }
    if (offset == kNowhere) return;
    const int64_t bytes = program_.value_bytes[w];
    if (program_.takes_budget(w) && bytes > 0 && arena_.Aligned(bytes) <= arena_.pieces().at(offset).bytes) {
      arena_.HandOver(offset, bytes, w);
      offset_[w] = offset;
    } else {
      arena_.Free(offset);
    }
  }

  bool IsLostWhenOverwritten(ValueId v) const { return !program_.takes_budget(v) || !options_.recomputes_in_place; }

  // An input that nobody needs after `op` and whose piece is large enough for `w`.
  ValueId SharedInput(OpId op, ValueId w, bool is_repeat) const {
    for (const MayShare& share : shares_[op]) {
      const ValueId v = share.input;
      const int32_t reads_after = reads_left_[v] - (is_repeat ? 0 : 1);
      if (share.output == w && cost_.is_resident(v) && reads_after == 0 && num_pins_[v] == 1 &&
          program_.takes_budget(w) && program_.value_bytes[w] <= program_.value_bytes[v]) {
        return v;
      }
    }
    return kNoValue;
  }

  Side SideOf(ValueId w) const {
    if (!options_.partitions_by_density) return Side::kLow;
    const double density = program_.op_cost_s[program_.value_producer[w]] / static_cast<double>(program_.value_bytes[w]);
    return density < cheap_below_ ? Side::kHigh : Side::kLow;
  }

  void Release(ValueId v) {
    if (!program_.takes_budget(v)) return;
    if (offset_[v] != kNowhere) arena_.Free(offset_[v]);
    offset_[v] = kNowhere;
    cost_.SetEvicted(v);
  }

  void ReleaseIfDead(ValueId v) {
    if (reads_left_[v] > 0 || num_pins_[v] > 0 || !cost_.is_resident(v)) return;
    if (NeedSeconds(v) == NextNeed::kNever && MayForget(v)) {
      Release(v);
    } else if (step_ + 1 < static_cast<Step>(order_.size())) {
      held_[step_ + 1].push_back(v);
    }
  }

  // Whether nothing that the order still reads would be lost with `v`, which it reads no more itself.
  bool MayForget(ValueId v) {
    if (!program_.takes_budget(v) || cost_.IsPossible(v)) return true;
    return NeededFrom(v).empty();
  }

  // Before `op` overwrites a value that can't be made anew: whoever was made from it and is evicted, but
  // still needed, comes back now.
  bool SaveWhatIsOverwritten(OpId op) {
    for (ValueId w : program_.op_outputs[op]) {
      const ValueId overwritten = program_.value_in_place_of[w];
      if (overwritten == kNoValue || (cost_.MayRemake(overwritten) && !IsLostWhenOverwritten(overwritten))) continue;
      for (ValueId v : NeededFrom(overwritten)) {
        if (!cost_.is_resident(v) && !Execute(program_.value_producer[v], /*is_repeat=*/true)) return false;
      }
    }
    return true;
  }

  // Evicted values with reads to come whose chains of evicted ancestors read `leaf`.
  std::vector<ValueId> NeededFrom(ValueId leaf) const {
    std::vector<ValueId> found = {leaf}, needed;
    std::vector<uint8_t> is_found(program_.num_values(), 0);
    for (size_t i = 0; i < found.size(); ++i) {
      for (OpId reader : readers_[found[i]]) {
        for (ValueId u : program_.op_outputs[reader]) {
          if (is_found[u] || cost_.is_resident(u) || !is_made_[u]) continue;
          is_found[u] = 1;
          found.push_back(u);
          if (reads_left_[u] > 0) needed.push_back(u);
        }
      }
    }
    return needed;
  }

  // ---- eviction -------------------------------------------------------------------------------

  bool Allocate(int64_t bytes, Side side, Arena::Owner owner, int64_t* offset) {
    if (!arena_.Fits(bytes)) {
      if (!(options_.eviction == EvictionRule::kWindow ? EvictWindow(bytes) : EvictOneByOne(bytes))) {
        result_.failed_bytes = bytes;
        return false;
      }
      sum_free_share_ += static_cast<double>(arena_.free_bytes()) / static_cast<double>(arena_.bytes());
      ++num_holes_;
    }
    *offset = *arena_.Allocate(bytes, side, owner);
    return true;
  }

  bool EvictWindow(int64_t bytes) {
    ++result_.counters.searches;
    std::vector<WindowPiece> pieces;
    std::vector<Arena::Owner> owners;
    for (const auto& [offset, piece] : arena_.pieces()) {
      pieces.push_back({piece.bytes, EvictionCost(piece.owner)});
      owners.push_back(piece.owner);
    }
    const auto window = CheapestWindow(pieces, arena_.Aligned(bytes));
    if (!window) return false;
    for (size_t i = window->begin; i < window->end; ++i) Evict(owners[i]);
    return true;
  }

  bool EvictOneByOne(int64_t bytes) {
    while (!arena_.Fits(bytes)) {
      ++result_.counters.searches;
      double best = kUnevictable;
      Arena::Owner victim = Arena::kFree;
      for (auto it = arena_.pieces().begin(); it != arena_.pieces().end(); ++it) {
        if (it->second.owner == Arena::kFree) continue;
        double size = static_cast<double>(it->second.bytes);
        if (options_.eviction == EvictionRule::kDte) size += HolesBeside(it);
        const double cost = EvictionCost(it->second.owner) / size;
        if (cost < best) {
          best = cost;
          victim = it->second.owner;
        }
      }
      if (victim == Arena::kFree) return false;
      Evict(victim);
    }
    return true;
  }

  double HolesBeside(std::map<int64_t, Arena::Piece>::const_iterator it) const {
    double bytes = 0;
    if (it != arena_.pieces().begin() && std::prev(it)->second.owner == Arena::kFree) {
      bytes += static_cast<double>(std::prev(it)->second.bytes);
    }
    const auto next = std::next(it);
    if (next != arena_.pieces().end() && next->second.owner == Arena::kFree) {
      bytes += static_cast<double>(next->second.bytes);
    }
    return bytes;
  }

  void Evict(Arena::Owner owner) {
    if (owner == Arena::kFree) return;
    ++result_.counters.evictions;
    Release(owner);
  }

  // Recompute seconds over staleness; over the distance to the next read when the future is known.
  double EvictionCost(Arena::Owner owner) {
    if (owner == Arena::kFree) return 0;
    if (owner == kWorkspace || num_pins_[owner] > 0 || is_bound_[owner]) return kUnevictable;
    ++result_.counters.candidates;
    if (reads_left_[owner] == 0 && NeedSeconds(owner) == NextNeed::kNever) {
      return MayForget(owner) ? 0 : kUnevictable;
    }
    const double distance_s = options_.knows_future ? NeedSeconds(owner) : now_s_ - last_access_s_[owner];
    const double cost = cost_.Seconds(owner) / distance_s;
    return std::isfinite(cost) && cost >= 0 ? cost : kUnevictable;
  }

  // Seconds to the next need of `v`; of a value that is no longer read, as a source of recomputes.
  double NeedSeconds(ValueId v) const {
    return options_.knows_future || reads_left_[v] > 0 ? next_need_.SecondsFrom(step_, v) : NextNeed::kNever;
  }

  const StepProgram& program_;
  const std::span<const OpId> order_;
  const CoopOptions options_;
  const ShareIndex shares_;
  const Csr readers_;
  Arena arena_;
  RecomputeCost cost_;
  const double cheap_below_;
  std::vector<int64_t> offset_;
  std::vector<int32_t> reads_left_;            // by ops of the order that have not run
  std::vector<int32_t> num_pins_;
  std::vector<double> last_access_s_;
  const NextNeed next_need_;
  const double most_s_;                        // what all ops may cost together
  std::vector<uint8_t> is_bound_;              // never evicted
  std::vector<uint8_t> is_made_;
  std::vector<std::vector<ValueId>> held_;     // per step: dead values to let go after it, if possible
  double now_s_ = 0;                           // advances by the cost of every op run
  Step step_ = 0;
  double sum_free_share_ = 0;
  int64_t num_holes_ = 0;
  CoopResult result_;
};

}  // namespace

CoopResult PlanCoop(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const CoopOptions& options) {
  return Simulation(program, order, budget_bytes, options).Run();
}

}  // namespace coopjax
