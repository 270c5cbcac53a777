// Start times for chunks on trees, by priority: at every moment each free port takes the most urgent of the
// available chunks.
//
// First come, first served (retime) would let a root send all its pieces before anything is forwarded. Here
// piece k has its turn after about k periods, where a period is the time of the busiest link for one piece of
// every member, and chunks with a long way to go take precedence. The most urgent hop has the least
//     k · period - time of the longest way below the hop,
//     k · period + time of the way from the root,
// or what keeps the resources busy that have the most left to carry. A hop through switches takes several
// resources at once, so that one hop may keep several others waiting: then as many as possible start together
// (port_matching.hpp). Several such rules are tried until one leaves the busiest resource hardly idle, and the
// best result is kept.
//
// Links may be grouped into resources that are taken as one: on a symmetric network, all images of a link.
// Routes that take the same resources alike are a class, of which only the most urgent hop counts.
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
