// The greedy engine event by event, for any network; see greedy.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "model/collective.hpp"
#include "model/routes.hpp"
#include "support/progress.hpp"
#include "synth/greedy.hpp"
#include "synth/paths.hpp"

namespace tacos {

// Transfers in the order in which they start; equal starts have equal steps.
struct TimedMoves {
  std::vector<RouteId> route;
  std::vector<ChunkId> chunk;
  std::vector<std::int32_t> step;
  std::vector<Time> start;
};

// Matches chunks that all NPUs need to `routes`. If routes have several legs, the times assume that no chunk waits
// between them. Chunks of `typical_bytes` are handled fastest.
TimedMoves greedy_events(const Routes& routes, const Collective& collective,
                         std::int64_t typical_bytes, const GreedyOptions& options,
                         const Progress& progress);

// Sends chunks along their paths, those with the longest remaining path first.
TimedMoves greedy_events(const Paths& paths, const Collective& collective,
                         std::int64_t typical_bytes, const GreedyOptions& options,
                         const Progress& progress);

}  // namespace tacos
