// Two ways to sum and optimize the gradients of several workers on the cores of one machine, for comparison.
//
// Tall: each thread owns chunks, and processes a chunk from its contributions to the new weights, as the service does with
// deterministic sums. Wide: all threads work on one key at a time, each on its part, with a barrier after each contribution
// and after the update, as in servers that parallelize over one key. Sending answers is not measured: the service sends
// them from the weights, without a copy.
#pragma once

#include <cstdint>
#include <vector>

namespace tacos::hub {

// Seconds per round (sums and a Nesterov step), after one round that is not counted.
double aggregate(bool tall, std::int32_t threads, std::int32_t workers,
                 const std::vector<std::int64_t>& sizes, std::int32_t rounds);

}  // namespace tacos::hub
