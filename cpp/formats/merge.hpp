// The first part of packing: merges neighbouring steps into fewer, larger ones.
#pragma once

#include "formats/actions.hpp"
#include "formats/pack.hpp"

namespace tacos::threadblocks {

// The merged steps in an order in which they can run, without nops. Throws std::invalid_argument for programs that cannot
// be packed.
std::vector<Action> merged(const Program& program, const Places& places,
                           const PackOptions& options);

}  // namespace tacos::threadblocks
