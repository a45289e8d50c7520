#include "hlo/metadata.h"

#include "hlo/wire.h"

namespace coopjax::hlo {
namespace {

// Whether a file lies among the packages that pip or Debian installed.
bool IsInstalled(std::string_view file) {
  return file.find("site-packages/") != file.npos || file.find("dist-packages/") != file.npos;
}

}  // namespace

std::string Metadata::Source() const {
  if (source_file.empty()) return "";
  return std::string(source_file) + ":" + std::to_string(source_line);
}

MetadataReader::MetadataReader(const Module& module) {
  WireReader reader(module.stack_frames);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) file_names_.push_back(field.bytes);
    if (field.number == 2) function_names_.push_back(field.bytes);
    if (field.number != 3 && field.number != 4) continue;
    int64_t first = 0;   // file_name_id of a location, file_location_id of a frame
    int64_t second = 0;  // function_name_id of a location, parent_frame_id of a frame
    int32_t line = 0;
    WireReader entry(field.bytes);
    for (WireField part; entry.Next(&part);) {
      if (part.number == 1) first = part.as_int64();
      if (part.number == 2) second = part.as_int64();
      if (part.number == 3) line = static_cast<int32_t>(part.value);
    }
    if (field.number == 3) locations_.push_back({first, second, line});
    if (field.number == 4) frames_.push_back({first, second});
  }
}

Metadata MetadataReader::Read(const Instruction& instruction) const {
  Metadata metadata;
  WireReader reader(instruction.raw);
  for (WireField field; reader.Next(&field);) {
    if (field.number != 7) continue;
    WireReader part_reader(field.bytes);
    for (WireField part; part_reader.Next(&part);) {
      if (part.number == 2) metadata.op_name = part.bytes;
      if (part.number == 3) metadata.source_file = part.bytes;
      if (part.number == 4) metadata.source_line = static_cast<int32_t>(part.value);
      if (part.number == 15) metadata.frame_id = part.as_int64();
    }
  }
  if (metadata.frame_id < 1 || metadata.frame_id > num_frames()) metadata.frame_id = 0;
  if (metadata.source_file.empty() || IsInstalled(metadata.source_file)) Locate(metadata.frame_id, &metadata);
  return metadata;
}

std::string MetadataReader::FrameText(int64_t frame_id) const {
  const FileLocation* location = Location(frame_id);
  if (location == nullptr) return "";
  std::string text(file_names_[location->file_name_id - 1]);
  text += ":" + std::to_string(location->line);
  if (location->function_name_id < 1 || location->function_name_id > std::ssize(function_names_)) return text;
  return text + " (" + std::string(function_names_[location->function_name_id - 1]) + ")";
}

int64_t MetadataReader::Caller(int64_t frame_id) const {
  if (frame_id < 1 || frame_id > num_frames()) return 0;
  const int64_t caller_id = frames_[frame_id - 1].caller_id;
  return caller_id < frame_id ? caller_id : 0;  // callers come first; anything else could go round in a circle
}

const MetadataReader::FileLocation* MetadataReader::Location(int64_t frame_id) const {
  if (frame_id < 1 || frame_id > num_frames()) return nullptr;
  const int64_t location_id = frames_[frame_id - 1].location_id;
  if (location_id < 1 || location_id > std::ssize(locations_)) return nullptr;
  const FileLocation& location = locations_[location_id - 1];
  const bool has_file = location.file_name_id >= 1 && location.file_name_id <= std::ssize(file_names_);
  return has_file ? &location : nullptr;
}

void MetadataReader::Locate(int64_t frame_id, Metadata* metadata) const {
  for (; frame_id > 0; frame_id = Caller(frame_id)) {
    const FileLocation* location = Location(frame_id);
    if (location == nullptr) continue;
    const std::string_view file = file_names_[location->file_name_id - 1];
    if (metadata->source_file.empty() || !IsInstalled(file)) {
      metadata->source_file = file;
      metadata->source_line = location->line;
    }
    if (!IsInstalled(file)) return;
  }
}

}  // namespace coopjax::hlo
