// Time is int64 picoseconds: ties are exact on every compiler, and 2^63 ps are 106 days.
#pragma once

#include <cstdint>

#include "error.hpp"

namespace tacos {

using Time = std::int64_t;

inline constexpr Time kPicosecondsPerSecond = 1'000'000'000'000;
inline constexpr Time kLongestTime = Time{1} << 61;  // sums of a few of these do not overflow

// The time that `bytes` need at `bytes_per_second`, rounded up.
inline Time transmission_time(std::int64_t bytes, std::int64_t bytes_per_second) {
  // Almost always the product fits 64 bits, where dividing is several times cheaper than in 128.
  if (bytes < (std::int64_t{1} << 23)) {
    const auto product = static_cast<std::uint64_t>(bytes) * kPicosecondsPerSecond;
    const auto rate = static_cast<std::uint64_t>(bytes_per_second);
    return static_cast<Time>((product + rate - 1) / rate);
  }
  const auto product = static_cast<__int128>(bytes) * kPicosecondsPerSecond;
  const auto time = (product + bytes_per_second - 1) / bytes_per_second;
  if (time > kLongestTime)
    invalid("a transfer of " + std::to_string(bytes) + " B at " + std::to_string(bytes_per_second) +
            " B/s takes over 26 days");
  return static_cast<Time>(time);
}

}  // namespace tacos
