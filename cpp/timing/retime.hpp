// Earliest start times of an ordered list of transfers, by the service rule of service.hpp.
//
// The order. Every transfer has a step. It reads what transfers of earlier steps wrote at its source,
// and transfers of the same or a later step must not disturb what it reads. Within a chunk this gives
// the dependencies:
//   - a transfer that reads `acc` waits until all writers of earlier steps have arrived there;
//   - a transfer that writes waits until all readers of that `acc` in earlier steps have started, and
//     those in the same step start together with it: two transfers that exchange partial sums in one step
//     start at the same time or, if they share a link, one right after the other. Each must start before
//     the other one's sum arrives, otherwise the order is infeasible;
//   - a `copy`, and any writer in a step after it, waits until all writers of earlier steps have arrived.
// Where times tie, transfers are served in order of step and then in the order of the list.
//
// The first leg of a transfer is ready when its dependencies are met, every other leg when the one before it
// has arrived; service.hpp decides when a ready leg starts.
//
// Cost: if links serve in the order of the list, one sweep over it (retime_sweep.hpp) and 8 to 16 bytes per
// transfer; otherwise some 100 bytes per transfer and O(n log w) for n transfers of which w are under way or
// waiting at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct Order {
  std::span<const RouteId> route;
  std::span<const ChunkId> chunk;
  std::span<const std::int32_t> step;
  std::span<const std::uint8_t> op, reads;
};

// Transfers of chunks without bytes are left out. Starts are multiples of the schedule's quantum: the
// largest that divides them or, if they do not fit 32 bits then, a little more than the smallest that makes
// them fit. `sweep` is for tests: true allows the sweep only (and refuses other orders), false the event
// loop only.
Schedule retime(std::shared_ptr<const Collective> collective, std::shared_ptr<const Routes> routes,
                const Order& order, std::string provenance, const Progress& progress,
                std::optional<bool> sweep = std::nullopt);

// A schedule of the same order whose starts are known, one per transfer; all its routes have one leg.
// If the starts share no quantum that fits 32 bits, they are rounded up to one, in their order.
// Where rounding would change what a transfer reads, the order is timed anew (retime).
Schedule with_starts(std::shared_ptr<const Collective> collective,
                     std::shared_ptr<const Routes> routes, const Order& order,
                     std::span<const Time> starts, std::string provenance,
                     const Progress& progress);

// The same, but returns nullopt instead of timing the order anew: for sums that depend on their starts.
std::optional<Schedule> at_starts(const std::shared_ptr<const Collective>& collective,
                                  const std::shared_ptr<const Routes>& routes, const Order& order,
                                  std::span<const Time> starts, const std::string& provenance);

// The same for starts and arrivals, one of each per transfer, that were found for chunks of slightly other sizes: in the order
// of the starts, each transfer starts then or as soon after as its links and what it reads allow.
std::optional<Schedule> not_before(const std::shared_ptr<const Collective>& collective,
                                   const std::shared_ptr<const Routes>& routes, const Order& order,
                                   std::span<const Time> starts, std::span<const Time> arrivals,
                                   const std::string& provenance);

}  // namespace tacos
