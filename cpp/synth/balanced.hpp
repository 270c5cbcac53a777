// Balanced exchanges: messages of any sizes between pairs of NPUs, where boxes of NPUs are joined by slower ports.
//
// The problem. Every message has one source and one destination. An NPU reaches those of its box in one hop, and some or all
// NPUs of other boxes over its own port. Sizes may be anything, as those that the experts of a mixture get. If every
// message takes the straight way, the ports of popular NPUs limit the time, while the others in their boxes idle.
//
// The method has two halves.
//   Paths. A message goes straight, or by an NPU of its own box, of the destination's box, or by both: over another's
//   port out, another's port in. Large messages choose first; every one takes the path on which the sum of its links'
//   prices is least, and the price of a link is (1 + load)^64, the load being relative to what the time will be at least. So
//   a busy port is worth any detour, and an idle network none. Then the messages that cross overfull links are taken up and
//   laid again, while that makes the busiest link carry less. (Steep prices for load: J. Aspnes et al., JACM 1997.)
//   Times. What is left is an open shop: a hop takes all of its links at once, in any order. All connections come forward
//   in proportion: whenever links become free, the message goes first that has the smallest share of its connection's bytes
//   before it, and among equals the one to the next NPU on the circle. So no port is left with many messages to one
//   peer at the end, and the order suits networks that share links as well: there, too, connections go side by side. Where
//   that takes longer than the busiest link must, what passes emptier links only is put off as far as it can be, and the
//   better of both is kept.
//
// The scheduler FAST (arXiv 2505.09764) has the idea to balance what leaves a box over its ports. It does so in phases in which
// pairs of boxes wait for each other, while a hop here starts as soon as its message is there.
//
// Cost: for m messages and b NPUs per box, m · b path prices per round; the timing looks at the hops through a link
// whenever it becomes free.
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
  // The number of the hop from NPU i to NPU j, of one leg, at i · npus + j; -1 if there is none.
  std::span<const RouteId> hop;
  std::span<const std::int32_t> box;  // of each NPU, from 0 upwards
  double least_s = 0;                 // what the messages take at least
};

// Throws InfeasibleError naming the ends of a message that no path of the method joins.
Schedule balanced(const std::shared_ptr<const Collective>& collective, const Neighbours& neighbours,
                  const Messages& messages, const std::string& provenance,
                  const Progress& progress);

}  // namespace tacos
