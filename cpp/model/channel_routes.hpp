// The routes of programs: which links the channels between two NPUs take.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "model/routes.hpp"
#include "support/progress.hpp"

namespace tacos {

// The routes that the channels between two NPUs take in turn, starting with channel 0: their parallel links or, if both
// plug into several switches, the two links through each of the fastest switches. Empty if there are fewer than two
// such routes; then all channels take the default path.
std::vector<std::vector<LinkId>> channel_routes(const Topology& topology, NodeId src, NodeId dst);

// The routes of the channels between some pairs of NPUs, as one table.
class ChannelRoutes {
 public:
  // The pairs are keys (support/pairs.hpp) in any order. Throws InfeasibleError naming a pair that is not connected.
  ChannelRoutes(const std::shared_ptr<const Topology>& topology, std::vector<std::uint64_t> pairs,
                const Progress& progress);

  const std::shared_ptr<const Routes>& routes() const { return routes_; }
  // The first of a pair's routes, and the one after its last.
  std::pair<RouteId, RouteId> all(std::uint64_t pair) const;
  RouteId of(NodeId src, NodeId dst, std::int32_t channel) const;

 private:
  std::vector<std::uint64_t> pairs_;  // sorted
  std::vector<RouteId> first_;        // of each pair
  std::shared_ptr<const Routes> routes_;
};

// The same table with each route between two NPUs replaced by the one that their messages take. A route that channels
// take stays, and so do trees.
Routes message_routes(const Routes& routes, const Progress& progress);

}  // namespace tacos
