#include "buffers/platform.h"

#include <algorithm>
#include <string_view>

namespace coopjax {
namespace {

constexpr std::string_view kGpuOnlyConfig = "\"operation_queue_id\":";
constexpr std::string_view kGpuOnlyAttribute = "fingerprint_before_lhs";

bool IsTiled(const hlo::Shape& shape) {
  return !shape.tiles.empty() || std::ranges::any_of(shape.tuple_shapes, IsTiled);
}

}  // namespace

HloPlatform PlatformOf(const hlo::Module& module) {
  if (module.attributes.find(kGpuOnlyAttribute) != std::string_view::npos) return HloPlatform::kGpu;
  for (const int32_t i : module.entry_computation().instructions) {
    const hlo::Instruction& instruction = module.instructions[i];
    if (IsTiled(*instruction.shape)) return HloPlatform::kTpu;
    if (instruction.raw.find(kGpuOnlyConfig) != std::string_view::npos) return HloPlatform::kGpu;
  }
  return HloPlatform::kCpu;
}

HeapRules RulesFor(HloPlatform platform) {
  switch (platform) {
    case HloPlatform::kGpu:
      return {.platform = platform, .alignment = 256, .makes_synchronous = true};
    case HloPlatform::kTpu:
      return {.platform = platform,
              .alignment = 16384,
              .granule_bytes = 512,
              .can_reuse_allocations = false,
              .packs_as_it_runs = true,
              .counts_fragmentation_twice = true};
    default:
      return {};
  }
}

bool HeapRules::IsInMainMemory(const hlo::Shape& shape) const {
  if (platform == HloPlatform::kTpu) return shape.memory_space == hlo::kMainMemorySpace;
  return platform == HloPlatform::kCpu || shape.memory_space != hlo::kHostMemorySpace;
}

int64_t HeapRules::Bytes(const hlo::Shape& shape) const {
  if (!IsInMainMemory(shape)) return 0;
  return RoundUp(shape.byte_size(), granule_bytes);
}

}  // namespace coopjax
