// Paths for chunks that not all NPUs need: chooses the relays of each chunk, before any times.
//
// The problem. An all-to-all, a gather or a process group moves each chunk to one or a few NPUs, usually over
// one of many paths. The most loaded link limits the time, so the paths must share the load and cannot be
// chosen separately.
//
// The method. Every chunk gets the cheapest tree from its holders to the NPUs that want it, where a link
// costs its latency, its transmission time and a price that grows with the fourth power of what it
// carries already, relative to the busiest link. The first round routes all chunks one after another, with
// prices so low that they only decide between equally short paths; later rounds remove each chunk and route it
// again at the prices that the others cause. The round with the least loaded busiest link is kept.
// (Shortest paths under prices that rise steeply with the load are how fractional multicommodity flow is
// approximated; N. Garg and J. Könemann, FOCS 1998.)
//
// A tree grows from NPU to NPU: the next NPU that needs the chunk is joined by the cheapest path from any NPU that
// has it by then. The cost includes the time at which that NPU has the chunk, and how long its existing
// branches occupy its links. So trees are shallow if latency dominates, grow by doubling behind one port,
// and become chains if bandwidth dominates.
//
// Chunks with one holder and one destination are routed several at a time, with one search per holder, if the
// budget of searches requires it. Cost: a search is O(links · log nodes). A tree takes one search or, if it
// goes through switches, whose prices change for all NPUs behind them, one per destination.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/collective.hpp"
#include "model/routes.hpp"
#include "support/progress.hpp"
#include "synth/greedy.hpp"

namespace tacos {

struct Paths {
  Routes routes;
  // The hops of chunk c are begin[c] … begin[c + 1], ordered by the NPU they leave.
  std::vector<std::size_t> begin;
  std::vector<RouteId> route;
  // Per hop: the time from its start until the last NPU behind it has the chunk.
  std::vector<Time> remaining;
};

// The paths without detours and, if detours reduce the load of the busiest link, also those with detours. Longer
// paths take time, so only their schedules show which is better. Throws InfeasibleError, which names an NPU that
// cannot reach another that needs its chunk.
std::vector<Paths> lay_paths(const std::shared_ptr<const Topology>& topology,
                             const Collective& collective, const GreedyOptions& options,
                             const Progress& progress);

}  // namespace tacos
