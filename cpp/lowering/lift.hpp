// Lifting: from a program back to a schedule.
//
// The steps are executed once on symbols, each after those it waits for. Every slot of every message
// becomes one transfer. The value of a slot is one of
//   own      the rank's own input of a chunk;
//   arrived  what a transfer has delivered, which the rank's `acc` does not include yet;
//   acc      the rank's `acc` of a chunk, in one of its versions;
//   sum      of two of these.
// A schedule knows one `acc` per chunk and NPU, so a value that is sent, or that ends as output, must be
// the input or a version of `acc`. It becomes one when it is needed: data that arrived are added to the
// version that they were summed up with (`reduce`), or replace `acc` if they were summed up with none
// (`copy`). Sums with the input or the newest version become the next version at once, so that versions
// follow each other as they do in the program. All copies of a chunk that does not reduce are equal: any of
// them is `acc`, and there are no versions.
//
// A transfer that reads version v comes after all transfers that make versions up to v, and before all that
// make later ones; these orders become the steps that `retime` takes (see lift_order.hpp).
//
// Anything that a schedule cannot express is refused, with the step: a second sum of a chunk besides the
// rank's `acc`, data that arrives and is never used, an order of transfers that no schedule has.
//
// Cost: O(n log n) for n slots of messages, and some 100 bytes for each.
#pragma once

#include "model/program.hpp"
#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

// The schedule of a correct program (others may be lifted or refused), for the whole size in bytes as
// nccl-tests counts it. Parts of the size keep the program's proportions, rounded up to whole bytes.
// Transfers between two NPUs take the routes of their channels (channel_routes), or else the shortest. Throws
// std::invalid_argument for what a schedule cannot express.
Schedule lift(const Program& program, const std::shared_ptr<const Topology>& topology,
              std::int64_t size, std::string provenance, const Progress& progress);

}  // namespace tacos
