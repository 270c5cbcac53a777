// Schedules made from other schedules.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

// The schedule of the reversed collective on the reversed topology: every transfer turned around, in
// the opposite order; at mirrored times where that is exact (paths of one leg and one bandwidth), else
// retimed. Throws InfeasibleError where a sum is made at several NPUs.
Schedule reverse(const Schedule& schedule, const Progress& progress);

// `first`, then `second`, as a schedule of `collective`: each chunk as soon as it is ready or, if that is
// not better, one after the other. All three have the same chunk numbers and the same chunks with bytes.
Schedule concatenate(const Schedule& first, const Schedule& second,
                     std::shared_ptr<const Collective> collective, const Progress& progress);

// Steps from times: equal times, equal steps.
std::vector<std::int32_t> dense_rank(std::span<const Time> times);

// Per transfer of a packed schedule: whether it carries its chunk's final value, not a part of a sum. Throws
// InfeasibleError where a sum is made at several NPUs.
std::vector<std::uint8_t> spread_final_values(const Schedule& schedule);

}  // namespace tacos
