#include "order/order.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;

// Index of a pair of hosts in a matrix.
std::size_t entry(std::int32_t hosts, std::int32_t i, std::int32_t j) {
  return static_cast<std::size_t>(i) * static_cast<std::size_t>(hosts) +
         static_cast<std::size_t>(j);
}

// SplitMix64, so that draws are the same with every standard library.
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

std::int64_t of_ring(std::int64_t sum, std::size_t count, std::int64_t slowest) {
  return std::max(sum / static_cast<std::int64_t>(count), slowest);
}

}  // namespace

void check(const OrderProblem& problem) {
  const std::size_t n = at(problem.hosts), pairs = n * n;
  if (problem.hosts < 1) invalid("an order needs at least one host");
  if (problem.latency.size() != pairs) invalid("latency must have a value for every pair of hosts");
  for (const auto& row : problem.bytes) {
    if (row.size() != pairs) invalid("bytes must have a value for every pair of hosts");
  }
  if (!problem.route_begin.empty()) {
    if (problem.route_begin.size() != pairs + 1)
      invalid("routes must have an entry for every pair of hosts");
    if (problem.link_bytes.size() != problem.bytes.size())
      invalid("link_bytes must have a row for every size");
    for (const auto& row : problem.link_bytes) {
      if (row.size() != at(problem.links)) invalid("link_bytes must have a value for every link");
    }
    for (std::size_t i = 0; i < pairs; ++i) {
      if (problem.route_begin[i] > problem.route_begin[i + 1]) invalid("routes must be in order");
    }
    if (problem.route_begin[0] != 0 ||
        problem.route_begin[pairs] != static_cast<std::int64_t>(problem.route_links.size())) {
      invalid("routes do not end where their links do");
    }
    for (const auto link : problem.route_links) {
      if (link < 0 || link >= problem.links) invalid("a route has link " + std::to_string(link));
    }
  }
  for (const auto& term : problem.terms) {
    if (term.src.empty() || term.src.size() != term.dst.size()) invalid("a term has no messages");
    if (at(term.size_class) >= problem.bytes.size()) invalid("a term has an unknown size");
    for (std::size_t i = 0; i < term.src.size(); ++i) {
      for (const auto place : {term.src[i], term.dst[i]}) {
        if (place < 0 || place >= problem.hosts)
          invalid("a message is at place " + std::to_string(place));
      }
      if (term.src[i] == term.dst[i]) invalid("a message leads to its own place");
    }
  }
}

namespace {

void check_order(std::int32_t hosts, std::span<const std::int32_t> order) {
  std::vector<char> seen(at(hosts));
  bool right = order.size() == at(hosts);
  for (const auto host : order) {
    right = right && host >= 0 && host < hosts && !seen[at(host)];
    if (right) seen[at(host)] = 1;
  }
  if (!right) invalid("an order must have every host once");
}

void check_hops(std::span<const std::int64_t> hop, std::int32_t hosts) {
  if (hosts < 1 || hop.size() != at(hosts) * at(hosts))
    invalid("hop must have a value for every pair of hosts");
}

// Times of a term's messages with the links that they share; keeps its arrays between calls.
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

}  // namespace

std::int64_t order_cost(const OrderProblem& problem, std::span<const std::int32_t> order) {
  check(problem);
  check_order(problem.hosts, order);
  return Evaluator(problem)(order);
}

// --- branch and bound -----------------------------------------------------------------------------

namespace {

class Branching {
 public:
  Branching(const OrderProblem& problem, std::span<const std::int32_t> start, std::int64_t nodes,
            const Progress& progress)
      : problem_(problem), evaluate_(problem), progress_(progress), budget_(nodes), nodes_(nodes) {
    best_.assign(start.begin(), start.end());
    best_cost_ = evaluate_(start);
    const auto n = at(problem.hosts);
    placed_.assign(n, -1);
    used_.assign(n, 0);
    closing_.assign(problem.terms.size(), std::vector<std::vector<std::size_t>>(n));
    for (std::size_t k = 0; k < problem.terms.size(); ++k) {
      const auto& term = problem.terms[k];
      for (std::size_t m = 0; m < term.src.size(); ++m) {
        closing_[k][at(std::max(term.src[m], term.dst[m]))].push_back(m);
      }
      least_.push_back(least(term));
    }
    load_.assign(problem.terms.size(), std::vector<std::int64_t>(at(problem.links)));
    partial_.assign(n + 1, std::vector<Partial>(problem.terms.size()));
  }

  ExactOrder run(bool fixed) {
    if (fixed) {
      const auto host = best_[0];
      place(0, host);
      const bool whole = problem_.hosts == 1 || descend(1);
      return {best_, best_cost_, whole};
    }
    const bool whole = descend(0);
    return {best_, best_cost_, whole};
  }

 private:
  struct Partial {
    std::int64_t sum = 0, slowest = 0, slowest_bytes = 0;
    std::size_t count = 0;
  };

  std::int64_t cost_of(const OrderTerm& term, std::size_t pair) const {
    return problem_.bytes[at(term.size_class)][pair] + (term.latency ? problem_.latency[pair] : 0);
  }

  std::int64_t least(const OrderTerm& term) const {
    std::int64_t result = problem_.hosts > 1 ? kFar : 0;
    for (std::int32_t i = 0; i < problem_.hosts; ++i) {
      for (std::int32_t j = 0; j < problem_.hosts; ++j) {
        if (i != j) result = std::min(result, cost_of(term, entry(problem_.hosts, i, j)));
      }
    }
    return result;
  }

