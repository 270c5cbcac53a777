// The cost of an order, and checks of the searches' arguments; shared by the searches and bounds of order.hpp.
#pragma once

#include <algorithm>
#include <limits>

#include "order/order.hpp"
#include "support/index.hpp"

namespace tacos::ordering {

inline constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;

// Index of a pair of hosts in a matrix.
inline std::size_t entry(std::int32_t hosts, std::int32_t i, std::int32_t j) {
  return static_cast<std::size_t>(i) * static_cast<std::size_t>(hosts) +
         static_cast<std::size_t>(j);
}

inline std::int64_t of_ring(std::int64_t sum, std::size_t count, std::int64_t slowest) {
  return std::max(sum / static_cast<std::int64_t>(count), slowest);
}

void check_order(std::int32_t hosts, std::span<const std::int32_t> order);
void check_hops(std::span<const std::int64_t> hop, std::int32_t hosts);

// Computes the times of a term's messages with the links that they share; reuses its arrays between calls.
class Evaluator {
 public:
  explicit Evaluator(const OrderProblem& problem) : problem_(problem), load_(at(problem.links)) {}

  std::int64_t operator()(std::span<const std::int32_t> order) {
    std::int64_t total = 0;
    for (const auto& term : problem_.terms) total += term.weight * time(term, order);
    return total;
  }

 private:
  std::span<const std::int32_t> route(std::size_t pair) const {
    const auto begin = static_cast<std::size_t>(problem_.route_begin[pair]);
    return problem_.route_links.subspan(
        begin, static_cast<std::size_t>(problem_.route_begin[pair + 1]) - begin);
  }

  std::int64_t time(const OrderTerm& term, std::span<const std::int32_t> order) {
    const bool shared = !problem_.route_begin.empty();
    const auto pair = [&](std::size_t m) {
      return entry(problem_.hosts, order[at(term.src[m])], order[at(term.dst[m])]);
    };
    if (shared) {
      std::fill(load_.begin(), load_.end(), 0);
      for (std::size_t m = 0; m < term.src.size(); ++m) {
        for (const auto link : route(pair(m))) ++load_[at(link)];
      }
    }
    const auto& bytes = problem_.bytes[at(term.size_class)];
    std::int64_t sum = 0, slowest = 0, slowest_bytes = 0;
    for (std::size_t m = 0; m < term.src.size(); ++m) {
      const auto where = pair(m);
      auto carried = bytes[where];
      if (shared) {
        const auto& link_bytes = problem_.link_bytes[at(term.size_class)];
        for (const auto link : route(where)) {
          carried = std::max(carried, load_[at(link)] * link_bytes[at(link)]);
        }
      }
      const auto took = carried + (term.latency ? problem_.latency[where] : 0);
      sum += took;
      slowest = std::max(slowest, took);
      slowest_bytes = std::max(slowest_bytes, carried);
    }
    return term.ring ? of_ring(sum, term.src.size(), slowest_bytes) : slowest;
  }

  const OrderProblem& problem_;
  std::vector<std::int64_t> load_;
};

}  // namespace tacos::ordering
