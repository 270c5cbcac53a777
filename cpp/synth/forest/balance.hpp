// Shallow trees of one NPU of a symmetric network that use all orbits of links equally.
//
// The initial trees use the fastest paths and, among equally fast ones, the least used orbits. Then, as
// long as the most loaded orbit can be relieved, a node is moved to another path: among those whose orbits
// stay below the most loaded one, the path that arrives first. The sorted loads decrease with every change,
// so this terminates.
#pragma once

#include <cstdint>
#include <vector>

#include "support/progress.hpp"
#include "synth/forest/translations.hpp"

namespace tacos::forest {

class Balance {
 public:
  // `count` trees from NPU 0, where a chunk takes `cost` of an orbit and a hop of a class takes `time`,
  // which is positive.
  Balance(const Translations& translations, const Hops& hops, std::int32_t count,
          std::vector<Time> cost, std::vector<Time> time);

  // Relieves the fullest orbits until none costs more than `enough`, or as far as possible.
  void relieve(Time enough, const Progress& progress);

  Time busiest() const;  // cost of the fullest orbit
  std::int32_t count() const { return count_; }

  struct Step {
    NodeId from, to;
    RouteId route;
  };
  // The hops of one tree, by arrival.
  std::vector<Step> tree(std::int32_t number) const;

 private:
  struct Reached {
    std::int32_t how = -1, which = 0;  // class, and number within it
    NodeId parent = -1;
    Time arrival = 0;
  };
  enum class Role : std::uint8_t { open, kept, changed };
  struct Change {
    Time arrival;
    std::int32_t tree;
    NodeId node;
    std::int32_t how, which;
    NodeId parent;
  };
  Reached& reached(std::int32_t tree, NodeId node) {
    return reached_[static_cast<std::size_t>(tree) * npus_ + static_cast<std::size_t>(node)];
  }
  const Reached& reached(std::int32_t tree, NodeId node) const {
    return reached_[static_cast<std::size_t>(tree) * npus_ + static_cast<std::size_t>(node)];
  }
  Time busy(std::size_t orbit) const { return load_[orbit] * cost_[orbit]; }
  void plant();
  bool descends(std::int32_t tree, NodeId node, NodeId from) const;
  bool fits(std::int32_t how, Time below) const;
  void count(std::int32_t how, std::int64_t by);
  void offer(std::int32_t tree, NodeId node, std::size_t fullest, std::vector<Change>& changes);
  void shorten(std::int32_t tree);
  NodeId sum(NodeId u, NodeId v) const {
    return translations_.minus(u, negative_[static_cast<std::size_t>(v)]);
  }

  const Translations& translations_;
  const Hops& hops_;
  std::size_t npus_;
  std::int32_t count_;
  std::vector<NodeId> negative_;       // of each NPU
  std::vector<Time> cost_;             // of one chunk, per orbit
  std::vector<Time> time_;             // of a hop, per class
  std::vector<std::int64_t> load_;     // chunks, per orbit
  std::vector<Reached> reached_;       // tree by tree
  std::vector<Role> role_;             // of each node while changes are made, tree by tree
  mutable std::size_t looked_at_ = 0;  // nodes and hops, since they were counted last
};

}  // namespace tacos::forest
