// MultiTree (J. Huang et al., ISCA 2021): spanning trees that grow together, without contention.
//
// Time is divided into steps, and in a step every link carries at most one message. The trees take turns, and each step
// begins with another tree. In its turn, a tree adds one member, over links that are still free in this step, to a node
// that joined in an earlier step: nodes are tried in the order in which they joined, and the member with the fewest hops
// is chosen. When no tree can grow any more, the next step begins with all links free. A hop leads from member to member,
// through switches and NPUs that are not members of the tree.
//
// A tree's nodes whose neighbours have all joined are not asked again, so on direct networks a member
// costs about one look at the links of the tree's rim; through switches, one look at their ports.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/progress.hpp"

namespace tacos {

// The trees' edges in the order in which they were added, hence by step.
struct Trees {
  std::shared_ptr<const Routes> routes;
  std::vector<std::int32_t> tree, step;
  std::vector<RouteId> route;
};

// Tree t has the root roots[t] and leads to members[member_begin[t]] up to member_begin[t + 1]. Throws
// InfeasibleError naming a member that its root cannot reach.
Trees multitree(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> roots,
                std::span<const std::int64_t> member_begin, std::span<const NodeId> members,
                const Progress& progress);

}  // namespace tacos
