// Times as messages write them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace tacos {

// Exact, in the largest unit that leaves a whole part: 1'500'000'000 ps is "1.5 ms".
inline std::string time_text(std::int64_t picoseconds) {
  if (picoseconds == 0) return "0 s";
  for (const auto& [unit, digits] : {std::pair{" s", 12}, {" ms", 9}, {" us", 6}, {" ns", 3}}) {
    std::int64_t size = 1;
    for (int i = 0; i < digits; ++i) size *= 10;
    if (picoseconds < size) continue;
    std::string text = std::to_string(picoseconds / size);
    const auto rest = std::to_string(picoseconds % size);
    auto fraction = std::string(static_cast<std::size_t>(digits) - rest.size(), '0') + rest;
    fraction.erase(fraction.find_last_not_of('0') + 1);
    return text + (fraction.empty() ? "" : "." + fraction) + unit;
  }
  return std::to_string(picoseconds) + " ps";
}

}  // namespace tacos
