#include <algorithm>
#include <cmath>
#include <numeric>

#include "order/cost.hpp"
#include "order/order.hpp"
#include "support/index.hpp"

namespace tacos {

using namespace ordering;

double one_tree_bound(std::span<const std::int64_t> hop, std::int32_t hosts, std::int64_t upper,
                      std::int32_t rounds, const Progress& progress) {
  check_hops(hop, hosts);
  if (hosts < 3) return 0;
  const auto n = at(hosts);
  std::vector<double> cost(n * n), price(n), nearest(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j)
      cost[i * n + j] = static_cast<double>(std::min(hop[i * n + j], hop[j * n + i]));
  }
  std::vector<std::int32_t> degree(n), before(n), parent(n);
  std::vector<char> inside(n);
  double best = 0, scale = 1;
  std::int32_t stale = 0;
  for (std::int32_t round = 0; round < rounds; ++round) {
    // Prim's tree over hosts 1 … n-1, then the two cheapest edges of host 0.
    std::fill(degree.begin(), degree.end(), 0);
    std::fill(inside.begin(), inside.end(), 0);
    double total = 0;
    for (std::size_t j = 2; j < n; ++j) {
      nearest[j] = cost[n + j] + price[1] + price[j];
      parent[j] = 1;
    }
    inside[1] = 1;
    for (std::size_t step = 2; step < n; ++step) {
      std::size_t next = 0;
      for (std::size_t j = 2; j < n; ++j) {
        if (!inside[j] && (next == 0 || nearest[j] < nearest[next])) next = j;
      }
      inside[next] = 1;
      total += nearest[next];
      ++degree[next];
      ++degree[at(parent[next])];
      const double* row = &cost[next * n];
      for (std::size_t j = 2; j < n; ++j) {
        const auto through = row[j] + price[next] + price[j];
        if (!inside[j] && through < nearest[j]) {
          nearest[j] = through;
          parent[j] = static_cast<std::int32_t>(next);
        }
      }
    }
    std::size_t first = 0, second = 0;
    for (std::size_t j = 1; j < n; ++j) {
      const auto edge = [&](std::size_t k) { return cost[k] + price[0] + price[k]; };
      if (first == 0 || edge(j) < edge(first)) {
        second = first;
        first = j;
      } else if (second == 0 || edge(j) < edge(second)) {
        second = j;
      }
    }
    for (const auto j : {first, second}) {
      total += cost[j] + price[0] + price[j];
      ++degree[j];
      ++degree[0];
    }
    total -= 2 * std::accumulate(price.begin(), price.end(), 0.0);
    if (total > best + 1e-9 * std::abs(best)) {
      best = total;
      stale = 0;
    } else if (++stale == rounds / 20) {
      scale *= 0.7;
      stale = 0;
    }
    double square = 0;
    for (std::size_t i = 0; i < n; ++i)
      square += static_cast<double>((degree[i] - 2) * (degree[i] - 2));
    if (square == 0) break;  // a tour: the bound is attained
    const auto step =
        scale * std::max(static_cast<double>(upper) - total, 1e-6 * static_cast<double>(upper)) /
        square;
    for (std::size_t i = 0; i < n; ++i) {
      // Adding a share of the last direction keeps prices from oscillating.
      price[i] += step * (0.7 * (degree[i] - 2) + 0.3 * (round == 0 ? degree[i] - 2 : before[i]));
      before[i] = degree[i] - 2;
    }
    if (progress) progress(static_cast<double>(round) / rounds);
  }
  return best;
}

std::int64_t assignment_bound(std::span<const std::int64_t> hop, std::int32_t hosts,
                              const Progress& progress) {
  check_hops(hop, hosts);
  if (hosts < 2) return 0;
  // Shortest augmenting paths, row by row; column and row 0 are empty.
  const auto n = at(hosts);
  const auto cost = [&](std::size_t row, std::size_t column) {
    return row == column ? kFar / static_cast<std::int64_t>(n) / 4
                         : hop[(row - 1) * n + column - 1];
  };
  std::vector<std::int64_t> row_price(n + 1), column_price(n + 1), reach(n + 1);
  std::vector<std::size_t> row_of(n + 1), from(n + 1);
  std::vector<char> done(n + 1);
  for (std::size_t row = 1; row <= n; ++row) {
    row_of[0] = row;
    std::size_t column = 0;
    std::fill(reach.begin(), reach.end(), kFar);
    std::fill(done.begin(), done.end(), 0);
    do {
      done[column] = 1;
      const auto here = row_of[column];
      std::int64_t least = kFar;
      std::size_t next = 0;
      for (std::size_t j = 1; j <= n; ++j) {
        if (done[j]) continue;
        const auto through = cost(here, j) - row_price[here] - column_price[j];
        if (through < reach[j]) {
          reach[j] = through;
          from[j] = column;
        }
        if (reach[j] < least) {
          least = reach[j];
          next = j;
        }
      }
      for (std::size_t j = 0; j <= n; ++j) {
        if (done[j]) {
          row_price[row_of[j]] += least;
          column_price[j] -= least;
        } else {
          reach[j] -= least;
        }
      }
      column = next;
    } while (row_of[column] != 0);
    do {
      const auto previous = from[column];
      row_of[column] = row_of[previous];
      column = previous;
    } while (column != 0);
    if (progress) progress(static_cast<double>(row) / static_cast<double>(n));
  }
  std::int64_t total = 0;
  for (std::size_t j = 1; j <= n; ++j) total += cost(row_of[j], j);
  return total;
}

}  // namespace tacos
