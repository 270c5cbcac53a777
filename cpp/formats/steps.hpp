// Steps on their way from a file to a program: in the order they are met, not yet thread by thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/program.hpp"

namespace tacos {

struct Threads {
  std::vector<NodeId> rank, send_peer, recv_peer;
  std::vector<std::int32_t> channel;

  ThreadId add(NodeId of) {
    rank.push_back(of);
    send_peer.push_back(-1);
    recv_peer.push_back(-1);
    channel.push_back(0);
    return static_cast<ThreadId>(rank.size() - 1);
  }
};

// Those of one thread stand in their order.
struct Steps {
  std::vector<std::uint8_t> op, src_buffer, dst_buffer;
  std::vector<std::int32_t> src_slot, dst_slot, count;
  std::vector<NodeId> peer;
  std::vector<ThreadId> thread;
  std::vector<std::int64_t> comes_from;                      // a step, or -1
  std::vector<std::pair<std::int64_t, std::int64_t>> waits;  // a step, and one that it waits for

  // Slots that the operation has no use for are left out. Returns the step's number.
  std::int64_t add(StepOp what, ThreadId of, Buffer src, std::int32_t from, Buffer dst,
                   std::int32_t to, std::int32_t slots, NodeId with = -1);
};

// Puts steps and threads where a program wants them: thread by thread, rank by rank. The caller adds
// what else a program has. O(n log n).
ProgramSpec arranged(Steps steps, const Threads& threads);

}  // namespace tacos
