// Refinement: shortens a schedule by local search.
//
// The free part of a schedule distributes finished values: all transfers of a collective that only copies, or
// those that carry complete sums of one that reduces. The other transfers are fixed. The busy times of each link
// are stored as few maximal intervals. A move removes some chunks, one of the latest
// among them, and inserts each again, in any order: from any NPU that holds it, over the hop that arrives first,
// into gaps between the other transfers, until every NPU that needs it has it. The move is kept if neither the last
// arrival of these chunks nor the sum of their arrivals is later than before; otherwise it is undone.
#pragma once

#include <cstdint>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct RefineOptions {
  std::uint64_t seed = 0;
  std::int64_t hops = 0;  // most hops to examine, about 100 ns each
  Time goal = 0;          // lower bound of the time
};

// A schedule of the same collective that takes no longer. Throws InfeasibleError if a sum is formed at
// several NPUs, or a route is a tree or has several legs.
Schedule refine(const Schedule& schedule, const RefineOptions& options, std::string provenance,
                const Progress& progress);

}  // namespace tacos
