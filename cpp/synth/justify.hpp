// Justification: shortens a schedule by moving its transfers in time, over the same routes.
//
// An engine that lets links serve first whatever is ready first may keep a transfer with a long way to go waiting behind one
// that has time. Justification (Tormos and Lova 2001, Valls et al. 2005, for projects with limited resources) needs no estimate
// of what is urgent. It plans the schedule backwards from its end, where the transfers that arrived last come first, so that
// each becomes as late as possible. Now the order of starts is the order of urgency, in which the schedule is planned again,
// forwards, so that each transfer becomes as early as possible.
//
// There are two ways to plan. In the first, a free link takes the first of the transfers that are ready, so that links are never
// idle without need. It needs routes of one link. In the second, each transfer in turn moves into the best gap that
// the others leave; this never makes a schedule longer.
//
// What a transfer reads stays the same. For each NPU and chunk, a transfer that reads `acc` starts after the same arrivals as
// before, and before the others. A copy, which overwrites, keeps its place among the arrivals. Sums that arrive without a read
// in between may change places, since their order does not change the result but for its rounding.
//
// Cost: about 1.5 us per transfer.
#pragma once

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

// A shorter schedule of the same transfers, planned once in each way; a second call may gain more. Returns the schedule itself
// if it does not become shorter, or if too many pairs of transfers depend on each other. Throws InfeasibleError if a route is a
// tree or has several legs, or if sums take time.
Schedule justify(const Schedule& schedule, const Progress& progress);

}  // namespace tacos
