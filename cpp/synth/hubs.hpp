// Collectives of few bytes: collect a chunk at a few hubs, exchange there, and spread it, chunk by chunk.
//
// A chunk's hubs are some of the members. Every other member sends its sum once, towards a hub, after the members whose
// sums come over it. Then the hubs exchange in stages, as the engine `exchange` does: each sends its sum to the others of
// its group, so that all of them have the full sum after the last stage; or, without stages, the first of them adds up and
// hands the sum out. From the hubs it spreads. One hub is a tree up and down; all members as hubs are recursive doubling;
// what lies between takes fewer hops than the one, and fewer bytes than the other.
//
// Chunks are laid one after the other, each into the gaps that the others leave on the links, so that the next chunk is
// collected while the last one is exchanged. The members collect backwards in time from the moment at which the hubs
// begin to exchange: whichever can leave last joins next. That moment is put off until all leave at 0 or later.
// Spreading goes forwards: whichever arrives first joins next. Of some sets of hubs the one is kept with which the chunk
// ends first. Then, as in refine.hpp, some late chunks and some others are taken out and laid again, as long as
// hops may be looked at.
//
// An all-gather only spreads; the hub of a chunk is the member that has it.
//
// Times are reserved ahead, which a retimed list cannot do: there, links serve first what is ready first, so all first
// sends of all chunks come before anything that depends on them.
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
  std::vector<NodeId> npus;  // by number of their digits, of which the first counts ones
  std::vector<std::int32_t>
      digits;  // their product is the number of hubs; none: the first hub adds up for all
  bool straight =
      false;  // whether switches are left to the hubs: members use links from NPU to NPU only
};

struct HubOptions {
  std::uint64_t seed = 0;
  std::int64_t hops = 0;  // hops that may be looked at, about 100 ns each, once all chunks are laid
  Time goal = 0;          // no schedule is shorter
};

// A schedule of an all-reduce or all-gather with one part; of `choices`, an all-gather only reads whether they are straight. Throws InfeasibleError where none of them reaches all members over hops between neighbours.
Schedule meet_at_hubs(const std::shared_ptr<const Topology>& topology,
                      const std::shared_ptr<const Collective>& collective,
                      std::span<const Hubs> choices, const HubOptions& options,
                      std::string provenance, const Progress& progress);

}  // namespace tacos
