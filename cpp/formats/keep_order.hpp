// Keeping the order of a schedule within the limits of an executor.
//
// A lowered program has one thread per connection and direction. Each thread serves its messages in the order of
// the schedule, so nothing overtakes, and a rank sends on one connection while it waits on another. Packing
// (pack.hpp) trades this for fewer, fused steps, which can cost much more time than it saves. Here the threads
// stay as they are:
//   - dependencies that follow from others are dropped, since an executor pays a nop for each one but the first;
//   - a thread with more steps than the executor takes goes on in another thread, on the next free channel, whose first
//     step waits for the last step of the former;
//   - connections are spread over channels where a rank has more peers than a channel takes;
//   - an executor may only wait for the first few threads of a rank. Sends wait for other sends just to keep the order of a port.
//     Where too many threads are awaited, a send no longer waits for the send before it in the port's order, but for
//     what that one waits for;
//   - where threads are too many (`join`), one that sends and one that receives at about the same time become one. Both
//     keep their order; steps are merged by the longest chain of steps before them, so nothing waits in a circle.
//
// Cost: O(steps · threads of a rank).
#pragma once

#include <cstdint>
#include <limits>

#include "model/program.hpp"

namespace tacos {

inline constexpr std::int32_t kAnyNumber = std::numeric_limits<std::int32_t>::max();

struct OrderOptions {
  std::int32_t channels = 32;  // at most
  std::int32_t steps = 256;    // of a thread, a further one for every dependency but the first
  std::int32_t peers = 32;     // of a rank on one channel, in each direction
  std::int32_t awaited = kAnyNumber;  // threads of a rank that others wait for
  bool join = false;                  // whether a thread may send and receive
};

// Takes lowered programs: threads that only send, only receive, or have no peer. Throws std::invalid_argument for
// others, and where the channels do not suffice.
Program keep_order(const Program& program, const OrderOptions& options);

}  // namespace tacos
