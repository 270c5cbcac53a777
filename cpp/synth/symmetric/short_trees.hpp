// The jobs of an all-gather along trees of shortest paths, as symmetric.hpp describes them; a Clock runs them.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "synth/symmetric/machines.hpp"

namespace tacos::symmetric {

class ShortTrees {
 public:
  // Piece k is at its source from released[k] on.
  ShortTrees(const Group& group, Clock& clock, std::vector<Time> released)
      : clock_(clock),
        machines_(clock.machines),
        released_(std::move(released)),
        pieces_(released_.size()),
        unreleased_(pieces_),
        items_(at(group.order() - 1) * pieces_),
        open_(items_),
        parent_(at(group.order()) * pieces_),
        by_(at(group.order()) * pieces_),
        is_released_(pieces_, 0),
        ready_(machines_.size()),
        by_move_(machines_.size()),
        turn_(machines_.size()) {
    std::iota(by_move_.begin(), by_move_.end(), 0);
    std::stable_sort(by_move_.begin(), by_move_.end(), [&](std::size_t a, std::size_t b) {
      return machines_[a].by < machines_[b].by;
    });
    for (std::size_t i = 0; i < by_move_.size(); ++i) turn_[by_move_[i]] = i;
    find_ways(group);
    choose_machines();
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

 private:
  // A machine that brings chunks to an NPU, and the NPU that they come from.
  struct Way {
    std::size_t machine;
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

  Time takes(std::size_t m) const { return machines_[m].time + clock_.delay; }

  // Distances from NPU 0, and the last steps of all shortest paths.
  void find_ways(const Group& group) {
    distance_.assign(at(group.order()), kNever);
    ways_.resize(at(group.order()));
    using Visit = std::pair<Time, NodeId>;
    std::priority_queue<Visit, std::vector<Visit>, std::greater<>> visits;
    distance_[0] = 0;
    visits.emplace(0, 0);
    while (!visits.empty()) {
      const auto [distance, u] = visits.top();
      visits.pop();
      if (distance > distance_[at(u)]) continue;
      order_.push_back(u);
      for (const std::size_t m : by_move_) {
        for (const auto& forth : machines_[m].forth) {
          const NodeId v = forth(u);
          const Time through = distance + takes(m);
          if (through > distance_[at(v)]) continue;
          if (through < distance_[at(v)]) {
            ways_[at(v)].clear();
            distance_[at(v)] = through;
            visits.emplace(through, v);
          }
          ways_[at(v)].push_back({m, u});
        }
      }
    }
    if (order_.size() < at(group.order())) clock_.stuck();
  }

  // Chooses a way for every item. Items at the same distance are sent at about the same time, so
  // the machines' loads are balanced distance by distance.
  void choose_machines() {
    std::vector<Time> load(machines_.size(), 0);
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
    by_[item] = way.machine;
  }

  void balance(std::vector<std::size_t>& level, std::vector<Time>& load) {
    std::stable_sort(level.begin(), level.end(),
                     [&](std::size_t a, std::size_t b) { return ways(a).size() < ways(b).size(); });
    std::vector<std::vector<std::size_t>> taken(machines_.size());
    for (const auto item : level) {
      // Ties go to other machines for each piece, so that the trees of the pieces differ.
      const auto turn = [&](const Way& way) {
        const auto count = machines_.size();
        return (turn_[way.machine] + count - item % pieces_ % count) % count;
      };
      const auto& way =
          *std::min_element(ways(item).begin(), ways(item).end(), [&](const Way& a, const Way& b) {
            return std::pair(load[a.machine], turn(a)) < std::pair(load[b.machine], turn(b));
          });
      take(item, way);
      load[way.machine] += machines_[way.machine].period;
      taken[way.machine].push_back(item);
    }
    while (relieve(load, taken)) continue;
  }

  // Moves an item from the machine with the highest load to another, which may pass one of its own on to a third, and so
  // on; returns whether that was possible.
  bool relieve(std::vector<Time>& load, std::vector<std::vector<std::size_t>>& taken) {
    struct Step {
      std::size_t machine, from,
          position;  // the item at `position` of step `from`'s machine moves to `machine`
      Way way;
    };
    const auto busiest =
        *std::max_element(by_move_.begin(), by_move_.end(),
                          [&](std::size_t a, std::size_t b) { return load[a] < load[b]; });
    std::vector<Step> steps{{busiest, 0, 0, {}}};
    std::vector<std::uint8_t> seen(machines_.size(), 0);
    seen[busiest] = 1;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const auto m = steps[s].machine;
      if (load[m] + machines_[m].period < load[busiest]) {
        load[busiest] -= machines_[busiest].period;
        load[m] += machines_[m].period;
        for (; s > 0; s = steps[s].from) {
          auto& from = taken[steps[steps[s].from].machine];
          const auto item = from[steps[s].position];
          from[steps[s].position] = from.back();
          from.pop_back();
          take(item, steps[s].way);
          taken[steps[s].machine].push_back(item);
        }
        return true;
      }
      for (std::size_t i = 0; i < taken[m].size(); ++i) {
        for (const auto& way : ways(taken[m][i])) {
          if (!std::exchange(seen[way.machine], 1)) steps.push_back({way.machine, s, i, way});
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
  const std::vector<Machine>& machines_;
  std::vector<Time> released_;
  std::size_t pieces_, unreleased_, items_, open_;
  Time now_ = 0;
  std::vector<Time> distance_;  // of each NPU from NPU 0
  std::vector<std::vector<Way>> ways_;
  std::vector<NodeId> order_;  // NPUs by distance
  // Of each item, which is a piece at an NPU: the item it comes from, the machine that brings it, the time until all behind it
  // have the piece if nothing waits, and their number.
  std::vector<std::size_t> parent_, by_;
  std::vector<Time> tail_;
  std::vector<std::size_t> behind_;
  std::vector<std::size_t> child_begin_, child_;  // where the children of each item are listed
  std::vector<std::uint8_t> is_released_;
  std::vector<std::priority_queue<Offer>> ready_;  // per machine
  // Machines by their moves, and the place of each among them: the trees do not depend on the order of a network's links.
  std::vector<std::size_t> by_move_, turn_;
};

}  // namespace tacos::symmetric
