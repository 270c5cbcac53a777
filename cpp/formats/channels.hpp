// The second part of packing: what is passed on in the step that receives it, and on which channel.
#pragma once

#include "formats/actions.hpp"
#include "formats/pack.hpp"

namespace tacos::packing {

struct Onward {
  std::vector<std::vector<Node>> sends;  // per receive: steps that send just that on, in order
  std::vector<std::uint8_t> needed;      // per receive: how many need what it stores, 2 for more
};

Onward find_onward(const std::vector<Action>& actions, const Places& places);

struct Assignment {
  std::vector<std::int32_t> link;  // of each message: its two ranks, numbered
  std::int32_t links = 0;
  std::vector<std::int32_t> channel;  // of each message, at its send and at its receive
  std::vector<Node> fused;            // per receive: the send that became part of it
};

// `budget` is the most steps of a thread.
Assignment assign_channels(const std::vector<Action>& actions, const Onward& onward,
                           const PackOptions& options, std::int32_t budget, std::int32_t ranks);

}  // namespace tacos::packing
