#include "planners/moves/drop_moves.h"

#include <algorithm>

#include "base/allowance.h"

namespace coopjax {
namespace {

// A chain longer than this is not worth its planning time.
constexpr size_t kMaxChain = StepKeys::kMostInARow;

}  // namespace

DropMoves::DropMoves(EditableSchedule* schedule, const ExcessCurve* curve)
    : schedule_(*schedule),
      program_(schedule->program()),
      curve_(*curve),
      guards_order_(program_.num_ops(), 0),
      in_chain_(program_.num_ops(), 0),
      is_held_(program_.num_values(), 0),
      is_hopeless_(program_.num_ops(), 0) {
  for (OpId before : program_.op_control.items) guards_order_[before] = 1;
}

// Puts `op` and what must come back for it into the chain.
bool DropMoves::NeedOp(OpId op, Key key) {
  if (in_chain_[op]) return true;
  if (is_hopeless_[op] || !schedule_.may_run_twice(op) || chain_.size() >= kMaxChain) return false;
  if (chain_s_ > most_s_) return false;
  chain_s_ += program_.op_cost_s[op];
  in_chain_[op] = 1;
  CountSteps(4 + 4 * std::ssize(program_.op_inputs[op]));
  marked_.push_back(op);
  for (ValueId v : program_.op_inputs[op]) {
    if (NeedValue(v, key)) continue;
    is_hopeless_[op] = 1;
    hopeless_.push_back(op);
    return false;
  }
  chain_.push_back(op);
  return true;
}

bool DropMoves::NeedValue(ValueId v, Key key) {
  const OpId producer = program_.value_producer[v];
  if (producer != kNoOp && in_chain_[producer]) return true;
  const int32_t made = schedule_.ReadableAt(v, key);
  if (made >= 0) {
    if (!program_.takes_budget(v) || schedule_.made(v)[made].last_read >= key) return true;
    has_dead_operand_ = true;
    if (dead_ == DeadOperands::kHold) return Hold(v, HoldPrice(v, made, key));
    if (dead_ == DeadOperands::kAtRate || !holds_at_rate_) {
      const double price = HoldPrice(v, made, key);
      const bool is_cheaper = price <= going_rate_ * program_.op_cost_s[producer];
      holds_at_rate_ |= is_cheaper;
      remakes_at_rate_ |= !is_cheaper;
      if (dead_ == DeadOperands::kAtRate && is_cheaper) return Hold(v, price);
    }
  }
  if (producer == kNoOp) return false;
  const size_t chain_size = chain_.size(), marked_size = marked_.size();
  const double chain_s = chain_s_;
  if (NeedOp(producer, key)) return true;
  if (chain_s_ > most_s_) return false;
  chain_s_ = chain_s;
  chain_.resize(chain_size);
  while (marked_.size() > marked_size) {
    in_chain_[marked_.back()] = 0;
    marked_.pop_back();
  }
  return made >= 0 && Hold(v, HoldPrice(v, made, key));
}

// The slope of holding v on from a production until `key`: no more than what that adds to the potential.
double DropMoves::HoldPrice(ValueId v, int32_t made, Key key) const {
  return curve_.PricePerByte(schedule_.made(v)[made].end, key) * static_cast<double>(program_.value_bytes[v]);
}

bool DropMoves::Hold(ValueId v, double price) {
  if (is_held_[v]) return true;
  is_held_[v] = 1;
  held_.push_back(v);
  held_price_ += price;
  return true;
}

DropMoves::Chain DropMoves::Follow(const Gap& gap, DeadOperands dead, bool merges_repeats) {
  dead_ = dead;
  has_dead_operand_ = holds_at_rate_ = remakes_at_rate_ = false;
  chain_.clear();
  chain_s_ = held_price_ = 0;
  const bool is_chain = NeedOp(program_.value_producer[gap.value], gap.next);
  for (OpId op : marked_) in_chain_[op] = 0;
  marked_.clear();
  for (OpId op : hopeless_) is_hopeless_[op] = 0;
  hopeless_.clear();
  for (ValueId v : held_) is_held_[v] = 0;
  held_.clear();
  Chain chain;
  chain.met_dead_operand = has_dead_operand_;
  chain.holds_at_rate = holds_at_rate_;
  chain.remakes_at_rate = remakes_at_rate_;
  chain.is_too_dear = chain_s_ > most_s_;
  chain.is_possible = is_chain && !chain.is_too_dear;
  chain.cost_s = chain_s_;
  chain.held_price = held_price_;
  chain.may_delay = gap.last == gap.made;
  if (chain.is_possible && merges_repeats) ForeseeMerges(gap, &chain);
  return chain;
}

// The later repeats of ops in the chain that MergeLater would take out.
void DropMoves::ForeseeMerges(const Gap& gap, Chain* chain) const {
  for (OpId op : chain_) {
    const auto outputs = program_.op_outputs[op];
    const int32_t first = schedule_.MadeBefore(outputs[0], gap.next);
    const int32_t num_made = static_cast<int32_t>(schedule_.made(outputs[0]).size());
    for (int32_t later = first + 1; later < num_made; ++later) {
      double price = 0;
      for (ValueId w : outputs) {
        const auto& made = schedule_.made(w);
        const Key key = made[later].key;
        if (made[later].last_read == key) continue;
        const Key end = later > 0 ? std::max(made[later - 1].end, gap.next) : gap.next;
        price += curve_.PricePerByte(end, key) * static_cast<double>(program_.value_bytes[w]);
      }
      if (price > going_rate_ * program_.op_cost_s[op]) break;
      chain->may_merge = true;
      chain->merged_s += program_.op_cost_s[op];
      chain->merged_price += price;
    }
  }
}

DropMoves::Outcome DropMoves::Drop(const Gap& gap, DeadOperands dead, bool merges_repeats) {
  return Drop(gap, Follow(gap, dead, /*merges_repeats=*/false), merges_repeats);
}

DropMoves::Outcome DropMoves::Drop(const Gap& gap, const Chain& chain, bool merges_repeats) {
  Outcome outcome;
  outcome.met_dead_operand = chain.met_dead_operand;
  outcome.is_too_dear = chain.is_too_dear;
  if (!chain.is_possible) return outcome;
  const OpId producer = program_.value_producer[gap.value];
  const FreeKeys keys = schedule_.KeysBefore(gap.next, chain_.size());
  for (size_t i = 0; i < chain_.size(); ++i) {
    if (!schedule_.CanInsert(chain_[i], keys[i])) return outcome;
    schedule_.Insert(chain_[i], keys[i]);
    outcome.cost_s += program_.op_cost_s[chain_[i]];
  }
  const size_t edits_before = schedule_.edits().size();
  if (merges_repeats) {
    for (size_t i = 0; i < chain_.size(); ++i) outcome.cost_s -= MergeLater(chain_[i], keys[i]);
  }
  outcome.has_merged = schedule_.edits().size() > edits_before;
  outcome.cost_s -= RemoveIfDead(producer, gap.made);
  outcome.is_possible = true;
  return outcome;
}

// Takes out an occurrence that nobody reads any more: a repeat, or a first occurrence that a later one
// replaces. Returns the seconds saved.
double DropMoves::RemoveIfDead(OpId op, Key key) {
  const auto outputs = program_.op_outputs[op];
  for (ValueId w : outputs) {
    const int32_t i = schedule_.MadeAt(w, key);
    if (i < 0 || schedule_.made(w)[i].last_read != key) return 0;
    if (schedule_.made(w).size() < 2 || (i == 0 && guards_order_[op])) return 0;
  }
  if (outputs.empty()) return 0;
  schedule_.Remove(op, key);
  return program_.op_cost_s[op] + RemoveDeadInputs(op, key);
}

// After `op` has gone from `key`: what was made for it alone goes too.
double DropMoves::RemoveDeadInputs(OpId op, Key key) {
  double saved_s = 0;
  for (ValueId v : program_.op_inputs[op]) {
    const OpId producer = program_.value_producer[v];
    if (producer == kNoOp) continue;
    const int32_t i = schedule_.MadeBefore(v, key);
    if (i < 0) continue;
    const auto made = schedule_.made(v)[i];
    if (made.last_read == made.key) saved_s += RemoveIfDead(producer, made.key);
  }
  return saved_s;
}

// Later repeats of an op that has just been put at `key` go where holding its outputs is cheaper.
double DropMoves::MergeLater(OpId op, Key key) {
  double saved_s = 0;
  while (true) {
    Key later = 0;
    double price = 0;
    for (ValueId w : program_.op_outputs[op]) {
      const auto& made = schedule_.made(w);
      const int32_t i = schedule_.MadeAt(w, key);
      if (i < 0 || i + 1 >= static_cast<int32_t>(made.size())) return saved_s;
      later = made[i + 1].key;
      if (made[i + 1].last_read > later) {
        price += curve_.PricePerByte(made[i].end, later) * static_cast<double>(program_.value_bytes[w]);
      }
    }
    if (price > going_rate_ * program_.op_cost_s[op]) return saved_s;
    double more_s = 0;
    if (!TakeOut(op, later, &more_s)) return saved_s;
    saved_s += more_s;
  }
}

bool DropMoves::TakeOut(OpId op, Key key, double* saved_s) {
  if (!schedule_.CanRemove(op, key)) return false;
  schedule_.Remove(op, key);
  *saved_s = program_.op_cost_s[op] + RemoveDeadInputs(op, key);
  return true;
}

}  // namespace coopjax
