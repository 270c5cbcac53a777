// The greedy engine step by step, for networks whose links are all alike; see greedy.hpp.
#pragma once

#include <optional>

#include "progress.hpp"
#include "schedule.hpp"
#include "synth/greedy.hpp"

namespace tacos {

// The transfers over the topology's links, lane by lane; nothing where this way does not apply.
std::optional<Transfers> greedy_steps(const Topology& topology, const Collective& collective,
                                      const GreedyOptions& options, const Progress& progress);

}  // namespace tacos
