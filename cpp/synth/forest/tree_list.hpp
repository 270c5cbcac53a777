// Trees as the columns of a forest.
//
// Trees grow over NPUs and over switches that can multicast. A schedule knows only transfers that begin and end
// at NPUs: what leaves an NPU for such a switch, and what leaves the switch for others, becomes one route
// with several ends. Switches that lead nowhere are left out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "synth/forest/packing.hpp"
#include "synth/path_table.hpp"

namespace tacos::forest {

class TreeList {
 public:
  explicit TreeList(std::shared_ptr<const Topology> topology);

  // Hops are paths, the one into a node before those out of it.
  void add(NodeId root, std::int64_t weight, std::span<const std::vector<LinkId>> hops);

  // What all trees together put on each link.
  const std::vector<std::int64_t>& load() const { return load_; }
  // The columns of trees and routes; the units are the caller's.
  Forest forest() &&;

 private:
  // Which hops of a tree lead to NPUs, and those that leave each switch.
  void survey(std::span<const std::vector<LinkId>> hops);
  // The route over a first path and, from the switches that it ends at, on to all their NPUs.
  void branch(std::vector<LinkId> path, std::span<const std::vector<LinkId>> hops);
  // Takes out of the route what leads to none of its ends: all that left a switch had met the route before.
  void prune(std::span<const NodeId> ends);
  // Of a path that passes a switch twice, what is left without the way in between.
  std::vector<LinkId> without_loops(std::span<const LinkId> path) const;
  bool passes_npus(std::span<const LinkId> path) const;
  bool collides(std::span<const LinkId> path) const;

  std::shared_ptr<const Topology> topology_;
  PathTable table_;
  Forest forest_;
  std::int64_t weight_ = 0;
  std::vector<std::int64_t> load_;
  std::vector<std::int32_t> depth_;                // of each NPU in the present tree
  std::vector<std::uint8_t> leads_, in_route_;     // of each node
  std::vector<std::vector<std::size_t>> leaving_;  // hops of each switch
  std::vector<LinkId> route_;
};

}  // namespace tacos::forest
