// The second part of packing: chooses which receives also send on, and the channel of each message.
#pragma once

#include "formats/actions.hpp"
#include "formats/pack.hpp"

namespace tacos::threadblocks {

struct Onward {
  std::vector<std::vector<Node>> sends;  // per receive: the steps that forward its data, in order
  std::vector<std::uint8_t> needed;      // per receive: steps that read what it stores; at most 2
};

Onward find_onward(const std::vector<Action>& actions, const Places& places);

struct Assignment {
  std::vector<std::int32_t> link;  // per message: the number of its pair of ranks
  std::int32_t links = 0;
  std::vector<std::int32_t> channel;  // per message, at its send and at its receive
  std::vector<Node> fused;            // per receive: the send that became part of it
};

// `budget` is the largest number of steps of a thread.
Assignment assign_channels(const std::vector<Action>& actions, const Onward& onward,
                           const PackOptions& options, std::int32_t budget, std::int32_t ranks);

}  // namespace tacos::threadblocks
