#include <algorithm>

#include "order/cost.hpp"
#include "order/neighbours.hpp"
#include "order/order.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos {

using namespace ordering;

namespace {

// Values with their sum and maximum; each change takes O(log n).
class Values {
 public:
  explicit Values(std::size_t count) : count_(count), tree_(2 * count) {}

  void set(std::size_t i, std::int64_t value) {
    sum_ += value - tree_[count_ + i];
    auto node = count_ + i;
    tree_[node] = value;
    for (node /= 2; node >= 1; node /= 2) {
      const auto larger = std::max(tree_[2 * node], tree_[2 * node + 1]);
      if (tree_[node] == larger) break;
      tree_[node] = larger;
    }
  }

  std::int64_t mark() const {
    return (count_ > 1 ? tree_[1] : tree_[count_]) + sum_ / static_cast<std::int64_t>(count_);
  }

 private:
  std::size_t count_;
  std::vector<std::int64_t> tree_;
  std::int64_t sum_ = 0;
};

struct Seat {
  std::int32_t term;
  std::int32_t message;
};

class Seating {
 public:
  Seating(const OrderProblem& problem, const std::vector<std::span<const std::int64_t>>& pair,
          std::span<const std::int32_t> start)
      : problem_(problem),
        pair_(pair),
        order_(start.begin(), start.end()),
        seats_(at(problem.hosts)) {
    for (std::size_t k = 0; k < problem.terms.size(); ++k) {
      const auto& term = problem.terms[k];
      values_.emplace_back(term.src.size());
      for (std::size_t m = 0; m < term.src.size(); ++m) {
        const Seat seat{static_cast<std::int32_t>(k), static_cast<std::int32_t>(m)};
        seats_[at(term.src[m])].push_back(seat);
        seats_[at(term.dst[m])].push_back(seat);
        value(seat);
      }
    }
  }

  const std::vector<std::int32_t>& order() const { return order_; }
  std::int64_t looked() const { return looked_; }

  void swap(std::int32_t p, std::int32_t q) {
    std::swap(order_[at(p)], order_[at(q)]);
    for (const auto place : {p, q}) {
      for (const auto seat : seats_[at(place)]) value(seat);
      looked_ += static_cast<std::int64_t>(seats_[at(place)].size());
    }
  }

  // The objective of late acceptance: the sum of weight · (maximum + mean) over all terms.
  std::int64_t mark() const {
    std::int64_t total = 0;
    for (std::size_t k = 0; k < values_.size(); ++k) {
      total += problem_.terms[k].weight * values_[k].mark();
    }
    return total;
  }

  // A place that exchanges messages with this one.
  std::int32_t partner(std::int32_t place, Random& random) const {
    const auto& seats = seats_[at(place)];
    if (seats.empty()) return place;
    const auto seat = seats[at(random.below(static_cast<std::int32_t>(seats.size())))];
    const auto& term = problem_.terms[at(seat.term)];
    const auto src = term.src[at(seat.message)];
    return src == place ? term.dst[at(seat.message)] : src;
  }

 private:
  void value(Seat seat) {
    const auto& term = problem_.terms[at(seat.term)];
    const auto where = entry(problem_.hosts, order_[at(term.src[at(seat.message)])],
                             order_[at(term.dst[at(seat.message)])]);
    const auto latency = term.latency ? problem_.latency[where] : 0;
    values_[at(seat.term)].set(at(seat.message), latency + pair_[at(term.size_class)][where]);
  }

  const OrderProblem& problem_;
  const std::vector<std::span<const std::int64_t>>& pair_;
  std::vector<std::int32_t> order_;
  std::vector<std::vector<Seat>> seats_;
  std::vector<Values> values_;
  std::int64_t looked_ = 0;
};

}  // namespace

std::vector<std::int32_t> place_search(const OrderProblem& problem,
                                       const std::vector<std::span<const std::int64_t>>& pair,
                                       std::span<const std::int32_t> start, std::uint64_t seed,
                                       std::int64_t work, const Progress& progress) {
  constexpr std::size_t kMemory = 400;  // marks that late acceptance remembers (chosen)
  check(problem);
  check_order(problem.hosts, start);
  if (pair.size() != problem.bytes.size()) invalid("pair must have a row for every size");
  for (const auto& row : pair) check_hops(row, problem.hosts);
  const auto n = problem.hosts;
  if (n < 2 || problem.terms.empty()) return {start.begin(), start.end()};
  std::vector<std::int64_t> near(problem.latency.begin(), problem.latency.end());
  for (std::size_t i = 0; i < near.size(); ++i) near[i] += pair[0][i];
  const auto near_count = std::min(n - 1, std::int32_t{12});
  const auto neighbours = near_hosts(near, n, near_count);
  Seating seating(problem, pair, start);
  Random random(seed);
  std::vector<std::int32_t> place_of(at(n));
  for (std::int32_t p = 0; p < n; ++p) place_of[at(seating.order()[at(p)])] = p;
  auto now = seating.mark(), least = now;
  auto best = seating.order();
  std::vector<std::int64_t> memory(kMemory, now);
  const auto try_swap = [&](std::int32_t p, std::int32_t q, std::int64_t limit) {
    const auto old = now;
    seating.swap(p, q);
    now = seating.mark();
    if (now > std::max(old, limit)) {
      seating.swap(p, q);
      now = old;
      return;
    }
    for (const auto place : {p, q}) place_of[at(seating.order()[at(place)])] = place;
  };
  // Moves are counted too, because moves of places without messages examine nothing.
  for (std::int64_t moves = 0; seating.looked() + moves < work; ++moves) {
    const auto turn = static_cast<std::size_t>(moves) % kMemory;
    auto p = random.below(n), q = random.below(n);
    // Bring a near host to a place that this one exchanges messages with.
    if (random.below(2) == 0) {
      const auto host = seating.order()[at(p)];
      const auto near_place = random.below(near_count);
      q = place_of[at(neighbours[at(host) * at(near_count) + at(near_place)])];
      const auto wanted = seating.partner(p, random);
      p = wanted == p ? q : wanted;
    }
    if (p != q) try_swap(p, q, memory[turn]);
    memory[turn] = std::min(memory[turn], now);
    if (now < least) {
      least = now;
      best = seating.order();
    }
    if (progress && (moves & 63) == 0) {
      progress(static_cast<double>(seating.looked()) / static_cast<double>(work));
    }
  }
  return best;
}

}  // namespace tacos
