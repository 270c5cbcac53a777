// Spanning trees that together use a network as fully as any collective can.
//
// The problem. Each root sends to all members at a rate proportional to its demand. A packing gives every
// root trees (arborescences that span the members) whose weights sum up to its rate, and no link carries
// more than its bandwidth. What must enter a set X of nodes bounds the rate:
//     bandwidth into X  >=  rates of the roots outside X,   for every X that holds a member.
// By the theorems of Edmonds, and of Bang-Jensen, Frank and Jackson, the largest rate that these cuts
// allow is reached if every node that is not a member (a switch, or an NPU that only relays) has as much
// bandwidth out as in.
//
// The method. Bandwidths are scaled to whole numbers in which the rates are whole as well. Trees grow
// one after the other, hop by hop; a hop leads from a node of the tree over one link, or over a path through
// nodes that are not members, to a new member. A hop may carry as much as leaves
//     slack(X) = bandwidth left into X - rates left of the roots outside X - weight of the tree if it is
//                outside X
// at or above 0 for every X. Over a link that is one maximum flow; a path may also dip into sets that
// its ends are not in, so that what is left is checked for every member. A tree's weight is the least of its
// hops'; what its root has left then waits for another tree. Sets that were found narrow are remembered,
// and most hops that would cross them are refused without a flow.
//
// Among the hops that carry a good part of the weight, the one that arrives first is chosen, by latencies and by
// the time of an average chunk on the slowest link. So trees are shallow if the cuts allow it, there are few of
// them, and a NIC carries what only it can carry.
//
// A switch that can multicast is reached and left like a member: one chunk on the link into it goes on over all
// its links (tree_list.hpp). That is done where it carries more, or where only one root sends.
//
// Where some node that is not a member has less bandwidth out than in (or more), the growth may get stuck. Then the
// largest of 32 parts of the rates is taken at which it does not: `rate` says how far that is from the cuts.
//
// Cost: a tree takes about a flow per member, and one per member for each hop through switches.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct Forest {
  std::shared_ptr<const Routes> routes;
  std::vector<NodeId> root;             // of each tree
  std::vector<std::int64_t> weight;     // of each tree
  std::vector<std::int64_t> hop_begin;  // of each tree, then the number of hops
  std::vector<RouteId> hop;             // routes, the one into a node before those out of it
  std::vector<std::int32_t> depth;      // of each hop's end: hops from the root
  std::int64_t demand_weight = 0;       // the weights of a root's trees, for a demand of one
  // A tree of weight w carries w · unit_Bps / unit_parts · rate.
  std::int64_t unit_Bps = 1, unit_parts = 1;
  double rate = 1;       // below 1 where the cuts' optimum was missed
  double tolerance = 0;  // by which bandwidths were rounded down
  // If present, all trees are NPU 0's, and the others' are their images.
  std::optional<Symmetry> symmetry;
};

struct Demand {
  NodeId root;
  std::int64_t amount;
};

// Trees from the demands' roots to all members. Throws InfeasibleError naming a member that cannot be
// reached, std::invalid_argument for members or roots that are not NPUs.
//
// A hop through several switches takes all their links at once. Where all links are full, such hops cannot be
// arranged without gaps; so a share `slack` of the bandwidth of these links can be left unused.
Forest pack(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> members,
            std::span<const Demand> demands, double slack, const Progress& progress);

// The same trees where each link of their network stands for a path of another one: that of link l is
// links[begin[l]] up to links[begin[l + 1]].
Forest rerouted(const Forest& forest, const std::shared_ptr<const Topology>& topology,
                std::span<const std::int64_t> begin, std::span<const LinkId> links);

}  // namespace tacos
