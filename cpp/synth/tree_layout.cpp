#include "synth/tree_layout.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos {

namespace {

using Price = std::pair<std::int64_t, std::int64_t>;

std::int64_t cube(std::int64_t load) { return load * load * load; }

class Search {
 public:
  Search(const TreeLayout& problem, const Routes& routes)
      : problem_(problem),
        routes_(routes),
        n_(problem.parent.size()),
        load_(problem.weight.size(), 0),
        below_(n_) {
    for (std::size_t p = 1; p < n_; ++p) below_[at(problem.parent[p])].push_back(p);
  }

  // Improves the layout as far as the trials reach; returns its price.
  Price improve(std::vector<std::int32_t>& place, std::int64_t& trials, const Progress& progress) {
    std::fill(load_.begin(), load_.end(), 0);
    price_ = {0, 0};
    for (std::size_t tree = 0; tree < place.size(); tree += n_) {
      for (std::size_t p = 1; p < n_; ++p) lay(&place[tree], p, 1);
    }
    const std::size_t first = problem_.fixed_root ? 1 : 0;
    for (Price before{-1, -1}; price_ != before && trials > 0;) {
      before = price_;
      for (std::size_t tree = 0; tree < place.size(); tree += n_) {
        for (std::size_t a = first; a < n_; ++a) {
          if (progress)
            progress(1.0 - static_cast<double>(trials) / static_cast<double>(problem_.trials));
          spend(progress);
          for (std::size_t b = a + 1; b < n_; ++b) {
            if (trials-- <= 0) {
              spend(progress);
              return price_;
            }
            const Price best = price_;
            swap_places(&place[tree], a, b);
            if (price_ >= best) swap_places(&place[tree], a, b);
          }
        }
      }
    }
    spend(progress);
    return price_;
  }

 private:
  void spend(const Progress& progress) {
    progress.spend(static_cast<double>(std::exchange(laid_, 0)) * work::kTry);
  }

  void swap_places(std::int32_t* place, std::size_t a, std::size_t b) {
    moved_.assign({a, b});
    moved_.insert(moved_.end(), below_[a].begin(), below_[a].end());
    moved_.insert(moved_.end(), below_[b].begin(), below_[b].end());
    std::sort(moved_.begin(), moved_.end());
    moved_.erase(std::unique(moved_.begin(), moved_.end()), moved_.end());
    for (const auto p : moved_) lay(place, p, -1);
    std::swap(place[a], place[b]);
    for (const auto p : moved_) lay(place, p, 1);
  }

  // Adds or removes the edge above place p.
  void lay(const std::int32_t* place, std::size_t p, std::int64_t sign) {
    if (p == 0) return;
    const auto child = at(place[p]), above = at(place[at(problem_.parent[p])]);
    for (const auto r : {child * n_ + above, above * n_ + child}) {
      ++laid_;
      for (const LinkId link : routes_.links(static_cast<RouteId>(r))) {
        auto& load = load_[at(link)];
        price_.first -= cube(load);
        load += sign * problem_.weight[at(link)];
        price_.first += cube(load);
        price_.second += sign;
      }
    }
  }

  const TreeLayout& problem_;
  const Routes& routes_;
  std::size_t n_;
  std::vector<std::int64_t> load_;
  std::vector<std::vector<std::size_t>> below_;
  std::vector<std::size_t> moved_;
  Price price_;
  std::size_t laid_ = 0;  // edges, since they were counted as work
};

// A Fisher-Yates shuffle with a linear congruential generator: the same on every machine.
void shuffle(std::span<std::int32_t> ranks, std::uint64_t& state) {
  for (std::size_t i = ranks.size(); i > 1; --i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::swap(ranks[i - 1], ranks[at((state >> 33) % i)]);
  }
}

void check(const TreeLayout& problem, const Routes& routes, std::span<const std::int32_t> place) {
  const auto n = problem.parent.size();
  const auto rank = [&](std::int32_t r) { return r >= 0 && at(r) < n; };
  if (n == 0 || place.size() % n != 0 || at(routes.count()) != n * n ||
      problem.weight.size() != at(routes.topology().links()) || !std::ranges::all_of(place, rank) ||
      !std::ranges::all_of(problem.parent.subspan(1), rank)) {
    invalid("a tree layout needs a parent and a rank for each place, and routes between all ranks");
  }
  if (std::ranges::any_of(problem.weight, [](std::int64_t w) { return w < 0 || w > 64; })) {
    invalid("a tree layout needs weights from 0 to 64");
  }
}

}  // namespace

std::vector<std::int32_t> lay_out(const TreeLayout& problem, const Routes& routes,
                                  std::span<const std::int32_t> place, const Progress& progress) {
  check(problem, routes, place);
  const auto n = problem.parent.size();
  Search search(problem, routes);
  auto trials = problem.trials;
  std::vector<std::int32_t> best(place.begin(), place.end());
  auto lowest = search.improve(best, trials, progress);
  auto start = best;
  for (std::uint64_t state = 0; trials > 0 && n > 2;) {
    for (std::size_t tree = 0; tree < place.size(); tree += n) {
      const std::size_t first = problem.fixed_root ? 1 : 0;
      shuffle(std::span(start).subspan(tree + first, n - first), state);
    }
    auto found = start;
    const auto price = search.improve(found, trials, progress);
    if (price < lowest) {
      lowest = price;
      best = std::move(found);
    }
  }
  return best;
}

}  // namespace tacos
