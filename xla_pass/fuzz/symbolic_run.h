// What a scheduled module computes, as hashes: the fuzz targets' second opinion on the verifier.
//
// The entry computation is run in the order of its sequence on a memory of buffers. An instruction
// reads what its operands' buffers hold at that moment, and writes to the buffers of its results the
// hash of itself and of what it read; instructions that share a buffer (HloAlias) overwrite each
// other. So an operand that is another, an attribute that changed, and a buffer that was overwritten
// before its last reader all show in the hash of an output. Called computations count as a whole.
// Nothing here is shared with verify.cc and buffer_order.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "hlo_analysis.h"

namespace coopjax::fuzz {

// One hash for each array of the entry's result. Clones (".coop_remat<n>") count as their originals.
std::vector<uint64_t> SymbolicRun(const HloAnalysis& analysis);

}  // namespace coopjax::fuzz
