// Trees for all-reduces, each of which carries sums up and results down.
//
// If every link has an opposite link of the same speed, a chunk whose sum goes up a tree and down the same tree
// uses both links of each of its hops once, wherever the root is. So owners need not be distributed evenly:
// only the number of trees over each pair of links matters. By Tutte and Nash-Williams, trees can be packed up
// to the narrowest of all partitions into connected sets, which is the bound of an all-reduce. On a mesh that
// is 1.5 times the rate of a reduce-scatter and an all-gather, which the corners limit.
//
// The method is Thorup's: each tree in turn uses the links that the trees before it used least, relative to
// their bandwidth. With many trees, usage approaches the optimum. Among links with about equal usage,
// those that keep the tree shallow are preferred; the root is in its middle.
//
// A switch that can multicast and reduce (NVLS, SHARP) is a node of the trees, which adds sums and copies results.
//
// Hops use one link, or a path through nodes that are not members, for which the method is a heuristic.
//
// Cost: O(E log V) for each tree.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "support/progress.hpp"
#include "synth/forest/packing.hpp"

namespace tacos {

// The same trees on the reversed network (for sums) and on the network, all of weight 1.
struct TwoWay {
  Forest up, down;
};

// `count` trees that span the members; the first ones are the same for any count. nullopt if a link has no opposite
// link. Throws InfeasibleError, which names a member that cannot be reached, and std::invalid_argument for
// members that are not NPUs.
std::optional<TwoWay> pack_two_way(const std::shared_ptr<const Topology>& topology,
                                   std::span<const NodeId> members, std::int64_t count,
                                   const Progress& progress);

}  // namespace tacos
