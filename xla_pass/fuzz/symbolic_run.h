// What a scheduled module computes, as hashes: the fuzz targets' second opinion on the verifier.
//
// The entry computation is run in the order of its sequence on a memory of buffers. An instruction
// reads what its operands' buffers hold at that moment, and writes to the buffers of its results the
// hash of itself and of what it read; instructions that share a buffer (HloAlias) overwrite each
// other. So an operand that is another, an attribute that changed, and a buffer that was overwritten
// before its last reader all show in the hash of an output. Called computations count as a whole.
// Nothing here is shared with verify/.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "buffers/analysis.h"

namespace coopjax::fuzz {

struct SymbolicResult {
  std::unordered_map<std::string, uint64_t> computed;  // by name: what each instruction of the entry computed
  std::vector<uint64_t> outputs;                       // one for each array of the entry's result
};
SymbolicResult SymbolicRun(const HloAnalysis& analysis);

// Whether the outputs are the same, and every instruction, clones (".coop_remat<n>") included, computed what its
// original did, even if nobody reads it.
bool IsSame(const SymbolicResult& before, const SymbolicResult& after);

}  // namespace coopjax::fuzz
