// Packing: a program in the shape that executors of threadblocks run best.
//
// A lowered program has a send and a receive for every chunk and hop. Executors do better with fewer,
// larger steps: several chunks at once where they lie side by side, and one step that receives and
// sends on. Such a step belongs to a thread that has both peers, on one channel; so chunks that come in
// over one link and leave over different ones are spread over channels.
//
// The steps are put in an order in which they could run one after the other, and nothing here
// reverses two steps that touch one slot:
//   - neighbours become one step, at the place of the later, if no step needs the earlier before that;
//   - sums within a rank move to where their result is first needed, and neighbours become one;
//   - a send of what a step receives moves to that step, since it needs nothing else;
//   - on a connection (two ranks and a channel), chunks are received in the order of their sending.
// Threads follow that order, so a packed program cannot deadlock. Dependencies are made anew, as few as
// order all steps that touch one slot; nops and other waits are dropped.
//
// Channels are chosen first come, first served: the one that lets a chunk be passed on, fused, for
// the most hops, where every connection into a rank is coupled to at most one out of it.
//
// Cost: O(steps · (channels + threads of a rank)).
#pragma once

#include "model/program.hpp"
#include "support/progress.hpp"

namespace tacos {

struct PackOptions {
  std::int32_t channels = 32;  // at most
  std::int32_t fusing_channels =
      8;                     // at most, where nothing but fusing asks for more; 0: no fusing
  std::int32_t steps = 256;  // of a thread, a further one for every dependency but the first
  std::int32_t count = 71;   // slots of a step that is made from several
  std::int32_t peers = 32;   // of a rank on one channel, in each direction
  bool few_threads = false;  // threads that only send and threads that only receive are joined
  std::int32_t unit = 0;  // if positive, such a step crosses no multiple of it in input and output
};

// Takes programs of copies, reductions, sends and receives that the checker accepts; throws
// std::invalid_argument for others and where the limits do not suffice.
Program pack(const Program& program, const PackOptions& options, const Progress& progress);

// Some step that can never run if a connection holds at most `depth` messages under way; -1: all can.
StepId stuck(const Program& program, std::int32_t depth);

}  // namespace tacos
