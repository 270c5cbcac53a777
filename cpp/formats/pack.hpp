// Packing: brings a program into the shape that threadblock executors run best.
//
// A lowered program has a send and a receive for every chunk and hop. Executors are faster with fewer,
// larger steps: one step for several adjacent chunks, and one step that receives a chunk and
// forwards it. Such a fused step belongs to a thread that has both peers, on one channel. So chunks that arrive
// over one link and leave over different links are spread over channels.
//
// The steps are sorted into an order in which they can run one after the other. No change here
// swaps two steps that access the same slot:
//   - messages of neighbouring chunks are merged, at the place of the later one, if no step in between needs the earlier;
//   - sums within a rank move to where their result is first needed, and neighbouring sums are merged;
//   - the send of a received chunk moves to the step that receives it, since it needs nothing else;
//   - on a connection (two ranks and a channel), chunks are received in the order in which they are sent.
// Threads follow that order, so a packed program cannot deadlock. Dependencies are computed anew: the fewest that
// order all steps that access the same slot. Nops and all other waits are dropped.
//
// Channels are assigned in the order of the messages. A chunk gets the channel on which the most hops can be fused,
// given that every connection into a rank is coupled to at most one connection out of it.
//
// Cost: O(steps · (channels + threads of a rank)).
#pragma once

#include "model/program.hpp"
#include "support/progress.hpp"

namespace tacos {

struct PackOptions {
  std::int32_t channels = 32;  // limit
  // Limit of channels that are opened only for fusing; 0: no fusing.
  std::int32_t fusing_channels = 8;
  std::int32_t steps = 256;  // limit per thread; each dependency after a step's first counts as one
  std::int32_t count = 71;   // limit of slots of a merged step
  std::int32_t peers = 32;   // limit per rank and channel, in each direction
  bool few_threads = false;  // join threads that only send with threads that only receive
  std::int32_t unit =
      0;  // if positive, merged steps do not cross its multiples in input and output
};

// Accepts programs of copies, reductions, sends and receives that the checker accepts. Throws
// std::invalid_argument for other programs, or if the limits do not suffice.
Program pack(const Program& program, const PackOptions& options, const Progress& progress);

// A step that can never run if a connection holds at most `depth` messages in flight; -1 if all can.
StepId stuck(const Program& program, std::int32_t depth);

}  // namespace tacos
