// Schedules on links that are shared fairly: Timing::shared.
//
// A connection has one sending thread, one source, one destination and one route. It sends its
// transfers one after the other, in the order of their starts in the schedule. Each starts when its
// data have arrived, by the rules of turns.hpp, and the one before it has left. fair_share.hpp and
// shared_loop.hpp describe how messages share links.
#pragma once

#include "simulate/simulate.hpp"

namespace tacos::simulation {

Result simulate_shared(const Schedule& schedule, const Routes& routes, const Options& options,
                       const Progress& progress);

}  // namespace tacos::simulation
