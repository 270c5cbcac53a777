// Runs in which every link serves transfers in the order of the schedule, followed in one sweep over the schedule.
//
// Transfers are taken in the order of the schedule's starts, and their arrivals in the order in which the schedule lets them
// arrive; so every chunk at every node is read and written in the order of turns.hpp, and knows when its turn could begin and
// when what was done in it was over. A transfer starts when its turn to read has begun and its links are free
// (listed_links.hpp). With Timing::order this is so whatever disturbs the run; when first come is first served, as long as nothing is
// ready before what comes ahead of it over the same link, which is seen on the way.
//
// Besides what is in flight, this takes 16 bytes per chunk and node, and 4 more for a record. The sweep does not see the events of a
// moment in the order in which the event loop handles them, so recorder.hpp brings the record into that order. It does so only for
// routes of one link, and gives up if data arrive before the transfers that read the data before them have started.
#pragma once

#include <optional>

#include "simulate/simulate.hpp"

namespace tacos::simulation {

// Returns nullopt if the run may go otherwise or fails, which the event loop will find out. options.timing is not Timing::shared.
std::optional<Result> simulate_in_turn(const Schedule& schedule, const Routes& routes,
                                       const Options& options, const Progress& progress);

}  // namespace tacos::simulation
