// Folding: from a packed schedule to the orbit that it expands.
//
// Engines that know a symmetry also make schedules whose chunks differ by a byte, which are not orbits. Most of what is known
// about a symmetric schedule follows from the transfers that leave one NPU of each orbit, so it pays to find the symmetry
// again: that the translations along the dimensions map each lane to a lane with the same starts.
//
// Cost: O(transfers · generators), a few nanoseconds each.
#pragma once

#include <optional>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

// The orbit, whose chunks all have the size of the largest one; nullopt if no translation maps the schedule to itself.
std::optional<Schedule> folded(const Schedule& schedule, const Progress& progress);

}  // namespace tacos
