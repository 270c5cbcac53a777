// Trees as the columns of a forest.
//
// Trees grow over NPUs and over switches that can multicast. Transfers of a schedule begin and end
// at NPUs, so a hop from an NPU to such a switch and the hops from the switch to others become one route
// with several ends. Switches that lead to no NPU are removed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/port_routes.hpp"
#include "synth/forest/packing.hpp"
#include "synth/path_table.hpp"

namespace tacos::forest {

class TreeList {
 public:
  explicit TreeList(std::shared_ptr<const Topology> topology);

  // Hops are paths; the one into a node precedes those out of it.
  void add(NodeId root, std::int64_t weight, std::span<const std::vector<LinkId>> hops);

  // The load of all trees on each link.
  const std::vector<std::int64_t>& load() const { return load_; }
  // The columns of trees and routes; the units are the caller's.
  Forest forest() &&;

 private:
  // Finds the hops of a tree that lead to NPUs, and the hops that leave each switch.
  void survey(std::span<const std::vector<LinkId>> hops);
  // Builds the route over a first path and, from the switch at its end, to all NPUs behind it.
  void branch(std::vector<LinkId> path, std::span<const std::vector<LinkId>> hops);
  // Removes links from the route that lead to none of its ends.
  void prune(std::span<const NodeId> ends);
  // Removes loops from a path that passes a switch twice.
  std::vector<LinkId> without_loops(std::span<const LinkId> path) const;
  bool passes_npus(std::span<const LinkId> path) const;
  bool collides(std::span<const LinkId> path) const;

  std::shared_ptr<const Topology> topology_;
  PathTable table_;
  PortRoutes ports_;
  Forest forest_;
  std::int64_t weight_ = 0;
  std::vector<std::int64_t> load_;
  std::vector<std::int32_t> depth_;                // per NPU, in the current tree
  std::vector<std::uint8_t> leads_, in_route_;     // per node
  std::vector<std::vector<std::size_t>> leaving_;  // hops per switch
  std::vector<LinkId> route_;
};

}  // namespace tacos::forest
