// Collectives of few bytes: each chunk is collected at a few hubs, exchanged among them, and spread from there.
//
// The hubs of a chunk are some of the members. Every other member sends its sum once, towards a hub, after it has received
// the sums that it forwards. Then the hubs exchange in stages, as the engine `exchange` does: each hub sends its sum to the
// others of its group, so that all hubs have the full sum after the last stage. Without stages, the first hub adds up and
// sends the sum to the others. From the hubs the sum spreads. One hub gives a tree up and down, all members as hubs give
// recursive doubling; numbers in between take fewer hops than the former, and fewer bytes than the latter.
//
// Between boxes, a chunk may have receivers as well: each hub sends its sum to all of them, and the full sum spreads from
// there. Where no hop joins a hub and a receiver, or only a slow one through a switch, members between them pass the sum
// on. These have sent their own sums, so the message may overwrite them (relays.hpp). A receiver that
// is not a hub has sent its own sum to one, so the first message overwrites it and the others are added.
//
// Chunks are laid one after the other, each into the gaps that the others leave on the links, so that the next chunk is
// collected while the last one is exchanged. Collecting is planned backwards in time from the moment at which the hubs
// begin to exchange: the member that can leave last joins next. That moment is delayed until all members leave at 0 or
// later. Spreading is planned forwards: the member that is reached first joins next. Several sets of hubs are tried, and
// the one with which the chunk ends first is kept. Then, as in refine.hpp, some late chunks and some others are removed
// and laid again, until the budget of hops is used up. For that, there may be more sets of hubs: laid first, chunks with many
// messages would only delay the others, but in the gaps at the end they cost nothing.
//
// In an all-gather, chunks only spread; the hub of a chunk is the member that has it.
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

struct Hubs {
  // A hub's position, written in the mixed radix `digits` (least significant first), gives its group in
  // each stage: the hubs that differ in one digit.
  std::vector<NodeId> npus;
  std::vector<std::int32_t> digits;  // their product is the number of hubs; empty: no stages
  std::vector<NodeId> receivers;     // if any, all hubs send their sums to all of these instead
  bool straight = false;  // whether members use direct links only, so that only hubs use switches
};

struct HubOptions {
  std::uint64_t seed = 0;
  std::int64_t hops = 0;  // most hops to examine once all chunks are laid, about 100 ns each
  Time goal = 0;          // lower bound of the time
  Time most = 0;          // if not 0, give up once a chunk ends later than this
  std::size_t first = 0;  // number of sets with which chunks are laid at first; 0: all of them
};

// A schedule of an all-reduce or all-gather with one part. Of `choices`, an all-gather uses only `straight`. Throws
// InfeasibleError if none of them reaches all members over hops between neighbours, or if it takes longer than
// `options.most`.
Schedule meet_at_hubs(const std::shared_ptr<const Topology>& topology,
                      const std::shared_ptr<const Collective>& collective,
                      std::span<const Hubs> choices, const HubOptions& options,
                      std::string provenance, const Progress& progress);

}  // namespace tacos
