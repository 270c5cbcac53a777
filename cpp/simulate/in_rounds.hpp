// Runs over single links in which links serve first come, first served, followed in rounds.
//
// A round is a span of time no longer than any transfer. What arrives in it has started before it, so a round has two parts, each a pass
// over many transfers, whose data are fetched ahead:
//   1. arrivals make transfers ready, which join the queues of their links (reader_groups.hpp);
//   2. each link serves its queue in the order (ready time, position in the schedule). Links do not depend on each other.
// So arrivals need not be sorted, except sums: a transfer that waits for several is ready with the last one.
//
// The run is given up if data arrive before the transfers that read the data before them have started, which mostly means another
// network, or if a transfer can never start.
#pragma once

#include <optional>

#include "simulate/simulate.hpp"

namespace tacos::simulation {

// Returns nullopt if the run does not suit rounds, is given up or fails, which the event loop will find out. options.timing is
// Timing::dependencies.
std::optional<Result> simulate_in_rounds(const Schedule& schedule, const Routes& routes,
                                         const Options& options, const Progress& progress);

}  // namespace tacos::simulation
