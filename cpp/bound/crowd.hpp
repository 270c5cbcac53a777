// A bound for all-reduces of groups: neighbouring members compete for the links between them.
//
// Every byte of an all-reduce among p disjoint sets of nodes crosses their borders 2(p - 1) times. Here the sets are
// k members, each alone, and all other nodes, with at least one more member among them. So every byte crosses the links of these members
// 2k times. If k members have b bytes per second in and out in total, of which c are on links between them, then
//     time >= 2k · size / (b - c),
// since a link between two of them counts once. The more of their links lead to each other, the higher the bound: the
// bytes of a member that leave over a neighbour's links have to leave the neighbour, too.
//
// The members are found by peeling: beginning with all, the member with the most bandwidth to the other nodes is
// removed, one after another, and the best of these sets is kept (M. Charikar's method for dense subgraphs).
#pragma once

#include <span>

#include "bound/parts.hpp"
#include "model/topology.hpp"

namespace tacos {

// One set for each of the members that were found, and a set of all other nodes; no sets if there are fewer than three members.
Parts crowd(const Topology& topology, std::span<const NodeId> members);

}  // namespace tacos
