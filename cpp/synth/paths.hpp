// Paths for chunks that not all NPUs need: which NPU relays what, decided before any times.
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
// A tree grows from NPU to NPU: the next wanted NPU is joined by the cheapest path from any NPU that
// has the chunk by then. The time at which that NPU has it counts, and how long its links are taken by
// the branches it has, so that trees stay shallow where latency matters, double behind one port, and
// become chains where bandwidth counts.
//
// Chunks with one holder and one taker are laid several at a time from one search per holder, as few
// as the budget of searches asks for. Cost: a search is O(links · log nodes). A tree takes one; where it
// goes through switches, whose prices change for all behind them, one per taker.
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
  // How long it takes from a hop's start until the last NPU behind it has the chunk.
  std::vector<Time> remaining;
};

// The paths without detours, and second, where that makes the busiest link carry less, those with them:
// longer ways take time, which only a schedule can tell. Throws InfeasibleError naming an NPU that
// cannot reach another that wants its chunk.
std::vector<Paths> lay_paths(const std::shared_ptr<const Topology>& topology,
                             const Collective& collective, const GreedyOptions& options,
                             const Progress& progress);

}  // namespace tacos
