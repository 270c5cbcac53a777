// Start times for chunks on trees, by priority: at every moment each free port takes the most urgent of the
// available chunks.
//
// First come, first served (retime) would let a root send all its pieces before anything is forwarded. Here
// piece k has its turn after about k periods, where a period is the time of the busiest link for one piece of
// every member, and chunks with a long remaining path take precedence. The most urgent hop has the least
//     k · period - time of the longest path below the hop,
//     k · period + time of the path from the root,
// or uses the resources with the most remaining work. A hop through switches uses several
// resources at once, so one hop may delay several others; then as many as possible start together
// (port_matching.hpp). Several such rules are tried until one leaves the busiest resource hardly idle, and the
// best result is kept.
//
// Links may be grouped into resources that are used as one: on a symmetric network, all images of a link.
// Routes that use the same resources in the same way form a class, of which only the most urgent hop is considered.
//
// Cost: O(n (log n + u)) for n hops and u classes that use a resource, for each rule.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/progress.hpp"
#include "synth/forest/chunks.hpp"

namespace tacos::forest {

struct Timing {
  std::vector<Time> start;  // of each move
  Time end = 0;
};

// All routes have one leg, and all chunks count as `bytes`. `resource` numbers the links' resources from 0.
// Starts are multiples of `quantum`.
Timing time_by_urgency(const Routes& routes, const ForestMoves& moves, std::int64_t bytes,
                       std::span<const std::int32_t> resource, Time quantum,
                       const Progress& progress);

}  // namespace tacos::forest
