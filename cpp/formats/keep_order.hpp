// Keeping the order of a schedule within the limits of an executor.
//
// A lowered program has one thread per connection and direction. Each thread serves its messages in the order of
// the schedule, so no message overtakes another, and a rank sends on one connection while it waits on another. Packing
// (pack.hpp) trades this for fewer, fused steps, which can cost much more time than it saves. Here the threads
// are kept:
//   - dependencies that others imply are dropped, since each one after the first costs a nop;
//   - a thread with more steps than the executor allows continues in another thread, on the next free channel, whose first
//     step waits for the last step of the former;
//   - connections are spread over channels if a rank has more peers than a channel allows;
//   - steps may wait only for the first few threads of a rank. Sends wait for other sends just to keep the order of a port.
//     If too many threads are awaited, a send no longer waits for the previous send of the port, but for
//     the dependencies of that send;
//   - if there are too many threads (`join`), one that sends and one that receives at about the same time become one. Both
//     keep their order; steps are merged by the longest chain of steps before them, so no deadlock can arise.
//
// Cost: O(steps · threads of a rank).
#pragma once

#include <cstdint>
#include <limits>

#include "model/program.hpp"

namespace tacos {

inline constexpr std::int32_t kAnyNumber = std::numeric_limits<std::int32_t>::max();

struct OrderOptions {
  std::int32_t channels = 32;  // limit
  std::int32_t steps = 256;  // limit per thread; each dependency after a step's first counts as one
  std::int32_t peers = 32;   // limit per rank and channel, in each direction
  std::int32_t awaited = kAnyNumber;  // limit of threads of a rank that others wait for
  bool join = false;                  // whether a thread may send and receive
};

// Accepts lowered programs, whose threads only send, only receive, or have no peer. Throws std::invalid_argument for
// other programs, or if the channels do not suffice.
Program keep_order(const Program& program, const OrderOptions& options);

}  // namespace tacos
