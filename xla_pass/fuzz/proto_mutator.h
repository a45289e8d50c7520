// Structure-aware mutations of serialized protobuf messages, for the fuzz targets.
//
// Flipped bits seldom get past the parser: lengths no longer match. These mutations take a message
// apart, change one field somewhere in the tree, and put it together with lengths that are right
// again, so that what comes out is a well-formed message which says something else: an instruction
// twice, two of them swapped, an operand that is another, a shape of a neighbour, a field gone.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace coopjax::fuzz {

// `message` with one change; as it came if it is no message or has no field.
std::string MutateMessage(std::string_view message, std::mt19937_64& random);

}  // namespace coopjax::fuzz