  // Puts a host at a place; the messages that end there count from now on.
  void place(std::int32_t where, std::int32_t host) {
    placed_[at(where)] = host;
    used_[at(host)] = 1;
    auto& now = partial_[at(where) + 1];
    now = partial_[at(where)];
    for (std::size_t k = 0; k < problem_.terms.size(); ++k) {
      const auto& term = problem_.terms[k];
      for (const auto m : closing_[k][at(where)]) {
        const auto pair = entry(problem_.hosts, placed_[at(term.src[m])], placed_[at(term.dst[m])]);
        auto carried = problem_.bytes[at(term.size_class)][pair];
        now[k].sum += cost_of(term, pair);
        ++now[k].count;
        for_route(pair, [&](std::size_t link) {
          carried =
              std::max(carried, ++load_[k][link] * problem_.link_bytes[at(term.size_class)][link]);
        });
        now[k].slowest_bytes = std::max(now[k].slowest_bytes, carried);
        now[k].slowest =
            std::max(now[k].slowest, carried + (term.latency ? problem_.latency[pair] : 0));
      }
    }
  }

  void remove(std::int32_t where) {
    for (std::size_t k = 0; k < problem_.terms.size(); ++k) {
      const auto& term = problem_.terms[k];
      for (const auto m : closing_[k][at(where)]) {
        const auto pair = entry(problem_.hosts, placed_[at(term.src[m])], placed_[at(term.dst[m])]);
        for_route(pair, [&](std::size_t link) { --load_[k][link]; });
      }
    }
    used_[at(placed_[at(where)])] = 0;
  }

  template <typename Visit>
  void for_route(std::size_t pair, Visit visit) {
    if (problem_.route_begin.empty()) return;
    for (auto i = problem_.route_begin[pair]; i < problem_.route_begin[pair + 1]; ++i) {
      visit(at(problem_.route_links[static_cast<std::size_t>(i)]));
    }
  }

  std::int64_t at_least(std::int32_t places) const {
    std::int64_t total = 0;
    for (std::size_t k = 0; k < problem_.terms.size(); ++k) {
      const auto& term = problem_.terms[k];
      const auto& so_far = partial_[at(places)][k];
      const auto open = static_cast<std::int64_t>(term.src.size() - so_far.count);
      if (term.ring) {
        total += term.weight *
                 of_ring(so_far.sum + open * least_[k], term.src.size(), so_far.slowest_bytes);
      } else {
        total += term.weight * std::max(so_far.slowest, open > 0 ? least_[k] : 0);
      }
    }
    return total;
  }

  // Whether everything below was looked at or excluded.
  bool descend(std::int32_t where) {
    if (where == problem_.hosts) {
      if (const auto cost = evaluate_(placed_); cost < best_cost_) {
        best_cost_ = cost;
        best_ = placed_;
      }
      return true;
    }
    bool whole = true;
    for (std::int32_t host = 0; host < problem_.hosts; ++host) {
      if (used_[at(host)]) continue;
      if (--budget_ < 0) return false;
      if ((budget_ & 4095) == 0 && progress_) {
        progress_(1 - static_cast<double>(budget_) / static_cast<double>(nodes_));
      }
      place(where, host);
      if (at_least(where + 1) < best_cost_) whole = descend(where + 1) && whole;
      remove(where);
    }
    return whole;
  }

  const OrderProblem& problem_;
  Evaluator evaluate_;
  const Progress& progress_;
  std::int64_t budget_, nodes_;
  std::vector<std::int32_t> best_, placed_;
  std::int64_t best_cost_ = 0;
  std::vector<char> used_;
  std::vector<std::vector<std::vector<std::size_t>>>
      closing_;  // [term][place]: messages whose later end is there
  std::vector<std::int64_t> least_;
  std::vector<std::vector<std::int64_t>> load_;
  std::vector<std::vector<Partial>> partial_;  // [places filled][term]
};

}  // namespace

ExactOrder exact_order(const OrderProblem& problem, std::span<const std::int32_t> start, bool fixed,
                       std::int64_t nodes, const Progress& progress) {
  check(problem);
  check_order(problem.hosts, start);
  return Branching(problem, start, nodes, progress).run(fixed);
}

// --- tours ----------------------------------------------------------------------------------------

namespace {

// The hosts nearest to each host, both directions counted.
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

  // Improves until no move around the given hosts gains anything.
  void improve(std::vector<std::int32_t>& hosts) {
    while (!hosts.empty()) {
      const auto host = hosts.back();
      hosts.pop_back();
      while (improve_at(host, hosts)) {
      }
    }
  }

  // Two stretches that follow each other change places.
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

  // Hops inside places first … last, as they are and turned around.
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

// --- swaps ----------------------------------------------------------------------------------------

namespace {

// Values with their sum and maximum, each change in O(log n).
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

  // What late acceptance compares: weight · (maximum + mean) of every term.
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
  // Moves are counted too: where places have no messages, nothing is looked at.
  for (std::int64_t moves = 0; seating.looked() + moves < work; ++moves) {
    const auto turn = static_cast<std::size_t>(moves) % kMemory;
    auto p = random.below(n), q = random.below(n);
    if (random.below(2) ==
        0) {  // bring a near host to a place that this one exchanges messages with
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

// --- bounds ---------------------------------------------------------------------------------------

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
      // Half of the last direction keeps prices from swinging.
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
