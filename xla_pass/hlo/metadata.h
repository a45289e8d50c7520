// Where instructions come from: their scopes and the lines of the user's sources.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/module.h"

namespace coopjax::hlo {

struct Metadata {
  std::string_view op_name;                 // the name-scope path
  std::string_view source_file;             // of the innermost frame outside of installed packages; empty: unknown
  int32_t source_line = 0;
  int64_t frame_id = 0;                     // the innermost frame, counted from 1; 0: unknown

  std::string Source() const;               // "file:line", or nothing
};

// Reads the metadata of a module's instructions, and the stack frames that they point to. What is damaged is as good as
// missing.
class MetadataReader {
 public:
  explicit MetadataReader(const Module& module);
  Metadata Read(const Instruction& instruction) const;

  // The frames, of which `frame_id` 1 is the first: "file:line (function)", and the id of the caller's frame or 0.
  int64_t num_frames() const { return std::ssize(frames_); }
  std::string FrameText(int64_t frame_id) const;
  int64_t Caller(int64_t frame_id) const;

 private:
  struct FileLocation {
    int64_t file_name_id = 0;
    int64_t function_name_id = 0;
    int32_t line = 0;
  };
  struct Frame {
    int64_t location_id = 0;
    int64_t caller_id = 0;
  };
  // Of a frame; nullptr if there is none of that id, or nothing is known of it. All ids count from 1.
  const FileLocation* Location(int64_t frame_id) const;
  // Sets file and line: those of the innermost frame from this one outwards that lies in no installed package; where
  // all do, of this one.
  void Locate(int64_t frame_id, Metadata* metadata) const;

  std::vector<std::string_view> file_names_;
  std::vector<std::string_view> function_names_;
  std::vector<FileLocation> locations_;
  std::vector<Frame> frames_;
};

}  // namespace coopjax::hlo
