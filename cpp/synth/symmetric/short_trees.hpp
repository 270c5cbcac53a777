// The parcels of an all-gather along trees of shortest paths, as symmetric.hpp describes them; a Clock runs them.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/best_first.hpp"
#include "synth/symmetric/outlets.hpp"

namespace tacos::symmetric {

class ShortTrees {
 public:
  // Piece k is at its source from released[k] on.
  ShortTrees(const AbelianGroup& group, Clock& clock, std::vector<Time> released)
      : clock_(clock),
        outlets_(clock.outlets),
        released_(std::move(released)),
        pieces_(released_.size()),
        unreleased_(pieces_),
        items_(at(group.order() - 1) * pieces_),
        open_(items_),
        parent_(at(group.order()) * pieces_),
        by_(at(group.order()) * pieces_),
        is_released_(pieces_, 0),
        ready_(outlets_.size()),
        by_move_(outlets_.size()),
        turn_(outlets_.size()) {
    std::iota(by_move_.begin(), by_move_.end(), 0);
    std::stable_sort(by_move_.begin(), by_move_.end(),
                     [&](std::size_t a, std::size_t b) { return outlets_[a].by < outlets_[b].by; });
    for (std::size_t i = 0; i < by_move_.size(); ++i) turn_[by_move_[i]] = i;
    find_ways(group);
    choose_outlets();
    find_tails();
  }

  bool done() const { return open_ == 0; }
  double share() const { return 1.0 - static_cast<double>(open_) / static_cast<double>(items_); }

  // Releases the pieces that are due; returns when the next one is.
  Time release(Time now) {
    Time next = kNever;
    for (std::size_t k = 0; unreleased_ > 0 && k < pieces_; ++k) {
      if (released_[k] > now) {
        next = std::min(next, released_[k]);
      } else if (!std::exchange(is_released_[k], 1)) {
        offer_children(k);  // items 0 to `pieces_` - 1 are those of NPU 0
        --unreleased_;
      }
    }
    return next;
  }

  void arrive(const Sent& sent) { offer_children(at(sent.to) * pieces_ + at(sent.piece)); }

  void begin(Time now) { now_ = now; }

  bool start(std::size_t m) {
    if (ready_[m].empty()) return false;
    const auto item = ready_[m].top().item;
    ready_[m].pop();
    clock_.sent[m].push_back({static_cast<NodeId>(parent_[item] / pieces_),
                              static_cast<NodeId>(item / pieces_),
                              static_cast<std::int32_t>(item % pieces_), now_});
    --open_;
    return true;
  }

  std::size_t looked_at = 0;  // items and offers; the clock counts them as work

 private:
  // An outlet that brings chunks to an NPU, and the NPU that they come from.
  struct Way {
    std::size_t outlet;
    NodeId from;
  };
  // The item whose branch takes longest goes first; of equally long ones, the item with the most behind it.
  struct Offer {
    Time tail;
    std::size_t behind, item;
    bool operator<(const Offer& other) const {
      return std::tie(tail, behind, other.item) < std::tie(other.tail, other.behind, item);
    }
  };

  Time takes(std::size_t m) const { return outlets_[m].time + clock_.delay; }

  // Distances from NPU 0, and the last steps of all shortest paths.
  void find_ways(const AbelianGroup& group) {
    distance_.assign(at(group.order()), kNever);
    ways_.resize(at(group.order()));
    BestFirst<Time, NoMark> search(group.order());
    search.start(0, 0);
    while (const auto u = search.next()) {
      const Time distance = search.key(*u);
      order_.push_back(*u);
      distance_[at(*u)] = distance;
      for (const std::size_t m : by_move_) {
        looked_at += outlets_[m].forth.size();
        for (const auto& forth : outlets_[m].forth) {
          const NodeId v = forth(*u);
          const Time through = distance + takes(m);
          if (search.offer(v, through)) {
            ways_[at(v)].clear();
          } else if (through != search.key(v)) {
            continue;
          }
          ways_[at(v)].push_back({m, *u});
        }
      }
    }
    if (order_.size() < at(group.order())) clock_.stuck();
  }

  // Chooses a way for every item. Items at the same distance are sent at about the same time, so
  // the outlets' loads are balanced distance by distance.
  void choose_outlets() {
    std::vector<Time> load(outlets_.size(), 0);
    std::vector<std::size_t> level;
    for (std::size_t i = 1; i < order_.size();) {
      const Time distance = distance_[at(order_[i])];
      level.clear();
      for (; i < order_.size() && distance_[at(order_[i])] == distance; ++i) {
        for (std::size_t k = 0; k < pieces_; ++k) level.push_back(at(order_[i]) * pieces_ + k);
      }
      balance(level, load);
    }
  }

  const std::vector<Way>& ways(std::size_t item) const { return ways_[item / pieces_]; }

  void take(std::size_t item, const Way& way) {
    parent_[item] = at(way.from) * pieces_ + item % pieces_;
    by_[item] = way.outlet;
  }

