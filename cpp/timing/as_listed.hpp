// Orders that the links serve as they are listed, timed in one sweep over the list.
//
// Most orders come from algorithms that know what is ready when, and list their transfers so that every link serves them in
// that order (listed_links.hpp). Then the start of a transfer follows from those listed before it: what it waits for by the rules
// of retime.hpp belongs to earlier steps, so its ends remember the last arrival and the last start there. Nothing waits in a
// queue, nothing is sorted, and starts are written where they stay: beside the result, a sweep needs 8 bytes per chunk and node, 16 where sums are made.
//
// A transfer that exchanges sums with another one of its step, or that comes to be served in another order, leaves the list to
// the event loop.
#pragma once

#include <optional>
#include <span>

#include "model/schedule.hpp"
#include "support/progress.hpp"
#include "timing/retime.hpp"

namespace tacos {

// The transfers with their starts, which are what the event loop finds, or nothing. `rows` are the order's rows that move bytes,
// sorted by step; nothing stands for all rows as they are.
std::optional<Transfers> time_as_listed(const Collective& collective, const Routes& routes,
                                        const Order& order,
                                        std::optional<std::span<const std::uint32_t>> rows,
                                        const Progress& progress);

}  // namespace tacos
