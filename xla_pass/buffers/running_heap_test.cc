#include "buffers/running_heap.h"

#include "testing/expect.h"

namespace coopjax {
namespace {

TEST(ValuesTakeThePieceThatLeavesTheLeastRoom) {
  RunningHeap heap(64);
  EXPECT_EQ(heap.Allocate(256), 0);
  EXPECT_EQ(heap.Allocate(64), 256);
  EXPECT_EQ(heap.Allocate(128), 320);
  EXPECT_EQ(heap.Allocate(64), 448);
  heap.Free(0, 256);
  heap.Free(320, 128);
  EXPECT_EQ(heap.Allocate(128), 320);  // not in the first piece, which is larger
  EXPECT_EQ(heap.Allocate(64), 0);
  EXPECT_EQ(heap.Allocate(64), 64);    // what that one left
  EXPECT_EQ(heap.bytes(), 512);
}

TEST(TheLowestOfEqualsIsTaken) {
  RunningHeap heap(64);
  for (int i = 0; i < 4; ++i) heap.Allocate(64);
  heap.Free(128, 64);
  heap.Free(0, 64);
  EXPECT_EQ(heap.Allocate(64), 0);
}

// The gap up to the next aligned offset belongs to no piece, unless both of its sides are free.
TEST(GapsJoinPiecesAlone) {
  RunningHeap heap(64);
  EXPECT_EQ(heap.Allocate(8), 0);
  EXPECT_EQ(heap.Allocate(8), 64);
  EXPECT_EQ(heap.Allocate(8), 128);
  heap.Free(0, 8);
  EXPECT_EQ(heap.Allocate(16), 192);
  heap.Free(64, 8);
  EXPECT_EQ(heap.Allocate(72), 0);
}

// The top is where the heap grows: what fits elsewhere goes there.
TEST(WhatIsFreeOnTopIsTakenLast) {
  RunningHeap heap(64);
  EXPECT_EQ(heap.Allocate(256), 0);
  EXPECT_EQ(heap.Allocate(64), 256);
  EXPECT_EQ(heap.Allocate(64), 320);
  heap.Free(0, 256);
  heap.Free(320, 64);
  EXPECT_EQ(heap.Allocate(64), 0);
  EXPECT_EQ(heap.Allocate(1024), 320);
  EXPECT_EQ(heap.bytes(), 1344);
}

TEST(WhatWasLeftOfAPieceIsJoinedAgain) {
  RunningHeap heap(64);
  EXPECT_EQ(heap.Allocate(128), 0);
  EXPECT_EQ(heap.Allocate(64), 128);
  heap.Free(0, 128);
  EXPECT_EQ(heap.Allocate(8), 0);
  EXPECT_EQ(heap.Allocate(8), 64);
  heap.Free(0, 8);
  heap.Free(64, 8);
  EXPECT_EQ(heap.Allocate(128), 0);
}

}  // namespace
}  // namespace coopjax
