// Runs that go exactly as the schedule says, told without running them.
//
// Most synthesized schedules start every transfer at the very moment at which a network without disturbances would: its data
// are there, its link is free, and what was ready before it has left. Where this holds for all transfers it holds for the
// run, by induction over time; and it can be seen NPU by NPU, since it depends only on what arrives there. So a large
// schedule is read twice from end to end, and no memory is needed but a row over the chunks.
//
// This is about schedules that copy chunks over single links, each of them used by one lane, and bring a chunk to an NPU at
// most once; and about the rules of Timing::dependencies, order and schedule, which then agree.
#pragma once

#include <optional>

#include "simulate/simulate.hpp"

namespace tacos::simulation {

// The result without a record, or nothing if the run may go otherwise.
std::optional<Result> as_scheduled(const Schedule& schedule, const Routes& routes,
                                   const Progress& progress);

}  // namespace tacos::simulation
