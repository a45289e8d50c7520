// A Schedule that can be edited one op at a time, with the live bytes that each edit changes.
//
// Positions are sparse 64-bit keys: step r of a schedule that was just taken over has key StepKey(r), so that
// chains of recomputes fit between any two steps, and chains between those. Every edit appends to `changes()` the
// key ranges whose live bytes it changed, and can be undone; Commit() folds the changes into the curve of live
// bytes. Keys stay what they are, until there is little room left somewhere: then a commit gives the steps around
// there new ones. An edit costs O(log repeats) per value it touches; a commit runs over the steps, but not over all
// that they read. Keep() costs less: the edits stay, but live bytes are those of the last commit.
//
// Op and value rules are those of program/step_program.h, in-place overwrites and may_share included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/short_list.h"
#include "planners/moves/step_keys.h"
#include "program/dependences.h"
#include "program/step_program.h"

namespace coopjax {

class EditableSchedule {
 public:
  struct Read {
    Key key;
    OpId op;
  };
  // One production of a value. `end` is the end of its live range, half-open in keys; `last_read` is
  // `key` itself for a value that nobody reads.
  struct Made {
    Key key;
    Key end;
    Key last_read;
  };
  // Live bytes changed by `bytes` on keys [begin, end).
  struct Change {
    Key begin;
    Key end;
    int64_t bytes;
  };
  struct Edit {
    OpId op;
    Key key;
    bool is_insert;
  };

  // `program` must outlive this; `schedule` is valid.
  EditableSchedule(const StepProgram& program, std::span<const OpId> schedule);
  // Starts over from another valid schedule.
  void Reset(std::span<const OpId> schedule);

  const StepProgram& program() const { return program_; }
  const Schedule& schedule() const { return schedule_; }          // as of the last commit
  const std::vector<int64_t>& live_bytes() const { return live_bytes_; }
  // Bytes live between step r - 1 and step r, both excluded: what an op put there finds.
  const std::vector<int64_t>& live_bytes_before() const { return live_before_; }
  // Not the op's first occurrence.
  bool is_repeat(Step step) const {
    const auto outputs = program_.op_outputs[schedule_[step]];
    return !outputs.empty() && made_[outputs[0]][0].key != keys_[step];
  }
  Key key(Step step) const { return keys_[step]; }
  // The first step whose key is at or after `key`.
  Step StepAtOrAfter(Key key) const { return keys_.AtOrAfter(key); }
  // `count` keys, at most StepKeys::kMostInARow, between that of a step, committed or kept, and the one before it.
  FreeKeys KeysBefore(Key step_key, size_t count) const { return keys_.Before(step_key, count); }
  bool may_run_twice(OpId op) const { return may_run_twice_[op]; }

  const ShortList<Made, 2>& made(ValueId v) const { return made_[v]; }
  // Not of parameters and constants that nobody overwrites: they are there anyway.
  const ShortList<Read, 3>& reads(ValueId v) const { return reads_[v]; }

  // Index into made(v) of the last production before `key`, or the one at `key`; -1: none.
  int32_t MadeBefore(ValueId v, Key key) const;
  int32_t MadeAt(ValueId v, Key key) const;
  // Index into made(v) of the production that an op at `key` would read; -1 if there is none or its
  // storage has been overwritten by then.
  int32_t ReadableAt(ValueId v, Key key) const;

  // `op`, which has run before, may run again at the free key `key`: its inputs are readable there and
  // nobody reads what it overwrites afterwards.
  bool CanInsert(OpId op, Key key) const;
  void Insert(OpId op, Key key);
  // The occurrence of `op` at `key` may go: every read of its outputs finds an earlier production.
  bool CanRemove(OpId op, Key key) const;
  void Remove(OpId op, Key key);

  // Since the last commit, or since some were kept.
  const std::vector<Change>& changes() const { return changes_; }
  const std::vector<Edit>& edits() const { return edits_; }
  // Takes back every edit after the first `num_edits`.
  void UndoTo(size_t num_edits);
  void Keep();
  bool is_tight() const { return keys_.is_tight(); }   // there may be no room for another row of keys until a commit
  void Commit();

 private:
  struct Touched {
    ValueId value;
    Key key;      // of the production
  };

  void Build();
  void Forget();
  std::vector<Edit> NetInserts(std::vector<Step>* removed) const;
  void MergeIn(std::span<const Edit> inserts);
  void ApplyChanges();
  void Rename(Step first, std::span<const Key> before);
  bool Overwrites(OpId op, ValueId v) const;
  bool Shares(OpId op, Key key, ValueId v) const;
  bool DiesAt(ValueId v, Key key) const;
  OpId LastReader(ValueId v, int32_t made_index, Key* key) const;
  void Touch(ValueId v, Key key);
  void Refresh();
  void CountEdit(OpId op) const;
  void AddOp(OpId op, Key key);
  void DropOp(OpId op, Key key);
  void LogChange(ValueId v, Key begin, Key end, int64_t sign);

  const StepProgram& program_;
  const ShareIndex shares_;
  const Csr touches_;                 // overwriting counts as a read: it must find the value
  std::vector<uint8_t> may_run_twice_;
  std::vector<uint8_t> is_in_place_;  // per op: overwrites something
  std::vector<uint8_t> is_overwritten_;   // per value: by some op
  Schedule schedule_;
  StepKeys keys_;
  std::vector<ShortList<Made, 2>> made_;
  std::vector<ShortList<Read, 3>> reads_;
  std::vector<int64_t> live_bytes_;
  std::vector<int64_t> live_before_;
  std::vector<Change> changes_;
  std::vector<Edit> edits_;
  std::vector<size_t> changes_before_edit_;
  std::vector<Edit> kept_edits_;
  std::vector<Change> kept_changes_;
  std::vector<Touched> touched_;
  mutable std::vector<const MayShare*> settled_;   // scratch of Shares
};

}  // namespace coopjax
