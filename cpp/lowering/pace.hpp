// Pacing: lowering with the window that runs fastest.
//
// The best window of a schedule (lower.hpp) depends on its shape. Trees through switches keep their times only if every
// port keeps its order. An all-to-all exchange becomes slower that way: a message to a busy receiver delays those behind
// it. So the program of each window is simulated under two rules, with links that serve first come, first served and with
// links that are shared fairly. The window whose slower run is fastest is chosen. The search ends with the first window
// that loses less than kNoLoss against the schedule.
//
// A caller that only looks for programs below a limit need not know by how much others miss it. So a program is not simulated
// under the second rule if the first is not below the limit, and most windows are skipped if the first two miss it by far.
//
// If no two connections share a link, the window does not matter, and the program is simulated only for its times.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "model/program.hpp"
#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct Paced {
  Program program;
  std::int32_t window = 0;
  // How long the program takes with links that serve first come, first served, and with shared links; -1 if neither the
  // choice of the window nor the caller needed it. If no window stays below the limit, both are the least time that was
  // found to exceed it.
  Time dependencies = -1, shared = -1;
  std::int32_t runs = 0;  // number of simulations that this took
};

// `timed` asks for the times.
Paced lower_paced(const Schedule& schedule, bool in_place, bool timed, const Progress& progress,
                  Time limit = std::numeric_limits<Time>::max());

// The same for an orbit, whose program is then that of one rank of each orbit of ranks (by_orbit.hpp), with the times of all;
// nullopt if it cannot be executed by orbit.
std::optional<Paced> paced_by_orbit(const Schedule& schedule, const Progress& progress,
                                    Time limit = std::numeric_limits<Time>::max());

}  // namespace tacos
