// Workloads whose collectives are messages: computations and messages with dependencies, over links that are shared fairly.
//
// A rank runs one computation at a time, in the order in which they become ready; a pause leaves the
// rank free. A message starts when its send is ready and the earlier messages of its connection have left, and
// shares links with all other messages in flight. A send ends when its last byte has left. A receive ends when the message
// has arrived and the dependencies of the receive are complete.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/progress.hpp"

namespace tacos::simulation {

enum class LoweredNode : std::uint8_t { send, receive, compute, pause };

struct LoweredWorkload {
  std::span<const std::int32_t> rank;      // per node
  std::span<const std::uint8_t> kind;      // per node, a LoweredNode
  std::span<const std::int64_t> duration;  // per node, in picoseconds
  std::span<const std::int32_t> message;   // per node; -1 for computations
  std::span<const std::int64_t> dep_begin, dep;
  std::span<const std::int64_t> bytes;        // per message
  std::span<const std::int32_t> connection;   // per message
  std::span<const RouteId> connection_route;  // per connection
};

struct NodeTimes {
  std::vector<Time> start, end;  // per node
};

// Throws std::invalid_argument if the columns are inconsistent, or if nodes deadlock; the message names one of them.
NodeTimes run_workload(const LoweredWorkload& workload, const Routes& routes,
                       const Progress& progress);

}  // namespace tacos::simulation
