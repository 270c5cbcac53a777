#include "synth/forest/balance.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "graph/best_first.hpp"
#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos::forest {

namespace {

constexpr std::size_t kOften = 1 << 16;  // steps after which work is counted (chosen)

}  // namespace

Balance::Balance(const Translations& translations, const Hops& hops, std::int32_t count,
                 std::vector<Time> cost, std::vector<Time> time)
    : translations_(translations),
      hops_(hops),
      npus_(at(hops.routes->topology().npus())),
      count_(count),
      cost_(std::move(cost)),
      time_(std::move(time)),
      load_(cost_.size(), 0),
      reached_(at(count) * npus_),
      role_(reached_.size()) {
  for (NodeId v = 0; at(v) < npus_; ++v) negative_.push_back(translations.minus(0, v));
  plant();
}

void Balance::plant() {
  // Start with the fastest paths, for all trees.
  BestFirst<Time, NoMark> search(static_cast<NodeId>(npus_));
  std::vector<NodeId> order;
  search.start(0, 0);
  while (const auto node = search.next()) {
    const Time time = search.key(*node);
    if (*node != 0) order.push_back(*node);
    for (std::size_t how = 0; how < hops_.classes.size(); ++how) {
      for (const NodeId by : hops_.classes[how].by) search.offer(sum(*node, by), time + time_[how]);
    }
  }
  if (order.size() + 1 < npus_) throw InfeasibleError("an NPU cannot be reached from npu 0");
  looked_at_ += at(count_ + 1) * order.size() * hops_.classes.size();
  for (std::int32_t tree = 0; tree < count_; ++tree) {
    for (const NodeId node : order) {
      Reached best;
      Time lowest = 0;
      for (std::size_t how = 0; how < hops_.classes.size(); ++how) {
        const auto& way = hops_.classes[how];
        Time fullest = 0;
        for (const auto orbit : way.orbits) {
          fullest = std::max(fullest, busy(at(orbit)) + cost_[at(orbit)]);
        }
        if (best.how >= 0 && fullest >= lowest) continue;
        for (std::size_t i = 0; i < way.by.size(); ++i) {
          const NodeId parent = translations_.minus(node, way.by[i]);
          if (search.key(parent) + time_[how] != search.key(node)) continue;
          best = {static_cast<std::int32_t>(how), static_cast<std::int32_t>(i), parent,
                  search.key(node)};
          lowest = fullest;
          break;
        }
      }
      reached(tree, node) = best;
      count(best.how, 1);
    }
  }
}

Time Balance::busiest() const {
  Time most = 0;
  for (std::size_t orbit = 0; orbit < load_.size(); ++orbit) most = std::max(most, busy(orbit));
  return most;
}

void Balance::relieve(Time enough, const Progress& progress) {
  std::vector<Change> changes;
  for (;;) {
    if (progress) progress(0);
    progress.spend(static_cast<double>(std::exchange(looked_at_, 0)) * work::kStep);
    std::size_t fullest = 0;
    for (std::size_t orbit = 1; orbit < load_.size(); ++orbit) {
      if (busy(orbit) > busy(fullest)) fullest = orbit;
    }
    if (busy(fullest) <= enough) return;
    changes.clear();
    for (std::int32_t tree = 0; tree < count_; ++tree) {
      for (NodeId node = 1; at(node) < npus_; ++node) offer(tree, node, fullest, changes);
      looked_at_ += npus_;
      if (looked_at_ > kOften) {
        progress.spend(static_cast<double>(std::exchange(looked_at_, 0)) * work::kStep);
      }
    }
    std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return std::tie(a.arrival, a.tree, a.parent, a.node, a.how) <
             std::tie(b.arrival, b.tree, b.parent, b.node, b.how);
    });
    bool changed = false;
    std::vector<std::uint8_t> renew(at(count_), 0);
    std::fill(role_.begin(), role_.end(), Role::open);
    for (const auto& change : changes) {
      if (busy(fullest) < busiest() || busy(fullest) <= enough) break;
      // Changed nodes rely on this node's present parent and arrival, so these are fixed from now on.
      auto& role = role_[at(change.tree) * npus_ + at(change.node)];
      auto& above = role_[at(change.tree) * npus_ + at(change.parent)];
      if (role != Role::open || above == Role::changed) continue;
      auto& now = reached(change.tree, change.node);
      const auto& used = hops_.classes[at(now.how)].orbits;
      if (std::find(used.begin(), used.end(), static_cast<std::int32_t>(fullest)) == used.end() ||
          !fits(change.how, busy(fullest)) || descends(change.tree, change.parent, change.node)) {
        continue;
      }
      count(now.how, -1);
      count(change.how, 1);
      now = {change.how, change.which, change.parent, change.arrival};
      role = Role::changed;
      above = Role::kept;
      renew[at(change.tree)] = 1;
      changed = true;
    }
    if (!changed) return;
    for (std::int32_t tree = 0; tree < count_; ++tree) {
      if (renew[at(tree)]) shorten(tree);
    }
  }
}

