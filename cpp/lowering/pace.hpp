// Pacing: lowering with the window that runs fastest.
//
// Which window suits a schedule (lower.hpp) depends on its shape. Trees through switches arrive as planned only if every
// port keeps its order. An exchange between all pairs rather loses that way: a message to a busy receiver holds up
// those behind it. So the program of each window is run, with links that serve first come, first served and with links
// that are shared fairly, and the one whose slower run is the fastest is taken. The search ends with the
// first window that loses less than kNoLoss against the schedule.
//
// A caller that only looks for programs below a limit need not know by how much others miss it: a program is not run under
// the second rule if the first is not below, and most windows are left out where the first two miss it by far.
//
// Where no two connections share a link the window does not matter, and nothing is run.
#pragma once

#include <limits>

#include "model/program.hpp"
#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct Paced {
  Program program;
  std::int32_t window = 0;
  // How long the program takes with links that serve first come, first served, and with shared links; -1 if it was
  // not run: no links are shared, or there are too many transfers. Where no window is below the limit, both are the
  // least time that was found to miss it.
  Time dependencies = -1, shared = -1;
};

Paced lower_paced(const Schedule& schedule, bool in_place, const Progress& progress,
                  Time limit = std::numeric_limits<Time>::max());

}  // namespace tacos
