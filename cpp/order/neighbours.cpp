#include "order/neighbours.hpp"

#include <algorithm>

#include "order/cost.hpp"
#include "support/index.hpp"

namespace tacos::ordering {

std::vector<std::int32_t> near_hosts(std::span<const std::int64_t> hop, std::int32_t n,
                                     std::int32_t count) {
  std::vector<std::int32_t> result(at(n) * at(count)), others;
  for (std::int32_t i = 0; i < n; ++i) {
    others.clear();
    for (std::int32_t j = 0; j < n; ++j) {
      if (j != i) others.push_back(j);
    }
    const auto nearer = [&](std::int32_t a, std::int32_t b) {
      const auto to_a = hop[entry(n, i, a)] + hop[entry(n, a, i)],
                 to_b = hop[entry(n, i, b)] + hop[entry(n, b, i)];
      return to_a != to_b ? to_a < to_b : a < b;
    };
    std::partial_sort(others.begin(), others.begin() + count, others.end(), nearer);
    std::copy_n(others.begin(), count,
                result.begin() + static_cast<std::ptrdiff_t>(at(i) * at(count)));
  }
  return result;
}

}  // namespace tacos::ordering
