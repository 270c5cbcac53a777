// Recognizes schedules whose simulated run is exactly the schedule, without running them.
//
// Most synthesized schedules start every transfer exactly when a network without disturbances would: its data have
// arrived, its link is free, and all transfers that were ready before it have left. If this holds for all transfers, the run
// equals the schedule, by induction over time. It can be checked NPU by NPU, since it depends only on what arrives there. So a
// large schedule is read twice from start to end, and needs memory only for one row over the chunks.
//
// The check covers schedules that copy chunks over single links, each used by one lane, and bring a chunk to an NPU at
// most once. The rules Timing::dependencies, order and schedule then agree.
#pragma once

#include <optional>

#include "simulate/simulate.hpp"

namespace tacos::simulation {

// The result without a record, or nothing if the run may differ from the schedule.
std::optional<Result> as_scheduled(const Schedule& schedule, const Routes& routes,
                                   const Progress& progress);

}  // namespace tacos::simulation
