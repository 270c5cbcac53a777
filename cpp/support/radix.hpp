// A stable sort of rows by a number: O(1) passes over the rows, where a comparison sort makes O(log n).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tacos {

// Sorts rows by `key(row)`, an unsigned number; rows with equal keys keep their order. There is one pass for each 11 bits of the
// range of keys, and none if the rows are in order. `spare` is scratch memory for as many rows.
template <typename Rows, typename Key>
void radix_sort(Rows& rows, Rows& spare, const Key& key) {
  constexpr int kBits = 11;
  constexpr std::size_t kDigits = std::size_t{1} << kBits;
  if (rows.empty()) return;
  bool sorted = true;
  std::uint64_t least = key(rows[0]), most = least, last = least;
  for (const auto& row : rows) {
    const std::uint64_t now = key(row);
    sorted = sorted && last <= now;
    least = std::min(least, now);
    most = std::max(most, now);
    last = now;
  }
  if (sorted) return;
  spare.resize(rows.size());
  for (int shift = 0; shift < 64 && (most - least) >> shift != 0; shift += kBits) {
    std::array<std::size_t, kDigits + 1> begin{};
    const auto digit = [&](const auto& row) { return (key(row) - least) >> shift & (kDigits - 1); };
    for (const auto& row : rows) ++begin[digit(row) + 1];
    for (std::size_t i = 1; i <= kDigits; ++i) begin[i] += begin[i - 1];
    for (const auto& row : rows) spare[begin[digit(row)]++] = row;
    rows.swap(spare);
  }
}

}  // namespace tacos
