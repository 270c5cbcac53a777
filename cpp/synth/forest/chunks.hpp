// Chunks on the trees of a forest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective.hpp"
#include "schedule.hpp"
#include "synth/forest/packing.hpp"

namespace tacos {

// What goes where, as retime() takes it: piece after piece, each down its tree.
struct ForestMoves {
  std::vector<RouteId> route;
  std::vector<ChunkId> chunk;
  std::vector<std::int32_t> step;    // hops from the root
  std::vector<std::int32_t> piece;   // of its holder's chunks
  std::vector<std::int32_t> parent;  // the move into its source; -1 at the holder
  std::vector<std::int32_t> turn;    // orders what is as urgent: from one NPU to the next
};

// Chunk x starts at holder[x], a root of the forest, and goes down one of its trees. Every tree gets chunks
// in proportion to its weight, as evenly over time as possible.
ForestMoves moves(const Forest& forest, std::span<const NodeId> holder);

// The schedule of a collective that sums nothing.
Schedule schedule(const Forest& forest, std::span<const NodeId> holder,
                  std::shared_ptr<const Collective> collective, std::string provenance,
                  const Progress& progress);

}  // namespace tacos
