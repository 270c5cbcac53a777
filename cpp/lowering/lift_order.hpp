// An order for the transfers that lifting finds: the steps that `retime` takes.
//
// A reader of a version of an `acc` starts after all its writers up to that version have arrived, and not
// after the next writer has started: both may start together, as in an exchange. A copy starts after
// all earlier writers have arrived, and additions to it start after the copy has arrived. Transfers in a cycle
// of "not after" share a step (they are a strongly connected component); a cycle with an "arrived" has no
// order. All others get steps of their own, as far as the rules allow the
// most urgent first, and of those each NPU's to the next one, to the one after it and so on, which keeps
// many from sending to one at a time: `retime` serves equal claims in this order.
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
  std::int32_t urgency =
      0;  // length of the longest row of steps that wait for it, one for the other
  Op op = Op::copy;
  Reads reads = Reads::input;
  // The `acc` that it reads, if it reads one with versions; else the transfer that brought what it reads.
  std::int32_t source = -1, source_version = -1;
  std::int32_t after = -1;
  // The `acc` that it writes, and the version that it makes; -1 where there are none.
  std::int32_t target = -1, version = -1;
};

struct LiftedOrder {
  std::vector<std::int32_t> transfers;  // in order
  std::vector<std::int32_t> steps;      // of those
  std::int32_t circular = -1;  // a transfer that would have to follow itself; then no order
};

LiftedOrder find_order(const std::vector<LiftedTransfer>& transfers, std::int32_t npus,
                       const Progress& progress);

}  // namespace tacos
