// Two branches whose wide values an order keeps apart, for tests of what packs modules.
#pragma once

#include <cstdint>
#include <string>

#include "testing/hlo_proto_builder.h"

namespace coopjax::testing {

// p -> wide (4 KiB) -> two slices a and b; p -> other (4 KiB) -> slice c; a + c + b.
// Ops in this order: 0 wide, 1 a, 2 other, 3 c, 4 b, 5 a + c, 6 the sum.
inline void AddTwoWide(HloProtoBuilder& builder) {
  const int64_t p = builder.Parameter(0, F32({16}));
  const int64_t wide = builder.Add("broadcast", F32({64, 16}), {p});
  const int64_t a = builder.Add("slice", F32({16}), {wide});
  const int64_t other = builder.Add("broadcast", F32({64, 16}), {p});
  const int64_t c = builder.Add("slice", F32({16}), {other});
  const int64_t b = builder.Add("slice", F32({16}), {wide});
  builder.Add("add", F32({16}), {builder.Add("add", F32({16}), {a, c}), b});
}

inline std::string TwoWide() {
  HloProtoBuilder builder;
  builder.Begin("main");
  AddTwoWide(builder);
  return builder.Build();
}

// The same inside a call, which is computation 0.
inline std::string CalledTwoWide() {
  HloProtoBuilder builder;
  const int64_t called = builder.Begin("called");
  AddTwoWide(builder);
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({16}));
  builder.Add("negate", F32({16}), {builder.Add("call", F32({16}), {p}, {.called = {called}})});
  return builder.Build();
}

}  // namespace coopjax::testing
