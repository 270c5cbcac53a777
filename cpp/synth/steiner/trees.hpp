// Trees that connect some NPUs of a network through any others, so that the links share the load.
//
// The problem. Every tree connects its terminals: it carries a chunk from a root to them, their sum to a root, or
// both. The other NPUs may be on the way, and copy or sum there. Links should carry little in total (a Steiner tree
// has the fewest links), and none much more than the others, since the most loaded link limits the time.
//
// The method. A tree grows from its root or, if any root will do, from one of its terminals: the terminal that is nearest to any NPU of
// the tree is joined by its cheapest path, until all are joined (H. Takahashi and A. Matsuyama, 1980: at most
// twice the fewest links). A link costs its time for the chunks of the tree, times 1 + 16 u^16, where u is what it
// carries relative to the most loaded link. So prices hardly matter up to about 80 % of the highest load, and
// keep trees off the links above that. Distances from the root count a little, by `depth`: deep trees take many chunks to fill.
// After the first round, each tree in turn is removed and grown again at the prices that the others cause. The round
// with the least loaded busiest link is kept.
//
// A tree both ways carries the sum to its root and the result back, over each link and the opposite one once. So its
// root does not matter for the load; it is moved to the middle of the tree.
//
// Cost: O(links · log nodes) for each tree and round, times the number of times that a nearer NPU of the tree is found. Links to
// and from switches become dearer with each use, so with switches the search starts anew for each terminal.
#pragma once

#include <cstdint>
#include <vector>

#include "model/topology.hpp"
#include "support/progress.hpp"
#include "synth/both_ways.hpp"

namespace tacos::steiner {

enum class Way : std::uint8_t { down, up, both };

struct TreeDemand {
  Way way = Way::down;
  NodeId root = -1;               // -1, for trees both ways only: any NPU
  std::vector<NodeId> terminals;  // without duplicates
  std::int64_t bytes = 0;         // of a chunk
  std::int64_t chunks = 1;        // chunks that the tree carries
};

// Hops are paths from NPU to NPU, through switches only, away from the root. Of trees up, links lead towards the root, and
// each path begins at the end that is nearer to the root.
using Tree = HopTree;

struct Packing {
  std::vector<Tree> trees;  // one per demand
  Time busiest = 0;         // time of the most loaded link for all chunks
};

// `back` has the opposite link of each link, if some demand is both ways. Throws InfeasibleError, which names a
// terminal that cannot be reached.
Packing pack(const Topology& topology, const std::vector<TreeDemand>& demands,
             const std::vector<LinkId>& back, const Progress& progress);

}  // namespace tacos::steiner
