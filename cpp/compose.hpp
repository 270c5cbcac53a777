// Schedules from schedules.
#pragma once

#include <memory>

#include "progress.hpp"
#include "schedule.hpp"

namespace tacos {

// The schedule of the reversed collective on the reversed topology: every transfer turned around, in
// the opposite order, retimed. Throws InfeasibleError where a sum is made at several NPUs.
Schedule reverse(const Schedule& schedule, const Progress& progress);

// `first`, then `second`, each chunk as soon as it is ready, as a schedule of `collective`. All three
// number their chunks alike.
Schedule concatenate(const Schedule& first, const Schedule& second,
                     std::shared_ptr<const Collective> collective, const Progress& progress);

}  // namespace tacos
