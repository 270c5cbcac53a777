// A pair of ids as one number, for sorted lists and hash tables of pairs.
#pragma once

#include <cstdint>

namespace tacos {

constexpr std::uint64_t pair_key(std::int32_t first, std::int32_t second) {
  return (static_cast<std::uint64_t>(first) << 32) | static_cast<std::uint32_t>(second);
}

}  // namespace tacos
