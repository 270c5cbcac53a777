// Balanced exchanges: messages of any sizes between pairs of NPUs, where boxes of NPUs are joined by slower ports.
//
// The problem. Every message has one source and one destination. An NPU reaches the NPUs of its box in one hop, and some or all
// NPUs of other boxes over its own port. Sizes are arbitrary, as for the experts of a mixture. If every
// message takes the direct path, the ports of popular NPUs limit the time, while other ports of their boxes are idle.
//
// The method has two parts.
//   Paths. A message takes the direct path, or passes an NPU of its own box, of the destination's box, or both: it leaves over
//   another NPU's port, or enters over another NPU's port. Large messages choose first. Each takes the path with the least sum of
//   prices, where the price of a link is (1 + load)^64, with the load relative to a lower bound of the time. So
//   any detour around a busy port is worthwhile, and none in an idle network. Then messages on overloaded links are
//   rerouted, as long as this reduces the load of the busiest link. (Steep prices for load: J. Aspnes et al., JACM 1997.)
//   Times. What remains is an open shop: a hop uses all of its links at once, in any order. All connections progress
//   in proportion: whenever links become free, the first message to go is the one with the smallest share of its connection's
//   bytes before it; ties are broken by the distance to its destination on the circle of NPUs. So no port is left with many
//   messages to one peer at the end. The order also suits networks that share links, where connections progress concurrently. If
//   this takes longer than the busiest link needs, messages that only pass less loaded links are delayed as far as possible, and
//   the better result is kept.
//
// The idea of balancing the traffic of a box over its ports is from the scheduler FAST (arXiv 2505.09764). It works in phases in
// which pairs of boxes wait for each other; here a hop starts as soon as its message has arrived.
//
// Cost: for m messages and b NPUs per box, m · b path prices per round; the timing examines the hops through a link
// whenever the link becomes free.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct Messages {
  std::span<const ChunkId> chunk;
  std::span<const NodeId> src, dst;
};

struct Neighbours {
  std::shared_ptr<const Routes> routes;
  // The route of one leg from NPU i to NPU j is at i · npus + j; -1 if there is none.
  std::span<const RouteId> hop;
  std::span<const std::int32_t> box;  // per NPU, from 0
  double least_s = 0;                 // lower bound of the time of all messages
};

// Throws InfeasibleError, which names the ends of a message for which the method has no path.
Schedule balanced(const std::shared_ptr<const Collective>& collective, const Neighbours& neighbours,
                  const Messages& messages, const std::string& provenance,
                  const Progress& progress);

}  // namespace tacos
