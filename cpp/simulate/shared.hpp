// Schedules on links that are shared fairly: Timing::shared.
//
// A connection is what one sending thread serves: source, destination and route. It sends its
// transfers one after the other, in the order of their starts in the schedule; each starts when its
// data are there, by the rules of turns.hpp, and the one before it has left. How messages share links
// is said in fair_share.hpp and shared_loop.hpp.
#pragma once

#include "simulate/simulate.hpp"

namespace tacos::simulation {

Result simulate_shared(const Schedule& schedule, const Routes& routes, const Options& options,
                       const Progress& progress);

}  // namespace tacos::simulation
