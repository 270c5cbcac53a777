// Work whose pace changes over time: links with faults, slow senders.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "topology.hpp"

namespace tacos::simulation {

// How many times slower than by rule, in parts of kNormal, so that whole factors are exact; 0 means
// that nothing moves.
inline constexpr std::int64_t kNormal = std::int64_t{1} << 20;

// How slow a link is from a time on; the first time of a link is 0.
struct Change {
  Time time;
  std::int64_t slowdown;
};

inline Time slowed(Time time, std::int64_t slowdown) {
  return static_cast<Time>((static_cast<__int128>(time) * slowdown + kNormal - 1) / kNormal);
}

// When work that normally takes `work` is done, if begun at `begin`: rounded up, or nothing if it never
// is.
inline std::optional<Time> finish(std::span<const Change> changes, Time begin, Time work) {
  auto now = std::upper_bound(changes.begin(), changes.end(), begin,
                              [](Time t, const Change& change) { return t < change.time; }) -
             1;
  // In parts of a picosecond; what is done in a part of the time is rounded down.
  constexpr std::int64_t kParts = std::int64_t{1} << 20;
  auto left = static_cast<__int128>(work) * kParts;
  for (;; ++now) {
    const bool last = now + 1 == changes.end();
    if (now->slowdown > 0) {
      const auto takes = (left * now->slowdown + kParts * kNormal - 1) / (kParts * kNormal);
      if (takes > kLongestSchedule) return std::nullopt;
      const Time end = begin + static_cast<Time>(takes);
      if (last || end <= (now + 1)->time) return end;
      left -= static_cast<__int128>((now + 1)->time - begin) * kParts * kNormal / now->slowdown;
    }
    if (last) return std::nullopt;
    begin = (now + 1)->time;
  }
}

}  // namespace tacos::simulation
