// The wire reader on any bytes: nothing is read outside them, and fields put together are the bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view message(reinterpret_cast<const char*>(data), size);
  coopjax::hlo::WireReader reader(message);
  coopjax::hlo::WireField field;
  std::string copy;
  std::vector<int64_t> numbers;
  while (reader.Next(&field)) {
    copy.append(field.raw);
    numbers.clear();
    coopjax::hlo::ReadRepeatedInt64(field, &numbers);
  }
  if (copy != message.substr(0, copy.size()) || (reader.ok() && copy.size() != size)) std::abort();
  return 0;
}
