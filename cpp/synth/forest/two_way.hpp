// Trees for all-reduces, each of which carries sums up and results down.
//
// If every link has a link back of the same speed, a chunk whose sum goes up a tree and down the same tree
// uses both links of each of its hops once, wherever the root is. So owners need not be chosen evenly:
// what counts is how many trees a pair of links is in. By Tutte and Nash-Williams, trees can be packed up
// to the narrowest of all partitions into connected sets, which is the bound of an all-reduce; on a mesh that
// is half as much again as a reduce-scatter and an all-gather reach, which wait for the corners.
//
// The method is Thorup's: each tree in turn takes the links that the trees before it used least, in relation to
// their bandwidth. Usage comes close to the best possible as trees become many. Of links that are about as free,
// those that keep the tree low are taken; it is rooted in its middle.
//
// A switch that can multicast and reduce (NVLS, SHARP) is a node of the trees: sums join there, and results part.
//
// Hops use one link, or a path through nodes that are not members, for which the method is a heuristic.
//
// Cost: O(E log V) for each tree.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "support/progress.hpp"
#include "synth/forest/packing.hpp"

namespace tacos {

// The same trees on the reversed network (for sums) and on the network, all of weight 1.
struct TwoWay {
  Forest up, down;
};

// `count` trees that span the members; the first ones are the same for any count. None where a link has none that
// leads back. Throws InfeasibleError naming a member that cannot be reached, std::invalid_argument for
// members that are not NPUs.
std::optional<TwoWay> pack_two_way(const std::shared_ptr<const Topology>& topology,
                                   std::span<const NodeId> members, std::int64_t count,
                                   const Progress& progress);

}  // namespace tacos
