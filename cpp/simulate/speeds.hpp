// Work whose speed changes over time: links with faults, slow senders.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "model/topology.hpp"

namespace tacos::simulation {

// A slowdown is a multiple of 1 / kNormal, so that integer factors are exact; 0 means
// that nothing moves.
inline constexpr std::int64_t kNormal = std::int64_t{1} << 20;

// The slowdown of a link from a time on; the first time of a link is 0.
struct Change {
  Time time;
  std::int64_t slowdown;
};

inline Time slowed(Time time, std::int64_t slowdown) {
  return static_cast<Time>((static_cast<__int128>(time) * slowdown + kNormal - 1) / kNormal);
}

// When work that normally takes `work` ends if it begins at `begin`, rounded up; nothing if it never
// ends.
inline std::optional<Time> finish(std::span<const Change> changes, Time begin, Time work) {
  auto now = std::upper_bound(changes.begin(), changes.end(), begin,
                              [](Time t, const Change& change) { return t < change.time; }) -
             1;
  // In fractions of a picosecond; the work done in each interval is rounded down.
  constexpr __int128 kParts = 1 << 20;
  auto left = work * kParts;
  for (;; ++now) {
    const bool last = now + 1 == changes.end();
    if (now->slowdown > 0) {
      const auto takes = (left * now->slowdown + kParts * kNormal - 1) / (kParts * kNormal);
      if (takes > kLongestSchedule) return std::nullopt;
      const Time end = begin + static_cast<Time>(takes);
      if (last || end <= (now + 1)->time) return end;
      left -= ((now + 1)->time - begin) * kParts * kNormal / now->slowdown;
    }
    if (last) return std::nullopt;
    begin = (now + 1)->time;
  }
}

// A random delay, uniform between 0 and `most`: a function of the seed and of what is delayed.
inline Time drawn(std::uint64_t seed, std::initializer_list<std::uint64_t> what, Time most) {
  const auto mixed = [](std::uint64_t x) {  // splitmix64's finalizer
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  auto draw = mixed(seed);
  for (const auto part : what) draw = mixed(draw ^ part);
  const auto range = static_cast<unsigned __int128>(most) + 1;
  return static_cast<Time>(range * draw >> 64);
}

}  // namespace tacos::simulation
