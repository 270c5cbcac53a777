#include <algorithm>

#include "order/cost.hpp"
#include "order/order.hpp"
#include "support/index.hpp"

namespace tacos {

using namespace ordering;

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

  // Puts a host at a place, and adds the messages whose ends are now both placed.
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

  // Returns whether the whole subtree was searched or excluded.
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
  // [term][place]: messages whose later end is at that place.
  std::vector<std::vector<std::vector<std::size_t>>> closing_;
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

}  // namespace tacos
