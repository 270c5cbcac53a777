// Orders the transfers that lifting finds: computes the steps for `retime`.
//
// A reader of a version of an `acc` starts after all its writers up to that version have arrived, and not
// after the next writer has started: both may start together, as in an exchange. A copy starts after
// all earlier writers have arrived, and additions to it start after the copy has arrived. Transfers in a cycle
// of "not after" share a step (they are a strongly connected component); a cycle with an "arrived" has no
// order. All others get separate steps. As far as the rules allow, the most urgent transfers come first.
// Among equally urgent ones, each NPU first sends to the next NPU, then to the one after it, and so on, so
// that few send to the same NPU at a time: `retime` breaks ties in this order.
#pragma once

#include <cstdint>
#include <vector>

#include "model/program.hpp"
#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct LiftedTransfer {
  NodeId src = 0, dst = 0;
  ChunkId chunk = 0;
  StepId sender = 0, receiver = 0;
  std::int32_t channel = 0;
  std::int32_t urgency = 0;  // length of the longest chain of steps that wait for it
  Op op = Op::copy;
  Reads reads = Reads::input;
  // The `acc` that it reads, if that has versions; otherwise the transfer that brought the value that it reads.
  std::int32_t source = -1, source_version = -1;
  std::int32_t after = -1;
  // The `acc` that it writes, and the version that it makes; -1 if there is none.
  std::int32_t target = -1, version = -1;
};

struct LiftedOrder {
  std::vector<std::int32_t> transfers;  // in order
  std::vector<std::int32_t> steps;      // their steps
  std::int32_t circular = -1;           // a transfer in a cycle, if there is no order
};

LiftedOrder find_order(const std::vector<LiftedTransfer>& transfers, std::int32_t npus,
                       const Progress& progress);

}  // namespace tacos
