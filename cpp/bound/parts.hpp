// Disjoint sets of nodes: the boxes, racks, rows and planes of a network, or sets that a search found.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bound/approaches.hpp"
#include "bound/exits.hpp"
#include "model/topology.hpp"

namespace tacos {

struct Parts {
  std::int32_t count = 0;
  std::vector<std::int32_t> of;  // per node: its set, or -1

  // Makes parts of sets of nodes; a set that overlaps a larger one is dropped. Another switch joins a set if
  // that reduces the bandwidth out of the set.
  static Parts of_sets(const Topology& topology, std::vector<std::vector<NodeId>> sets);

  std::vector<NodeId> nodes(std::int32_t set) const;
  // The bandwidth out of (or into) each set.
  std::vector<double> bandwidth(const Topology& topology, bool leaving) const;
  // The links out of (or into) all sets.
  Exits exits(const Topology& topology, const Approaches& approaches, bool leaving) const;

  // Keeps the sets that contain a member; all other nodes that can add or copy join one of them.
  void gather_members(const Topology& topology, std::span<const NodeId> members);

  void join_switches(const Topology& topology);
};

// The subsets of a topology's dimensions (one flag per dimension) that make at least two blocks.
std::vector<std::vector<bool>> dimension_choices(const Topology& topology);

// The blocks of NPUs that differ in the chosen dimensions only, with their switches.
Parts blocks(const Topology& topology, const std::vector<bool>& chosen);

// The parts that stay connected over links that are faster than a bandwidth: boxes, even where they differ; one choice for
// each of the widest gaps between the bandwidths of links.
std::vector<Parts> joined_faster(const Topology& topology);

// The block of NPU 0, in time proportional to its size.
std::vector<NodeId> block_of_first(const Topology& topology, const std::vector<bool>& chosen);

// The lower half of a dimension, with its switches.
std::vector<std::uint8_t> half_along(const Topology& topology, std::size_t dimension);

// The set moved by the coordinates of `by`.
std::vector<NodeId> translated(const Topology& topology, std::span<const NodeId> npus, NodeId by);

// Facts about a symmetric network along one of its dimensions.
struct Line {
  Time farthest_ps = 0;  // to the farthest NPU that differs from NPU 0 in this dimension only
  NodeId farthest = 0;
  std::int64_t hops = 0;  // sum from NPU 0 to all those NPUs; NPU to switch to NPU is one hop
  std::int64_t bandwidth_Bps = 0, first_Bps = 0;  // of NPU 0's links along it: their sum, the first
  bool even = true;                               // whether their bandwidths are equal
};

// The lines of a symmetric topology through NPU 0, in time proportional to their lengths; empty where
// some link changes two coordinates at once, so that the network is not a product of lines.
std::vector<Line> lines(const Topology& topology, std::int64_t bytes);

}  // namespace tacos
