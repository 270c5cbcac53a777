// The first part of packing: fewer, larger steps, in an order in which they could run.
#pragma once

#include "formats/actions.hpp"
#include "formats/pack.hpp"

namespace tacos::packing {

// The steps in the order in which they could run, neighbours that travel side by side as one; nops are
// left out. Throws std::invalid_argument for programs that are not to be packed.
std::vector<Action> merged(const Program& program, const Places& places,
                           const PackOptions& options);

}  // namespace tacos::packing
