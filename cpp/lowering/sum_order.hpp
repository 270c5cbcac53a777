// Order of summation: which sums of a schedule must be computed in a fixed order so that all NPUs end
// with the same bits.
//
// Floating-point addition commutes but does not associate. A schedule fixes which operands are added between
// two reads of `acc`, but not their order; executors would add in the order of arrival, which differs between
// NPUs. If one NPU computes a sum and the others get copies of it (rings, trees), any order will do. If
// several NPUs sum the same operands (one-shot, sums exchanged between boxes), they must all use the same
// order:
//
//   An *open sum* is what an NPU's `acc` of a chunk holds, and all that arrives for it with `reduce`,
//   until the next read of that `acc` or the end. If another NPU has an open sum of the same operands, and
//   there are three operands or more, both add them from left to right, in the order of the smallest
//   NPU that has contributed to each operand; what `acc` held takes its place among them.
//
// The operands of a correct sum have no contribution in common, so their order is strict; and it depends on
// their contents only, so it is the same at each NPU. A schedule that the verifier calls consistent
// becomes a program that does the same additions on all ranks.
//
// Cost: O(transfers), and O(transfers · log) for the chunks that several NPUs add up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/schedule.hpp"

namespace tacos {

// A transfer, as far as sums are concerned.
struct SummedTransfer {
  NodeId src, dst;
  ChunkId chunk;
  Op op;
  Reads reads;
  Time start, arrival;
};

struct SumOrder {
  struct Sum {
    std::int32_t operands;
    std::int32_t
        own;  // position of what `acc` held, not 1, since the first two commute; -1: nothing
  };
  struct Place {
    std::int32_t sum = -1;      // -1: added in any order
    std::int32_t operand = -1;  // position
  };
  std::vector<Sum> sums;
  std::vector<Place> places;  // per transfer; empty if there are no sums
};

// `transfers` are all of a schedule, in any order.
SumOrder sum_order(const Collective& collective, std::span<const SummedTransfer> transfers);

// Whether some sum ends at several NPUs.
bool sums_end_at_several(const Collective& collective);

}  // namespace tacos
