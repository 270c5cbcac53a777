// The unit in which a schedule stores its starts, which have 32 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "model/time.hpp"

namespace tacos {

inline constexpr Time kLargestStart = std::numeric_limits<std::uint32_t>::max();

// The largest number that divides all starts, or 1.
template <typename Starts>
Time common_quantum(const Starts& starts) {
  Time divisor = 0;
  for (const auto start : starts) {
    if (divisor == 1) break;
    divisor = std::gcd(divisor, static_cast<Time>(start));
  }
  return std::max<Time>(divisor, 1);
}

// A quantum in which starts up to `latest` fit 32 bits, with 1/64 to spare for rounding: rounding every start up to a multiple of q
// makes a chain of k transfers at most k·q longer.
inline Time rounding_quantum(Time latest) {
  return latest / kLargestStart + latest / kLargestStart / 64 + 1;
}

}  // namespace tacos
