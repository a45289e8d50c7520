// Where instructions come from: their scopes and the lines of the user's sources.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/module.h"

namespace coopjax::hlo {

struct Metadata {
  std::string_view op_name;                 // the name-scope path
  std::string_view source_file;             // empty: unknown
  int32_t source_line = 0;

  std::string Source() const;               // "file:line", or nothing
};

// Reads the metadata of a module's instructions, and the stack frames that they point to. What is damaged is as good as
// missing.
class MetadataReader {
 public:
  explicit MetadataReader(const Module& module);
  Metadata Read(const Instruction& instruction) const;

 private:
  struct FileLocation {
    int64_t file_name_id = 0;
    int32_t line = 0;
  };
  // Sets file and line of a frame (all ids count from 1).
  void Locate(int64_t frame_id, Metadata* metadata) const;

  std::vector<std::string_view> file_names_;
  std::vector<FileLocation> locations_;
  std::vector<int64_t> frames_;             // location ids
};

}  // namespace coopjax::hlo
