// What counted work costs: nanoseconds of one core for each thing that engines count.
//
// The rates are chosen by `python -m benchmarks.work`, which runs every engine on a dozen networks and prints the processor time over
// the counted work. They need not be exact: a search compares counts with counts, and an allowance that is wrong by a
// factor of two only moves work from one engine to another. Changing a rate changes what a search finds, so it is not
// a matter of the machine that a search runs on.
#pragma once

namespace tacos::work {

inline constexpr double kVisit = 15;      // a link looked at in a search for paths: random access
inline constexpr double kTransfer = 150;  // a transfer laid, with its row in every column
inline constexpr double kEvent = 100;     // an arrival or an attempt to start, in an event loop
inline constexpr double kGap =
    150;  // a hop for which a gap in the times of its links was looked for
inline constexpr double kHop = 40;      // a transfer timed in a sweep over an order
inline constexpr double kArc = 4;       // an arc looked at in a flow
inline constexpr double kTry = 25;      // a route offered, a link tested for a chunk
inline constexpr double kStep = 5;      // a step of a link or an NPU in a sweep over tables
inline constexpr double kPython = 250;  // a step of a loop in Python
inline constexpr double kCell = 1;      // a cell of a table, read in order

}  // namespace tacos::work