// Offers other hops into a node that now uses the busiest orbit: of each class, the one that arrives first.
void Balance::offer(std::int32_t tree, NodeId node, std::size_t fullest,
                    std::vector<Change>& changes) {
  const auto has = [&](std::int32_t how) {
    const auto& orbits = hops_.classes[at(how)].orbits;
    return std::find(orbits.begin(), orbits.end(), static_cast<std::int32_t>(fullest)) !=
           orbits.end();
  };
  if (!has(reached(tree, node).how)) return;
  for (std::int32_t how = 0; at(how) < hops_.classes.size(); ++how) {
    if (has(how) || !fits(how, busy(fullest))) continue;
    Change best{0, tree, node, how, -1, -1};
    const auto& way = hops_.classes[at(how)];
    looked_at_ += way.by.size();
    for (std::size_t i = 0; i < way.by.size(); ++i) {
      const NodeId parent = translations_.minus(node, way.by[i]);
      const Time then = reached(tree, parent).arrival + time_[at(how)];
      if (best.which >= 0 && std::pair(then, parent) >= std::pair(best.arrival, best.parent)) {
        continue;
      }
      if (descends(tree, parent, node)) continue;
      best.arrival = then;
      best.which = static_cast<std::int32_t>(i);
      best.parent = parent;
    }
    if (best.which >= 0) changes.push_back(best);
  }
}

bool Balance::descends(std::int32_t tree, NodeId node, NodeId from) const {
  for (; node > 0 && node != from; ++looked_at_) node = reached(tree, node).parent;
  return node == from;
}

// Whether one more hop of a class leaves all its orbits below `below`.
bool Balance::fits(std::int32_t how, Time below) const {
  return std::ranges::all_of(hops_.classes[at(how)].orbits, [&](std::int32_t orbit) {
    return busy(at(orbit)) + cost_[at(orbit)] < below;
  });
}

void Balance::count(std::int32_t how, std::int64_t by) {
  for (const auto orbit : hops_.classes[at(how)].orbits) load_[at(orbit)] += by;
}

// Finds the fastest paths in which every node keeps its class.
void Balance::shorten(std::int32_t tree) {
  BestFirst<Time, NoMark> search(static_cast<NodeId>(npus_));
  search.start(0, 0);
  while (const auto node = search.next()) {
    const Time time = search.key(*node);
    for (std::size_t how = 0; how < hops_.classes.size(); ++how) {
      const Time then = time + time_[how];
      const auto& by = hops_.classes[how].by;
      looked_at_ += by.size();
      for (std::size_t i = 0; i < by.size(); ++i) {
        const NodeId to = sum(*node, by[i]);
        auto& there = reached(tree, to);
        if (at(there.how) != how || !search.offer(to, then)) continue;
        there = {there.how, static_cast<std::int32_t>(i), *node, then};
      }
    }
  }
}

std::vector<Balance::Step> Balance::tree(std::int32_t number) const {
  std::vector<NodeId> order(npus_ - 1);
  std::iota(order.begin(), order.end(), NodeId{1});
  std::stable_sort(order.begin(), order.end(), [&](NodeId a, NodeId b) {
    return reached(number, a).arrival < reached(number, b).arrival;
  });
  std::vector<Step> result;
  for (const NodeId node : order) {
    const auto& here = reached(number, node);
    result.push_back({here.parent, node, hops_.classes[at(here.how)].routes[at(here.which)]});
  }
  return result;
}

}  // namespace tacos::forest
