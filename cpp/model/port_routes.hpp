// What switches do with a message between two ports: the topology's routing.
//
// An NPU chooses the link on which a message leaves, and the link on which it enters its destination. In between, every
// switch passes it on along paths of the fewest hops through switches, whatever their speed: along all of them, or along
// one of them.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "model/topology.hpp"

namespace tacos {

class PortRoutes {
 public:
  explicit PortRoutes(const Topology& topology) : topology_(topology) {}

  // Replaces a path at the end of `links`, which begins at position `begin`, by the route that a message takes from its
  // first to its last link; returns the kind of the route. A path through NPUs stays as it is.
  RouteKind replace(std::vector<LinkId>& links, std::size_t begin);

 private:
  // All links on paths of the fewest hops between two switches; each after those that feed it.
  const std::vector<LinkId>& between(NodeId from, NodeId to);
  void find_hops(NodeId from);
  bool several_paths(const std::vector<LinkId>& links, NodeId from) const;

  const Topology& topology_;
  NodeId from_ = -1;
  std::vector<std::int32_t> hops_;                 // from `from_` through switches, or -1
  std::map<NodeId, std::vector<LinkId>> between_;  // from `from_` to a switch
};

// The same table with each path through switches replaced by the route between its ports.
Routes port_routes(const Routes& routes);

}  // namespace tacos
