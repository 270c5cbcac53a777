// The routes a synthesizer may use: every link between two NPUs, and for two NPUs joined through
// switches the quickest path through them. Of several equally quick paths each pair takes another one,
// so that the spines of a fat tree share the load.
#pragma once

#include <memory>

#include "model/routes.hpp"
#include "support/progress.hpp"

namespace tacos {

Routes neighbour_routes(std::shared_ptr<const Topology> topology, std::int64_t typical_bytes,
                        const Progress& progress);

}  // namespace tacos
