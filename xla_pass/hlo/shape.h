// An xla::Shape, and its parsing from an xla.ShapeProto.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace coopjax::hlo {

// Of a layout; others are small memories on the device, such as a TPU's vector memory (1) and flags (2).
inline constexpr int64_t kMainMemorySpace = 0, kHostMemorySpace = 5;

// Tuples have `is_tuple` and children; arrays have dimensions and a layout.
struct Shape {
  int32_t element_type = 0;                 // xla::PrimitiveType; 13 = TUPLE, 17 = TOKEN, 14 = OPAQUE
  std::vector<int64_t> dimensions;
  std::vector<int64_t> minor_to_major;
  int64_t memory_space = kMainMemorySpace;  // layout.memory_space
  bool has_layout_extras = false;           // tiles, element_size_in_bits and the like: sizes need care
  int64_t element_size_in_bits = 0;         // 0: that of the type
  int64_t tail_alignment_elements = 1;      // the padded element count is a multiple of this
  bool is_dynamic = false;                  // some dimension is only an upper bound
  std::vector<std::vector<int64_t>> tiles;
  std::vector<Shape> tuple_shapes;

  bool is_tuple() const { return element_type == 13; }
  bool is_token() const { return element_type == 17; }
  bool is_array() const { return !is_tuple() && !is_token() && element_type != 14 && element_type != 0; }
  int64_t num_elements() const;
  // Bytes of the buffer at this node alone: an array's padded bytes, 8 per element of a tuple (its
  // table of pointers), 0 for a token. Sub-byte types (s4, u4, s2 ...) are as XLA:CPU stores them.
  int64_t byte_size() const;
};

// False when the message is malformed, nests too deeply, has an element type that this view does not
// know, or describes a buffer of 2^55 bytes or more.
bool ParseShape(std::string_view message, Shape* shape);

}  // namespace coopjax::hlo
