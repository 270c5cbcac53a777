// Collectives of few bytes: each chunk is collected at a few leaders, exchanged among them, and spread from there.
//
// The leaders of a chunk are some of the members. Every other member sends its sum once, towards a leader, after it has received
// the sums that it forwards. Then the leaders exchange in stages, as the engine `exchange` does: each leader sends its sum to the
// others of its group, so that all leaders have the full sum after the last stage. Without stages, the first leader adds up and
// sends the sum to the others. From the leaders the sum spreads. One leader gives a tree up and down, all members as leaders give
// recursive doubling; numbers in between take fewer hops than the former, and fewer bytes than the latter.
//
// Between boxes, a chunk may have receivers as well: each leader sends its sum to all of them, and the full sum spreads from
// there. Where no hop joins a leader and a receiver, or only a slow one through a switch, members between them pass the sum
// on. These have sent their own sums, so the message may overwrite them (relays.hpp). A receiver that
// is not a leader has sent its own sum to one, so the first message overwrites it and the others are added.
//
// Chunks are laid one after the other, each into the gaps that the others leave on the links, so that the next chunk is
// collected while the last one is exchanged. Collecting is planned backwards in time from the moment at which the leaders
// begin to exchange: the member that can leave last joins next. That moment is delayed until all members leave at 0 or
// later. Spreading is planned forwards: the member that is reached first joins next. Several sets of leaders are tried, and
// the one with which the chunk ends first is kept. Then, as in refine.hpp, some late chunks and some others are removed
// and laid again, until the budget of hops is used up. For that, there may be more sets of leaders: laid first, chunks with many
// messages would only delay the others, but in the gaps at the end they cost nothing.
//
// In an all-gather, chunks only spread; the leader of a chunk is the member that has it.
//
// Times are reserved ahead, which retiming an order cannot do: there, links serve first what is ready first, so the
// first sends of all chunks come before all sends that depend on them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct Leaders {
  // A leader's position, written in the mixed radix `digits` (least significant first), gives its group in
  // each stage: the leaders that differ in one digit.
  std::vector<NodeId> npus;
  std::vector<std::int32_t> digits;  // their product is the number of leaders; empty: no stages
  std::vector<NodeId> receivers;     // if any, all leaders send their sums to all of these instead
  bool straight =
      false;  // whether members use direct links only, so that only leaders use switches
};

struct LeaderOptions {
  std::uint64_t seed = 0;
  std::int64_t hops = 0;  // most hops to examine once all chunks are laid, about 100 ns each
  Time goal = 0;          // lower bound of the time
  Time most = 0;          // if not 0, give up once a chunk ends later than this
  std::size_t first = 0;  // number of sets with which chunks are laid at first; 0: all of them
};

// A schedule of an all-reduce or all-gather with one part. Of `choices`, an all-gather uses only `straight`. Throws
// InfeasibleError if none of them reaches all members over hops between neighbours, or if it takes longer than
// `options.most`.
Schedule meet_at_leaders(const std::shared_ptr<const Topology>& topology,
                         const std::shared_ptr<const Collective>& collective,
                         std::span<const Leaders> choices, const LeaderOptions& options,
                         std::string provenance, const Progress& progress);

}  // namespace tacos
