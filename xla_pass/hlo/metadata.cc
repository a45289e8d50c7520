#include "hlo/metadata.h"

#include <iterator>

#include "hlo/wire.h"

namespace coopjax::hlo {

std::string Metadata::Source() const {
  if (source_file.empty()) return "";
  return std::string(source_file) + ":" + std::to_string(source_line);
}

MetadataReader::MetadataReader(const Module& module) {
  WireReader reader(module.stack_frames);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) file_names_.push_back(field.bytes);
    if (field.number != 3 && field.number != 4) continue;
    int64_t first = 0;  // file_name_id of a location, file_location_id of a frame
    int32_t line = 0;
    WireReader entry(field.bytes);
    for (WireField part; entry.Next(&part);) {
      if (part.number == 1) first = part.as_int64();
      if (part.number == 3) line = static_cast<int32_t>(part.value);
    }
    if (field.number == 3) locations_.push_back({first, line});
    if (field.number == 4) frames_.push_back(first);
  }
}

Metadata MetadataReader::Read(const Instruction& instruction) const {
  Metadata metadata;
  int64_t frame_id = 0;
  WireReader reader(instruction.raw);
  for (WireField field; reader.Next(&field);) {
    if (field.number != 7) continue;
    WireReader part_reader(field.bytes);
    for (WireField part; part_reader.Next(&part);) {
      if (part.number == 2) metadata.op_name = part.bytes;
      if (part.number == 3) metadata.source_file = part.bytes;
      if (part.number == 4) metadata.source_line = static_cast<int32_t>(part.value);
      if (part.number == 15) frame_id = part.as_int64();
    }
  }
  if (metadata.source_file.empty()) Locate(frame_id, &metadata);
  return metadata;
}

void MetadataReader::Locate(int64_t frame_id, Metadata* metadata) const {
  if (frame_id < 1 || frame_id > std::ssize(frames_)) return;
  const int64_t location_id = frames_[frame_id - 1];
  if (location_id < 1 || location_id > std::ssize(locations_)) return;
  const FileLocation& location = locations_[location_id - 1];
  if (location.file_name_id < 1 || location.file_name_id > std::ssize(file_names_)) return;
  metadata->source_file = file_names_[location.file_name_id - 1];
  metadata->source_line = location.line;
}

}  // namespace coopjax::hlo
