// The greedy engine step by step, for networks whose links are all alike; see greedy.hpp.
#pragma once

#include <optional>

#include "model/schedule.hpp"
#include "support/progress.hpp"
#include "synth/greedy.hpp"

namespace tacos {

// Whether this way applies: every NPU wants every chunk, all chunks and all links are alike and direct,
// and a chunk arrives a whole number of steps, not too many, after its start.
bool stepwise(const Topology& topology, const Collective& collective);

// The transfers over the topology's links, lane by lane; nothing where this way does not apply.
std::optional<Transfers> greedy_steps(const Topology& topology, const Collective& collective,
                                      const GreedyOptions& options, const Progress& progress);

}  // namespace tacos
