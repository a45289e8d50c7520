#include "packing/search.h"

#include <algorithm>
#include <random>

#include "packing/blocks.h"
#include "testing/expect.h"

namespace coopjax {
namespace {

bool Clash(const PackingBuffer& a, int64_t at_a, const PackingBuffer& b, int64_t at_b) {
  return a.lower < b.upper && b.lower < a.upper && at_a < at_b + b.size && at_b < at_a + a.size;
}

// Whether buffers k and on fit below `capacity`, by trying every offset of every one.
bool Fits(const PackingProblem& problem, int64_t capacity, size_t k, std::vector<int64_t>* offsets) {
  if (k == problem.buffers.size()) return true;
  const PackingBuffer& buffer = problem.buffers[k];
  for (int64_t at = 0; at + buffer.size <= capacity; at += buffer.alignment) {
    if (buffer.fixed_offset != kAnyOffset && at != buffer.fixed_offset) continue;
    if (buffer.same_offset_as >= 0 && at != (*offsets)[buffer.same_offset_as]) continue;
    bool clashes = false;
    for (size_t other = 0; other < k && !clashes; ++other) {
      clashes = buffer.size > 0 && Clash(buffer, at, problem.buffers[other], (*offsets)[other]);
    }
    if (clashes) continue;
    (*offsets)[k] = at;
    if (Fits(problem, capacity, k + 1, offsets)) return true;
  }
  return false;
}

int64_t SmallestHeap(const PackingProblem& problem) {
  std::vector<int64_t> offsets(problem.buffers.size());
  int64_t capacity = 0;
  while (!Fits(problem, capacity, 0, &offsets)) ++capacity;
  return capacity;
}

// Some tied back to back, some fixed, some aligned to 2.
PackingProblem RandomTiny(std::mt19937* random, bool is_plain) {
  const auto below = [&](int n) { return static_cast<int32_t>((*random)() % n); };
  PackingProblem problem;
  const int32_t count = 1 + below(7);
  for (int32_t k = 0; k < count; ++k) {
    const int32_t lower = below(8);
    PackingBuffer buffer{lower, lower + 1 + below(5), 1 + below(5)};
    if (!is_plain && below(4) == 0) buffer.alignment = 2;
    if (!is_plain && k > 0 && below(4) == 0) {
      buffer.same_offset_as = below(k);
      const PackingBuffer& tied = problem.buffers[buffer.same_offset_as];
      buffer.upper += tied.upper - buffer.lower;
      buffer.lower = tied.upper;
    } else if (!is_plain && below(5) == 0) {
      buffer.fixed_offset = below(3) * buffer.alignment;
    }
    problem.buffers.push_back(buffer);
    if (!CheckPackingProblem(problem).empty()) problem.buffers.pop_back();
  }
  // Tied to one that was dropped, or two heirs of one buffer at the same time: what the brute force can't judge.
  for (size_t k = 0; k < problem.buffers.size(); ++k) {
    for (size_t other = 0; other < k; ++other) {
      if (problem.buffers[k].same_offset_as >= 0 &&
          problem.buffers[k].same_offset_as == problem.buffers[other].same_offset_as) {
        problem.buffers[k].same_offset_as = -1;
      }
    }
  }
  return CheckPackingProblem(problem).empty() ? problem : PackingProblem{};
}

void ExpectOptimal(const PackingProblem& problem, const PackingSearchOptions& options) {
  const PackingSearchResult result = SearchPacking(problem, options);
  EXPECT_EQ(CheckPacking(problem, result.packing), "");
  EXPECT_TRUE(result.status == PackingStatus::kOptimal);
  EXPECT_EQ(result.packing.heap_bytes, result.lower_bound);
  EXPECT_EQ(result.packing.heap_bytes, SmallestHeap(problem));
}

TEST(TinyProblemsAreSolvedToTheOptimum) {
  std::mt19937 random(1);
  for (int round = 0; round < 600; ++round) {
    ExpectOptimal(RandomTiny(&random, round % 2 == 0), {.peels = round % 3 != 0, .anneals = round % 5 != 0});
  }
}

// Capacity one below the smallest heap: proven impossible. At it: found.
TEST(CapacitiesAreDecided) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    PackingProblem problem = RandomTiny(&random, round % 2 == 0);
    const int64_t smallest = SmallestHeap(problem);
    problem.capacity = smallest;
    const PackingSearchResult found = SearchPacking(problem, {});
    EXPECT_TRUE(found.packing.heap_bytes <= problem.capacity);
    EXPECT_TRUE(found.status == PackingStatus::kOptimal || found.status == PackingStatus::kFeasible);
    if (smallest == 0) continue;
    problem.capacity = smallest - 1;
    const PackingSearchResult none = SearchPacking(problem, {});
    EXPECT_TRUE(none.status == PackingStatus::kInfeasible);
    EXPECT_TRUE(none.lower_bound > problem.capacity);
    EXPECT_EQ(CheckPacking(problem, none.packing), "");
  }
}

