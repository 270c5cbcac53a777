// A program divided into waves, for transports that move messages in batches (a group of NCCL calls).
//
// In a wave, all its messages move, then every rank does its local work: it stores what arrived,
// adds and copies. Wave 0 has no messages. A message moves in the first wave after its sender's preceding
// work; a receiver that is not ready stages it. Threads keep their order. So ranks that run
// the waves in order cannot deadlock, and need no information about each other's progress.
#pragma once

#include <cstdint>
#include <vector>

#include "model/program.hpp"

namespace tacos {

struct Waves {
  std::int32_t count = 1;
  std::vector<std::int32_t> receive;  // per step: the wave in which its message arrives; -1: none
  std::vector<std::int32_t> store;    // the wave in which it is stored or added
  std::vector<std::uint8_t> aside;    // whether it must be staged before it is stored
  std::vector<std::int32_t> act;      // the wave in which a step sends, or does its local work
  // All events in order: 2 · step where it stores, 2 · step + 1 where it acts.
  std::vector<std::int64_t> order;
};

// Throws std::invalid_argument if a step is one-sided, or can never run.
Waves cut_into_waves(const Program& program);

}  // namespace tacos
