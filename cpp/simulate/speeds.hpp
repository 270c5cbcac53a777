// Links whose speed changes over time: faults and slow senders.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "topology.hpp"

namespace tacos::simulation {

// The speed of a link in parts of kFullSpeed, from each time on; the first time is 0. 0 means down.
inline constexpr std::int64_t kFullSpeed = std::int64_t{1} << 32;

struct SpeedChange {
  Time time;
  std::int64_t speed;
};

// When work that takes `work` at full speed is done, if begun at `begin`: rounded up, or nothing if
// the link stays down.
inline std::optional<Time> finish(std::span<const SpeedChange> speeds, Time begin, Time work) {
  auto now = std::upper_bound(speeds.begin(), speeds.end(), begin,
                              [](Time t, const SpeedChange& change) { return t < change.time; }) -
             1;
  auto left = static_cast<__int128>(work) * kFullSpeed;
  for (;; ++now) {
    const bool last = now + 1 == speeds.end();
    const auto possible = last ? left : static_cast<__int128>((now + 1)->time - begin) * now->speed;
    if (possible >= left && (now->speed > 0 || left == 0)) {
      if (left == 0) return begin;
      const auto takes = (left + now->speed - 1) / now->speed;
      if (takes > kLongestSchedule) return std::nullopt;
      return begin + static_cast<Time>(takes);
    }
    if (last) return std::nullopt;
    left -= possible;
    begin = (now + 1)->time;
  }
}

}  // namespace tacos::simulation
