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
// the opposite order; at mirrored times if that is exact (paths of one leg and one bandwidth), otherwise
// retimed. Throws InfeasibleError if a sum is made at several NPUs.
Schedule reverse(const Schedule& schedule, const Progress& progress);

// `first` followed by `second`, as a schedule of `collective`. Each chunk starts as soon as it is ready, unless
// `second` after the end of `first` is faster or there are too many transfers to retime. All three
// collectives must have the same number of chunks, and the same chunks without bytes.
Schedule concatenate(const Schedule& first, const Schedule& second,
                     std::shared_ptr<const Collective> collective, const Progress& progress);

// The rank of each time among the distinct times, as steps: equal times get equal steps.
std::vector<std::int32_t> dense_rank(std::span<const Time> times);

// Per transfer of a packed schedule: whether it carries its chunk's final value or a partial sum. Throws
// InfeasibleError if a sum is made at several NPUs.
std::vector<std::uint8_t> spread_final_values(const Schedule& schedule);

}  // namespace tacos
