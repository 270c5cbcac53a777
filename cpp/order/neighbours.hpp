// Shared by both local searches: random numbers, and the nearest hosts of each host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tacos::ordering {

// SplitMix64, which gives the same numbers with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  std::int32_t below(std::int32_t limit) {
    return static_cast<std::int32_t>(next() % static_cast<std::uint64_t>(limit));
  }

 private:
  std::uint64_t state_;
};

// The `count` hosts nearest to each of n hosts, by the sum of both directions.
std::vector<std::int32_t> near_hosts(std::span<const std::int64_t> hop, std::int32_t n,
                                     std::int32_t count);

}  // namespace tacos::ordering
