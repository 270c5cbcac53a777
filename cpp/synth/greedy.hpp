// The greedy engine: TACOS's idea, link-chunk matching over time.
//
// The problem. Every chunk has holders and NPUs that need it; nothing is summed (reductions are solved on the
// reversed network and then reversed). As time advances, whenever a route is free, it is given a chunk that
// its source holds and that its destination can use.
//
// The matching, if every NPU needs everything. Every NPU has a log of its chunks in order of arrival, and every
// route a cursor into its source's log. A route offers the first entry at or after its cursor that its
// destination neither has nor is being sent. An entry that is useless once never becomes useful again, so the
// cursor never goes back, and a transfer costs about one lookup per route into its destination. First in, first
// out also spreads chunks evenly.
//
// Otherwise relays must know the destinations: each chunk's paths are chosen first, so that the links share the
// load (paths.hpp), and time only decides the order, longest remaining path first. So a relay moves a chunk only
// towards an NPU that needs it.
//
// If routes differ in speed, a slow route has one more rule. The routes clearly faster than it
// connect the NPUs into regions. It first looks for a chunk that no NPU in its destination's region has
// or is being sent: only slow routes can bring it in. Otherwise it takes a chunk that fast routes could
// bring as well only if they, with their backlog for this destination, would deliver it later.
//
// Two ways to run it, with the same rule and the same ties, hence the same result unless arrivals are rounded:
//   events  any network: a queue of arrivals and of links that become free;
//   steps   equal, direct links, where a chunk arrives a whole number of transmission times after its
//           start (in large problems, arrivals are rounded up to that): destinations are independent within a step, so threads divide them, the log is the
//           schedule, and a transfer takes 8 bytes and no queue.
//
// Cost: steps: in-degree bit tests per transfer. Memory: one bit per NPU and chunk, and the schedule.
// Matching on a time-expanded network is from W. Won et al., TACOS, MICRO 2024; the logs, the bound on
// relays and the rule for slow routes are new here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct GreedyOptions {
  std::uint64_t seed = 0;    // 0: no randomness; others vary the order in which routes choose
  std::int32_t threads = 0;  // 0: one per core
  bool steps = true;         // use the step-synchronous variant if it applies
  bool backwards = false;    // the network is reversed: errors name the NPUs of the true one
};

// A schedule of a collective that only copies. Throws InfeasibleError naming an NPU that cannot reach
// another that needs its chunk.
Schedule greedy(const std::shared_ptr<const Topology>& topology,
                const std::shared_ptr<const Collective>& collective, const GreedyOptions& options,
                const std::string& provenance, const Progress& progress);

}  // namespace tacos
