// Jobs: computations and messages that wait for one another, over links that are shared fairly.
//
// A rank computes one thing at a time, in the order in which computations become ready; a pause leaves the
// rank free. A message starts when its send is ready, goes through its connection after those before it, and
// shares links with all others in flight. A send ends with its last byte, a receive when the message is there
// and all that the receive waits for is done.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/progress.hpp"

namespace tacos::simulation {

enum class JobNode : std::uint8_t { send, receive, compute, pause };

struct Job {
  std::span<const std::int32_t> rank;      // per node
  std::span<const std::uint8_t> kind;      // per node, a JobNode
  std::span<const std::int64_t> duration;  // per node, in picoseconds
  std::span<const std::int32_t> message;   // per node; -1 for computations
  std::span<const std::int64_t> dep_begin, dep;
  std::span<const std::int64_t> bytes;        // per message
  std::span<const std::int32_t> connection;   // per message
  std::span<const RouteId> connection_route;  // per connection
};

struct JobTimes {
  std::vector<Time> start, end;  // per node
};

// Throws std::invalid_argument where the columns do not fit together, or where nodes wait for ever; the message names one.
JobTimes run_job(const Job& job, const Routes& routes, const Progress& progress);

}  // namespace tacos::simulation
