// Annealing over the order of placement.
//
// A packing is the order in which blocks are dropped, each onto the highest of those before it whose lifetimes
// overlap its own; every packing that can't be pushed down has such an order, so orders are all that must be
// searched. (The idea is that of A. Imanishi and Z. Xu, "A Heuristic for Periodic Memory Allocation with Little
// Fragmentation to Train Neural Networks", ISMM 2024: anneal a topological order of the conflicts, not addresses.)
// A move takes a block that tops out above the capacity, or one on a chain that carries such a block, to another
// place in the order; the blocks from the first changed place on are dropped again. What counts is by how much
// blocks stand above the capacity.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "packing/core.h"

namespace coopjax {

// Starts from the order of `*offsets`, by member, a packing of `core`, and replaces them whenever the height
// falls; stops at `capacity` or when the effort is spent. Returns the height.
int64_t AnnealPacking(const PackingCore& core, int64_t capacity, std::mt19937_64* random, SearchEffort* effort,
                      std::vector<int64_t>* offsets);

// The highest address that `offsets`, by member, use.
int64_t HeightOf(const PackingCore& core, std::span<const int64_t> offsets);

}  // namespace coopjax