// Cuts a rectangle of time and bytes into `count` or a few more, by pinwheels of five (no straight cut goes through
// one), and forgets where they lay: the whole is the smallest heap.
PackingProblem Tiling(int count, uint64_t seed, int32_t duration, int64_t bytes) {
  std::mt19937_64 random(seed);
  PackingProblem problem;
  auto& tiles = problem.buffers;
  tiles = {{0, duration, bytes}};
  while (std::ssize(tiles) < count) {
    const size_t k = random() % tiles.size();
    const auto [lower, upper, size, alignment, fixed, same] = tiles[k];
    if (upper - lower < 3 || size < 3) continue;
    const auto width = static_cast<int32_t>(1 + random() % ((upper - lower - 1) / 2));
    const auto height = static_cast<int64_t>(1 + random() % ((size - 1) / 2));
    tiles[k] = {lower, upper - width, height};
    tiles.push_back({upper - width, upper, size - height});
    tiles.push_back({lower + width, upper, height});
    tiles.push_back({lower, lower + width, size - height});
    tiles.push_back({lower + width, upper - width, size - 2 * height});
  }
  return problem;
}

TEST(TilingsArePackedWithoutFragmentation) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const PackingProblem problem = Tiling(60, seed, 100000, 10000);
    EXPECT_TRUE(PackBestFit(problem).heap_bytes > 10000);
    const PackingSearchResult result = SearchPacking(problem, {});
    EXPECT_EQ(CheckPacking(problem, result.packing), "");
    EXPECT_EQ(result.packing.heap_bytes, 10000);
    EXPECT_TRUE(result.status == PackingStatus::kOptimal);
  }
}

// Each tile cut into three, which live as long as it did.
TEST(BlocksOfOneLifetimeAreSolvedAsOne) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    PackingProblem problem;
    for (PackingBuffer tile : Tiling(80, seed, 100000, 10000).buffers) {
      for (int64_t left = 3; left > 0; --left) {
        PackingBuffer part = tile;
        part.size = tile.size / left;
        tile.size -= part.size;
        problem.buffers.push_back(part);
      }
    }
    const PackingSearchResult result = SearchPacking(problem, {.effort = 5'000'000});
    EXPECT_EQ(CheckPacking(problem, result.packing), "");
    EXPECT_EQ(result.packing.heap_bytes, 10000);
  }
}

TEST(EverySwitchLeavesAValidPackingNoWorseThanBestFit) {
  for (int switches = 0; switches < 8; ++switches) {
    const PackingSearchOptions options = {.effort = 20'000'000,
                                          .peels = (switches & 1) != 0,
                                          .branches = (switches & 2) != 0,
                                          .anneals = (switches & 4) != 0};
    const PackingProblem problem = Tiling(80, 11, 30000, 50000);
    const PackingSearchResult result = SearchPacking(problem, options);
    EXPECT_EQ(CheckPacking(problem, result.packing), "");
    EXPECT_TRUE(result.packing.heap_bytes <= PackBestFit(problem).heap_bytes);
    const PackingSearchResult again = SearchPacking(problem, options);
    EXPECT_TRUE(result.packing.offsets == again.packing.offsets);
    EXPECT_EQ(result.effort, again.effort);
  }
}

// Annealing alone lowers the heap of a tiling.
TEST(AnnealingFindsBetterOrders) {
  int better = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const PackingProblem problem = Tiling(60, seed, 100000, 10000);
    const PackingSearchResult greedy = SearchPacking(problem, {.branches = false, .anneals = false});
    const PackingSearchResult result = SearchPacking(problem, {.effort = 50'000'000, .branches = false});
    EXPECT_EQ(CheckPacking(problem, result.packing), "");
    EXPECT_TRUE(result.packing.heap_bytes <= greedy.packing.heap_bytes);
    better += result.packing.heap_bytes < greedy.packing.heap_bytes;
  }
  EXPECT_TRUE(better >= 5);
}

TEST(EffortBoundsTheSearch) {
  const PackingProblem problem = Tiling(1000, 3, 20000000, int64_t{1} << 40);
  const PackingSearchResult result = SearchPacking(problem, {.effort = 5'000'000});
  EXPECT_EQ(CheckPacking(problem, result.packing), "");
  EXPECT_TRUE(result.status == PackingStatus::kEffortSpent);
  EXPECT_TRUE(result.effort < 10'000'000);
  EXPECT_TRUE(SearchPacking(problem, {.effort = 0}).status == PackingStatus::kEffortSpent);
}

}  // namespace
}  // namespace coopjax
