// Packs spanning trees that together reach the highest rate that the cuts of a network allow.
//
// The problem. Each root sends to all members at a rate proportional to its demand. A packing gives every
// root trees (arborescences that span the members) whose weights sum up to its rate, and no link carries
// more than its bandwidth. The data that must enter a set X of nodes bound the rate:
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
// at or above 0 for every X. Over a link that is one maximum flow. A path may also enter and leave sets that
// do not contain its ends, so the remaining slack is checked for every member. A tree's weight is the smallest of its
// hops; the rest of the root's demand needs another tree. Sets that were found narrow are kept,
// and reject most hops that would cross them without a flow.
//
// Among the hops that carry a good part of the weight, the one that arrives first is chosen, by latencies and by
// the time of an average chunk on the slowest link. So trees are shallow if the cuts allow it, there are few of
// them, and a NIC carries what only it can carry.
//
// A switch that can multicast is reached and left like a member: one chunk on the link into it leaves over all
// its links (tree_list.hpp). This is used if it gives a higher rate, or if only one root sends.
//
// If some node that is not a member has more or less bandwidth out than in, the growth may get stuck. Then the
// largest multiple of 1/32 of the rates at which it does not is used: `rate` is this share of what the cuts allow.
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
  std::vector<NodeId> root;             // per tree
  std::vector<std::int64_t> weight;     // per tree
  std::vector<std::int64_t> hop_begin;  // per tree, then the number of hops
  std::vector<RouteId> hop;             // routes; the one into a node precedes those out of it
  std::vector<std::int32_t> depth;      // per hop: hops from the root to its end
  std::int64_t demand_weight = 0;       // total weight of a root's trees, for a demand of one
  // A tree of weight w carries w · unit_Bps / unit_parts · rate.
  std::int64_t unit_Bps = 1, unit_parts = 1;
  double rate = 1;       // share of the rate that the cuts allow
  double tolerance = 0;  // relative error by which bandwidths were rounded down
  // If present, all trees belong to NPU 0, and those of the other NPUs are their images.
  std::optional<Symmetry> symmetry;
};

struct Demand {
  NodeId root;
  std::int64_t amount;
};

// Trees from the demands' roots to all members. Throws InfeasibleError, which names a member that cannot be
// reached, and std::invalid_argument for members or roots that are not NPUs.
//
// A hop through several switches uses all their links at once. If all links are full, such hops cannot be
// scheduled without gaps, so a share `slack` of the bandwidth of these links can be left unused.
Forest pack(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> members,
            std::span<const Demand> demands, double slack, const Progress& progress);

// The same trees with each link replaced by a path of another network: the path of link l is
// links[begin[l]] up to links[begin[l + 1]].
Forest rerouted(const Forest& forest, const std::shared_ptr<const Topology>& topology,
                std::span<const std::int64_t> begin, std::span<const LinkId> links);

}  // namespace tacos
