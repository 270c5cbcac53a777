#include <algorithm>

#include "order/cost.hpp"
#include "order/neighbours.hpp"
#include "order/order.hpp"
#include "support/index.hpp"

namespace tacos {

using namespace ordering;

namespace {

class Tour {
 public:
  Tour(std::span<const std::int64_t> hop, std::int32_t n, std::span<const std::int32_t> start)
      : hop_(hop),
        n_(n),
        tour_(start.begin(), start.end()),
        place_(at(n)),
        ahead_(at(n) + 1),
        back_(at(n) + 1) {
    near_count_ = std::min(n - 1, std::int32_t{10});
    near_ = near_hosts(hop, n, near_count_);
    refresh();
  }

  const std::vector<std::int32_t>& order() const { return tour_; }
  std::int64_t length() const { return ahead_[at(n_)]; }
  std::int64_t looked() const { return looked_; }

  void set(const std::vector<std::int32_t>& order) {
    tour_ = order;
    refresh();
  }

  // Improves the tour until no move around the given hosts helps.
  void improve(std::vector<std::int32_t>& hosts) {
    while (!hosts.empty()) {
      const auto host = hosts.back();
      hosts.pop_back();
      while (improve_at(host, hosts)) {
      }
    }
  }

  // Swaps two adjacent stretches (a double bridge).
  std::vector<std::int32_t> bridge(Random& random) {
    const std::int32_t reach = std::min(n_ - 1, std::int32_t{50});
    const auto first = random.below(n_);
    const auto one = 1 + random.below(std::max(1, reach / 2)),
               two = 1 + random.below(std::max(1, reach / 2));
    if (one + two + 1 > n_) return {};
    std::rotate(tour_.begin(), tour_.begin() + first, tour_.end());
    std::vector<std::int32_t> touched = {tour_[0],
                                         tour_[at(one - 1)],
                                         tour_[at(one)],
                                         tour_[at(one + two - 1)],
                                         tour_[at(one + two)],
                                         tour_[at(n_ - 1)]};
    std::rotate(tour_.begin(), tour_.begin() + one, tour_.begin() + one + two);
    refresh();
    return touched;
  }

 private:
  std::int64_t hop(std::int32_t a, std::int32_t b) const { return hop_[entry(n_, a, b)]; }
  std::int32_t host(std::int32_t place) const { return tour_[at((place % n_ + n_) % n_)]; }

  void refresh() {
    ahead_[0] = back_[0] = 0;
    for (std::int32_t p = 0; p < n_; ++p) {
      const auto a = tour_[at(p)], b = tour_[at(p + 1 == n_ ? 0 : p + 1)];
      place_[at(a)] = p;
      ahead_[at(p) + 1] = ahead_[at(p)] + hop(a, b);
      back_[at(p) + 1] = back_[at(p)] + hop(b, a);
    }
  }

  // What reversing places first … last gains inside this range.
  std::int64_t turned_gain(std::int32_t first, std::int32_t last) const {
    return (ahead_[at(last)] - ahead_[at(first)]) - (back_[at(last)] - back_[at(first)]);
  }

  bool turn(std::int32_t first, std::int32_t last, std::vector<std::int32_t>& hosts) {
    if (first > last || (first == 0 && last == n_ - 1)) return false;
    const auto before = host(first - 1), after = host(last + 1), a = tour_[at(first)],
               b = tour_[at(last)];
    const auto gain =
        hop(before, a) + hop(b, after) - hop(before, b) - hop(a, after) + turned_gain(first, last);
    if (gain <= 0) return false;
    std::reverse(tour_.begin() + first, tour_.begin() + last + 1);
    refresh();
    for (const auto one : {before, after, a, b}) hosts.push_back(one);
    return true;
  }

  // Moves the stretch of `length` hosts that begins at a place between two neighbours elsewhere.
  bool insert(std::int32_t first, std::int32_t length, std::int32_t between,
              std::vector<std::int32_t>& hosts) {
    const std::int32_t last = first + length - 1;
    if (first < 0 || last >= n_ || (between >= first - 1 && between <= last) || length + 2 > n_)
      return false;
    if (first == 0 && between == n_ - 1) return false;
    const auto before = host(first - 1), after = host(last + 1), a = tour_[at(first)],
               b = tour_[at(last)];
    const auto left = host(between), right = host(between + 1);
    const auto freed = hop(before, a) + hop(b, after) - hop(before, after) + hop(left, right);
    const auto same = freed - hop(left, a) - hop(b, right);
    const auto other = freed - hop(left, b) - hop(a, right) + turned_gain(first, last);
    if (std::max(same, other) <= 0) return false;
    if (other > same) std::reverse(tour_.begin() + first, tour_.begin() + last + 1);
    if (between > last) {
      std::rotate(tour_.begin() + first, tour_.begin() + last + 1, tour_.begin() + between + 1);
    } else {
      std::rotate(tour_.begin() + between + 1, tour_.begin() + first, tour_.begin() + last + 1);
    }
    refresh();
    for (const auto one : {before, after, a, b, left, right}) hosts.push_back(one);
    return true;
  }

  bool improve_at(std::int32_t host, std::vector<std::int32_t>& hosts) {
    for (std::int32_t k = 0; k < near_count_; ++k) {
      const auto other = near_[at(host) * at(near_count_) + at(k)];
      const auto p = place_[at(host)], q = place_[at(other)];
      looked_ += 14;
      // Make `other` the successor or the predecessor of `host`.
      const auto low = std::min(p, q), high = std::max(p, q);
      if (turn(low + 1, high, hosts) || turn(low, high - 1, hosts)) return true;
      for (std::int32_t length = 1; length <= 3; ++length) {
        if (insert(p, length, q, hosts) || insert(p - length + 1, length, q, hosts) ||
            insert(p, length, q == 0 ? n_ - 1 : q - 1, hosts) ||
            insert(p - length + 1, length, q == 0 ? n_ - 1 : q - 1, hosts)) {
          return true;
        }
      }
    }
    return false;
  }

  std::span<const std::int64_t> hop_;
  std::int32_t n_, near_count_ = 0;
  std::vector<std::int32_t> tour_, place_, near_;
  std::vector<std::int64_t> ahead_, back_;
  std::int64_t looked_ = 0;
};

}  // namespace

std::vector<std::int32_t> tour_search(std::span<const std::int64_t> hop, std::int32_t hosts,
                                      std::span<const std::int32_t> start, std::uint64_t seed,
                                      std::int64_t work, const Progress& progress) {
  check_hops(hop, hosts);
  check_order(hosts, start);
  if (hosts < 4) return {start.begin(), start.end()};
  Tour tour(hop, hosts, start);
  Random random(seed);
  std::vector<std::int32_t> open(start.rbegin(), start.rend());
  tour.improve(open);
  auto best = tour.order();
  auto shortest = tour.length();
  std::int64_t used = 0;
  while (used + tour.looked() < work) {
    open = tour.bridge(random);
    tour.improve(open);
    if (tour.length() <= shortest) {
      if (tour.length() < shortest || tour.order() != best) best = tour.order();
      shortest = tour.length();
    } else {
      tour.set(best);
    }
    used += std::int64_t{3} * hosts;  // the prefix sums
    if (progress) progress(static_cast<double>(used + tour.looked()) / static_cast<double>(work));
  }
  return best;
}

}  // namespace tacos
