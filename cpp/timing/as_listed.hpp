// Times an order in one sweep over its list, if every link serves its transfers in the order of the list.
//
// Most orders come from algorithms that know when each transfer is ready, and list transfers in the order in which every link
// serves them (listed_links.hpp). Then the start of a transfer follows from those listed before it. By the rules of retime.hpp
// it waits for transfers of earlier steps, so it is enough to keep the last arrival and the last start per chunk and node.
// Nothing is queued or sorted, and starts are written to their final place. Besides the result, a sweep needs 8 bytes per chunk
// and node, or 16 if some transfers reduce.
//
// The sweep gives up, and the event loop takes over, if a transfer exchanges sums with another one of its step, or if a link
// would serve transfers in another order.
#pragma once

#include <optional>
#include <span>

#include "model/schedule.hpp"
#include "support/progress.hpp"
#include "timing/retime.hpp"

namespace tacos {

// Returns the transfers with the starts that the event loop would find, or nullopt if the sweep gives up. `rows` are the rows of
// the order that move bytes, sorted by step; nullopt means all rows in their order.
std::optional<Transfers> time_as_listed(const Collective& collective, const Routes& routes,
                                        const Order& order,
                                        std::optional<std::span<const std::uint32_t>> rows,
                                        const Progress& progress);

}  // namespace tacos
