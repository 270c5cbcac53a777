#include "synth/forest/chunks.hpp"

#include <algorithm>
#include <numeric>

#include "error.hpp"

namespace tacos {

namespace {

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

// The hops from the root to the end of every hop.
std::vector<std::int32_t> depths(const Forest& forest) {
  std::vector<std::int32_t> depth(at(forest.routes->topology().nodes()), 0), result;
  for (std::size_t tree = 0; tree < forest.root.size(); ++tree) {
    depth[at(forest.root[tree])] = 0;
    for (auto h = forest.hop_begin[tree]; h < forest.hop_begin[tree + 1]; ++h) {
      const auto links = forest.routes->links(forest.hop[at(h)]);
      const auto& topology = forest.routes->topology();
      const auto from = depth[at(topology.src(links.front()))];
      depth[at(topology.dst(links.back()))] = from + 1;
      result.push_back(from);
    }
  }
  return result;
}

}  // namespace

ForestMoves moves(const Forest& forest, std::span<const NodeId> holder) {
  const auto nodes = at(forest.routes->topology().nodes());
  std::vector<std::vector<std::size_t>> trees(nodes);
  std::vector<std::int64_t> weight(nodes, 0);
  for (std::size_t tree = 0; tree < forest.root.size(); ++tree) {
    const auto root = at(forest.root[tree]);
    trees[root].push_back(tree);
    weight[root] += forest.weight[tree];
  }
  std::vector<std::int64_t> given(forest.root.size(), 0), pieces(nodes, 0);
  std::vector<std::int64_t> piece(holder.size());
  std::vector<std::size_t> tree_of(holder.size());
  for (std::size_t x = 0; x < holder.size(); ++x) {
    const auto root = holder[x] >= 0 && at(holder[x]) < nodes ? at(holder[x]) : nodes;
    if (root == nodes || trees[root].empty()) invalid("a chunk starts where no tree does");
    piece[x] = pieces[root]++;
    const auto lag = [&](std::size_t tree) {
      return static_cast<__int128>(forest.weight[tree]) * pieces[root] -
             static_cast<__int128>(given[tree]) * weight[root];
    };
    tree_of[x] = *std::max_element(trees[root].begin(), trees[root].end(),
                                   [&](std::size_t a, std::size_t b) { return lag(a) < lag(b); });
    ++given[tree_of[x]];
  }
  std::vector<std::size_t> order(holder.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return piece[a] < piece[b]; });
  const auto depth = depths(forest);
  ForestMoves result;
  for (const auto x : order) {
    for (auto h = forest.hop_begin[tree_of[x]]; h < forest.hop_begin[tree_of[x] + 1]; ++h) {
      result.route.push_back(forest.hop[at(h)]);
      result.chunk.push_back(static_cast<ChunkId>(x));
      result.step.push_back(depth[at(h)]);
    }
  }
  return result;
}

}  // namespace tacos
