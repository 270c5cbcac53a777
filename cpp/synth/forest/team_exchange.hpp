// All-reduces of few bytes, where every hop costs more than what it carries.
//
// NPUs fall into teams of one size (boxes, or each NPU alone). Of every chunk, each team first sums its part at one
// of its members, straight; these then send their sums to each other at once, so that each has the whole after
// one way across; and spread it in their teams, straight. Owners take turns from chunk to chunk. With teams of one
// that is a single step: every member sends its input to all others.
//
// An owner must have sent its sum to the others before theirs arrive and are added to it. Sums are under way for at
// least a latency, which is mostly longer than it takes to send them all. Where it is not, there is no schedule.
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

// `members` are those of the all-reduce, team by team, `team` of them each. Nothing where some way has more than
// one leg, a chunk is empty, sums take time, or finding times would.
std::optional<Schedule> team_exchange(const std::shared_ptr<const Topology>& topology,
                                      std::span<const NodeId> members, std::int32_t team,
                                      std::shared_ptr<const Collective> collective,
                                      std::string provenance, const Progress& progress);

}  // namespace tacos
