// The layout of two trees on a network: the rank at each place, chosen so that tree edges rarely share links.
//
// Both trees have the same form: parent[p] is the place above p, and place 0 is the root. An edge uses
// the links of the route up and those of the route down. The price of a layout is the sum over all links
// of the cube of their load (so that one full link outweighs several others), then the number of
// links that all edges use. Two ranks of one tree swap places whenever that lowers the price, until no
// swap does; then the search starts again from a random layout, and the best one is kept. A trial costs
// the links of the few edges that it moves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/progress.hpp"

namespace tacos {

struct TreeLayout {
  std::span<const std::int32_t> parent;
  std::span<const std::int64_t> weight;  // of one edge on each link; at most 64
  bool fixed_root = false;               // place 0 keeps its rank
  std::int64_t trials = 0;
};

// Route i·n + j leads from rank i to rank j (and is ignored for i = j). `place` is the rank at each place,
// tree after tree. Returns a layout that is at least as good.
std::vector<std::int32_t> lay_out(const TreeLayout& problem, const Routes& routes,
                                  std::span<const std::int32_t> place, const Progress& progress);

}  // namespace tacos
