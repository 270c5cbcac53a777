// How far chunks have to travel: the longest of the shortest paths.
#pragma once

#include <span>

#include "model/collective.hpp"
#include "model/topology.hpp"
#include "support/progress.hpp"

namespace tacos {

struct Farthest {
  Time time = 0;
  NodeId from = -1, to = -1;
  bool all = true;  // whether all distances were measured
};

// Facts about the network: whether one NPU represents all, whether it is too large for all shortest
// paths, and for each node the first node with the same neighbours.
struct Likeness {
  bool symmetric = false, large = false;
  std::span<const NodeId> twin;
};

// Shortest paths from one NPU of each class, up to a budget.
Farthest farthest(const Topology& topology, const Collective& collective, const Likeness& likeness,
                  const Progress& progress);

[[noreturn]] void unreachable(const Topology& topology, NodeId from, NodeId to);

}  // namespace tacos
