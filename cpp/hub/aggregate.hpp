// Two ways to sum and optimize the gradients of several workers on the cores of one machine, for comparison.
//
// Tall: a thread owns chunks, and takes each from the first contribution to the copies that go back. Wide: all threads
// work on one key at a time, each on its part, with a barrier between the steps, as servers do that parallelize over a key.
#pragma once

#include <cstdint>
#include <vector>

namespace tacos::hub {

// Seconds per round (sum, Nesterov step, one copy of the weights per worker), after one round that is not counted.
double aggregate(bool tall, std::int32_t threads, std::int32_t workers,
                 const std::vector<std::int64_t>& sizes, std::int32_t rounds);

}  // namespace tacos::hub
