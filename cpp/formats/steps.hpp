// Steps as a file's reader meets them, before they are sorted by thread.
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

// Steps of one thread are in their order.
struct Steps {
  std::vector<std::uint8_t> op, src_buffer, dst_buffer;
  std::vector<std::int32_t> src_slot, dst_slot, count;
  std::vector<NodeId> peer;
  std::vector<ThreadId> thread;
  std::vector<std::int64_t> comes_from;                      // the step that sends, or -1
  std::vector<std::pair<std::int64_t, std::int64_t>> waits;  // a step, and a step that it waits for

  // Adds a step, without the slots that the operation does not use. Returns the step's number.
  std::int64_t add(StepOp what, ThreadId of, Buffer src, std::int32_t from, Buffer dst,
                   std::int32_t to, std::int32_t slots, NodeId with = -1);
};

// Sorts steps and threads as a program needs them: rank by rank, thread by thread. The caller adds
// the other fields of the program. O(n log n).
ProgramSpec arranged(Steps steps, const Threads& threads);

}  // namespace tacos
