// Parsing of xla.ShapeProto (the Shape itself stands in hlo/module.h).
#pragma once

#include <string_view>

#include "hlo/module.h"

namespace coopjax {

// False when the message is malformed, nests too deeply, has an element type that this view does not
// know, or describes a buffer of 2^55 bytes or more.
bool ParseShape(std::string_view message, Shape* shape);

}  // namespace coopjax
