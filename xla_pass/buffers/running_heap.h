// A heap as XLA:TPU lays it out where the device has room to spare: in the order of the run, whatever comes later.
//
// A value takes the free piece that leaves the least room, the lowest of equals; where none is large enough, what lies
// behind the last value that is there. Offsets are aligned, sizes are not, and a piece is what values have left: the
// gap up to the next aligned offset joins two pieces, but makes none larger that ends at a value. Found from what XLA
// dumps of its buffer assignments (offsets of 360 values in three programs, all but two of them).
#pragma once

#include <cstdint>
#include <map>

namespace coopjax {

class RunningHeap {
 public:
  explicit RunningHeap(int64_t alignment) : alignment_(alignment) {}

  // Returns the offset.
  int64_t Allocate(int64_t bytes);
  void Free(int64_t offset, int64_t bytes);
  // The highest address that was used.
  int64_t bytes() const { return bytes_; }

 private:
  using Piece = std::map<int64_t, int64_t>::iterator;

  // The free piece to take; the one on top where none fits and it is free, else the end.
  Piece Choose(int64_t bytes);
  bool AreJoined(int64_t end, int64_t begin) const;

  const int64_t alignment_;
  std::map<int64_t, int64_t> free_;  // ends by begin
  int64_t bytes_ = 0;
};

}  // namespace coopjax