  void balance(std::vector<std::size_t>& level, std::vector<Time>& load) {
    std::stable_sort(level.begin(), level.end(),
                     [&](std::size_t a, std::size_t b) { return ways(a).size() < ways(b).size(); });
    std::vector<std::vector<std::size_t>> taken(outlets_.size());
    for (const auto item : level) {
      // Ties go to other outlets for each piece, so that the trees of the pieces differ.
      const auto turn = [&](const Way& way) {
        const auto count = outlets_.size();
        return (turn_[way.outlet] + count - item % pieces_ % count) % count;
      };
      const auto& way =
          *std::min_element(ways(item).begin(), ways(item).end(), [&](const Way& a, const Way& b) {
            return std::pair(load[a.outlet], turn(a)) < std::pair(load[b.outlet], turn(b));
          });
      take(item, way);
      load[way.outlet] += outlets_[way.outlet].period;
      taken[way.outlet].push_back(item);
    }
    do looked_at += level.size() + outlets_.size();
    while (relieve(load, taken));
  }

  // Moves an item from the outlet with the highest load to another, which may pass one of its own on to a third, and so
  // on; returns whether that was possible.
  bool relieve(std::vector<Time>& load, std::vector<std::vector<std::size_t>>& taken) {
    struct Step {
      std::size_t outlet, from,
          position;  // the item at `position` of step `from`'s outlet moves to `outlet`
      Way way;
    };
    const auto busiest =
        *std::max_element(by_move_.begin(), by_move_.end(),
                          [&](std::size_t a, std::size_t b) { return load[a] < load[b]; });
    std::vector<Step> steps{{busiest, 0, 0, {}}};
    std::vector<std::uint8_t> seen(outlets_.size(), 0);
    seen[busiest] = 1;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const auto m = steps[s].outlet;
      if (load[m] + outlets_[m].period < load[busiest]) {
        load[busiest] -= outlets_[busiest].period;
        load[m] += outlets_[m].period;
        for (; s > 0; s = steps[s].from) {
          auto& from = taken[steps[steps[s].from].outlet];
          const auto item = from[steps[s].position];
          from[steps[s].position] = from.back();
          from.pop_back();
          take(item, steps[s].way);
          taken[steps[s].outlet].push_back(item);
        }
        return true;
      }
      for (std::size_t i = 0; i < taken[m].size(); ++i) {
        for (const auto& way : ways(taken[m][i])) {
          if (!std::exchange(seen[way.outlet], 1)) steps.push_back({way.outlet, s, i, way});
        }
      }
    }
    return false;
  }

  // Lists the children of all items, and how long the branch below each item takes.
  void find_tails() {
    child_begin_.assign(parent_.size() + 1, 0);
    const auto each_item = [&](const auto& visit) {
      for (auto v = order_.rbegin(); v != order_.rend() - 1; ++v) {
        for (std::size_t k = 0; k < pieces_; ++k) visit(at(*v) * pieces_ + k);
      }
    };
    each_item([&](std::size_t item) { ++child_begin_[parent_[item] + 1]; });
    std::partial_sum(child_begin_.begin(), child_begin_.end(), child_begin_.begin());
    child_.resize(items_);
    auto next = child_begin_;
    each_item([&](std::size_t item) { child_[next[parent_[item]]++] = item; });
    tail_.assign(parent_.size(), 0);
    behind_.assign(parent_.size(), 1);
    each_item([&](std::size_t item) {  // children come before their parents
      tail_[parent_[item]] = std::max(tail_[parent_[item]], tail_[item] + takes(by_[item]));
      behind_[parent_[item]] += behind_[item];
    });
  }

  void offer_children(std::size_t item) {
    for (auto i = child_begin_[item]; i < child_begin_[item + 1]; ++i) {
      const auto child = child_[i];
      ready_[by_[child]].push({tail_[child], behind_[child], child});
    }
  }

  Clock& clock_;
  const std::vector<Outlet>& outlets_;
  std::vector<Time> released_;
  std::size_t pieces_, unreleased_, items_, open_;
  Time now_ = 0;
  std::vector<Time> distance_;  // of each NPU from NPU 0
  std::vector<std::vector<Way>> ways_;
  std::vector<NodeId> order_;  // NPUs by distance
  // Of each item, which is a piece at an NPU: the item it comes from, the outlet that brings it, the time until all behind it
  // have the piece if nothing waits, and their number.
  std::vector<std::size_t> parent_, by_;
  std::vector<Time> tail_;
  std::vector<std::size_t> behind_;
  std::vector<std::size_t> child_begin_, child_;  // where the children of each item are listed
  std::vector<std::uint8_t> is_released_;
  std::vector<std::priority_queue<Offer>> ready_;  // per outlet
  // Outlets by their moves, and the place of each among them: the trees do not depend on the order of a network's links.
  std::vector<std::size_t> by_move_, turn_;
};

}  // namespace tacos::symmetric
