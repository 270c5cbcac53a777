// Time is int64 picoseconds: ties are exact on every compiler, and 2^63 ps are 106 days.
#pragma once

#include <cstdint>
#include <limits>

#include "support/error.hpp"

namespace tacos {

using Time = std::int64_t;

inline constexpr Time kPicosecondsPerSecond = 1'000'000'000'000;
// The longest transmission or latency of a route (40 hours) and the longest schedule (26 days), so that sums
// of dozens of such times do not overflow.
inline constexpr Time kLongestTime = Time{1} << 57;
inline constexpr Time kLongestSchedule = Time{1} << 61;
// The time of an event that never happens: later than all times.
inline constexpr Time kNever = std::numeric_limits<Time>::max();

[[noreturn]] inline void too_long() { invalid("the schedule takes over 26 days"); }

// The time that `bytes` need at `bytes_per_second`, rounded up.
inline Time transmission_time(std::int64_t bytes, std::int64_t bytes_per_second) {
  Time time = kLongestTime + 1;
  if (bytes < (std::int64_t{1} << 23)) {
    // The product fits 64 bits, where dividing is several times cheaper than in 128.
    const auto product = static_cast<std::uint64_t>(bytes) * kPicosecondsPerSecond;
    const auto rate = static_cast<std::uint64_t>(bytes_per_second);
    time = static_cast<Time>((product + rate - 1) / rate);
  } else {
    const auto product = static_cast<__int128>(bytes) * kPicosecondsPerSecond;
    const auto wide = (product + bytes_per_second - 1) / bytes_per_second;
    if (wide <= kLongestTime) time = static_cast<Time>(wide);
  }
  if (time > kLongestTime) {
    invalid("a transfer of " + std::to_string(bytes) + " B at " + std::to_string(bytes_per_second) +
            " B/s takes over 40 hours");
  }
  return time;
}

}  // namespace tacos
