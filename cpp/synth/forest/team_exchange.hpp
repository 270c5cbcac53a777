// All-reduces of few bytes, in which latency dominates.
//
// NPUs form teams of equal size (boxes, or each NPU alone). For every chunk, the members of each team first send their
// inputs directly to one member, the owner. The owners then send their sums directly to each other, and finally the
// total to their teams. So the network is crossed once. Owners rotate from chunk to chunk. With teams of one, this is a
// single step: every member sends its input to all others.
//
// An owner must have sent its sum to the others before their sums arrive and are added to it. Sums are in flight for at
// least a latency, which is usually longer than sending them all. If it is not, no schedule is returned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "model/collective.hpp"
#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

// `members` are those of the all-reduce, team by team, `team` of them each. nullopt if a path has more than
// one leg, a chunk is empty, sums take time, or finding times would take too long.
std::optional<Schedule> team_exchange(const std::shared_ptr<const Topology>& topology,
                                      std::span<const NodeId> members, std::int32_t team,
                                      std::shared_ptr<const Collective> collective,
                                      std::string provenance, const Progress& progress);

}  // namespace tacos
