// Refinement: shortens a schedule by local search.
//
// The free part of a schedule spreads finished values: all transfers of a collective that only copies, and
// in one that reduces, those that carry whole sums. The other transfers are fixed. Per link the times
// in which it is busy are kept as few maximal intervals. A move takes some chunks out, one of the latest
// among them, and puts each back, in any order: from any NPU that holds it, over the hop that arrives first,
// into gaps between what is there, until every NPU that needs it has it. The move stays if the last of these
// chunks is not later than before and their ends together are not either; else it is undone.
#pragma once

#include <cstdint>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct RefineOptions {
  std::uint64_t seed = 0;
  std::int64_t hops = 0;  // hops that may be looked at, about 100 ns each
  Time goal = 0;          // no schedule is shorter
};

// A schedule of the same collective that takes no longer. Throws InfeasibleError where a sum is made at
// several NPUs, or a route is a tree or has several legs.
Schedule refine(const Schedule& schedule, const RefineOptions& options, std::string provenance,
                const Progress& progress);

}  // namespace tacos
