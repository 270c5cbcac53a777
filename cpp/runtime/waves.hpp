// A program cut into waves, for transports that move messages in batches (a group of NCCL calls).
//
// In a wave, all its messages move, then every rank does what it can do alone: it stores what arrived,
// adds, copies. Wave 0 has no messages. A message moves in the first wave after all that its sender has
// to do before; a receiver that is not ready yet keeps it aside. Threads keep their order. So ranks that
// go from wave to wave meet without a deadlock, and none needs to know where the others are.
#pragma once

#include <cstdint>
#include <vector>

#include "model/program.hpp"

namespace tacos {

struct Waves {
  std::int32_t count = 1;
  std::vector<std::int32_t> receive;  // per step: when what it receives arrives; -1: it does not
  std::vector<std::int32_t> store;    // and when it is stored or added
  std::vector<std::uint8_t> aside;    // whether it must not go straight to where it is stored
  std::vector<std::int32_t> act;      // when a step sends, or does what it does alone
  // Twice the step: it stores; that and one: it acts. As they follow.
  std::vector<std::int64_t> order;
};

// Throws std::invalid_argument if a step is one-sided, or can never run.
Waves cut_into_waves(const Program& program);

}  // namespace tacos
