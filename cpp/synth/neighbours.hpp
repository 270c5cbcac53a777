// The routes that a synthesizer may use: every link between two NPUs and, for two NPUs joined by switches, the
// fastest path through them. Pairs take different ones of equally fast paths, so that the spines of a fat tree
// share the load.
#pragma once

#include <memory>

#include "model/routes.hpp"
#include "support/progress.hpp"

namespace tacos {

Routes neighbour_routes(std::shared_ptr<const Topology> topology, std::int64_t typical_bytes,
                        const Progress& progress);

}  // namespace tacos
