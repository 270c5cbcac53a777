// Chunks on the trees of a forest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/collective.hpp"
#include "model/schedule.hpp"
#include "synth/forest/packing.hpp"

namespace tacos {

// Moves in the form that retime() takes, piece by piece, each down its tree.
struct ForestMoves {
  std::vector<RouteId> route;
  std::vector<ChunkId> chunk;
  std::vector<std::int32_t> step;   // hops from the root
  std::vector<std::int32_t> piece;  // number among its holder's chunks, as if all held equally many
  std::vector<std::int32_t> turn;   // breaks ties of urgency: distance on the circle of NPUs
  std::vector<std::int64_t> after_begin{0};
  std::vector<std::int32_t> after;  // earlier moves that each has to wait for

  std::span<const std::int32_t> after_of(std::size_t move) const {
    const auto begin = static_cast<std::size_t>(after_begin[move]);
    return std::span(after).subspan(begin, static_cast<std::size_t>(after_begin[move + 1]) - begin);
  }
  // Ends the list of moves that the last move waits for.
  void close() { after_begin.push_back(static_cast<std::int64_t>(after.size())); }
};

// Chunk x starts at holder[x], a root of the forest, and goes down one of its trees. Every tree gets chunks
// in proportion to its weight, as evenly over time as possible.
ForestMoves moves(const Forest& forest, std::span<const NodeId> holder);

// The schedule of a collective that only copies.
Schedule schedule(const Forest& forest, std::span<const NodeId> holder,
                  std::shared_ptr<const Collective> collective, std::string provenance,
                  const Progress& progress);

// An all-reduce: the sum of chunk x goes up a tree of `up`, packed on the reversed network, to holder[x],
// and from there, as soon as it is complete, down a tree of `down`.
Schedule all_reduce(const Forest& up, const Forest& down, std::span<const NodeId> holder,
                    std::shared_ptr<const Collective> collective, std::string provenance,
                    const Progress& progress);

// Moves, with the data that a schedule needs.
struct Untimed {
  std::shared_ptr<const Routes> routes;
  ForestMoves moves;
  std::vector<std::uint8_t> op;
};

// The schedule of moves: by urgency (timing.hpp) where all routes have one leg, else in the order of the list.
Schedule timed(const Untimed& untimed, std::shared_ptr<const Collective> collective,
               std::string provenance, const Progress& progress);

}  // namespace tacos
