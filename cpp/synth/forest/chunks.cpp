#include "synth/forest/chunks.hpp"

#include <algorithm>
#include <numeric>

#include "error.hpp"
#include "retime.hpp"
#include "synth/forest/timing.hpp"

namespace tacos {

namespace {

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
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
  ForestMoves result;
  const auto& topology = forest.routes->topology();
  std::vector<std::int32_t> into(nodes, -1);
  for (const auto x : order) {
    into[at(holder[x])] = -1;
    for (auto h = forest.hop_begin[tree_of[x]]; h < forest.hop_begin[tree_of[x] + 1]; ++h) {
      result.route.push_back(forest.hop[at(h)]);
      result.chunk.push_back(static_cast<ChunkId>(x));
      result.step.push_back(forest.depth[at(h)]);
      result.piece.push_back(static_cast<std::int32_t>(piece[x]));
      const auto links = forest.routes->links(result.route.back());
      const auto above = into[at(topology.src(links.front()))];
      if (above >= 0) result.after.push_back(above);
      result.close();
      // If all began with the same destination, they would wait for each other.
      const auto ahead = topology.dst(links.back()) - topology.src(links.front());
      result.turn.push_back(ahead < 0 ? ahead + topology.npus() : ahead);
      into[at(topology.dst(links.back()))] = static_cast<std::int32_t>(result.route.size()) - 1;
    }
  }
  return result;
}

Schedule schedule(const Forest& forest, std::span<const NodeId> holder,
                  std::shared_ptr<const Collective> collective, std::string provenance,
                  const Progress& progress) {
  if (holder.size() != collective->chunks()) {
    invalid(std::to_string(holder.size()) + " holders are given for " +
            std::to_string(collective->chunks()) + " chunks");
  }
  const auto all = moves(forest, holder);
  const std::vector<std::uint8_t> op(all.route.size(), static_cast<std::uint8_t>(Op::copy));
  const std::vector<std::uint8_t> reads(all.route.size(), static_cast<std::uint8_t>(Reads::acc));
  const Order order{all.route, all.chunk, all.step, op, reads};
  bool one_leg = true;
  for (RouteId r = 0; r < forest.routes->count(); ++r) one_leg &= forest.routes->legs(r) == 1;
  std::int64_t bytes = 0;
  bool empty = false;
  for (ChunkId x = 0; x < collective->chunks(); ++x) {
    bytes = std::max(bytes, collective->bytes(x));
    empty |= collective->bytes(x) == 0;
  }
  if (!one_leg || empty) {
    return retime(std::move(collective), forest.routes, order, std::move(provenance), progress);
  }
  std::vector<std::int32_t> every_link(at(forest.routes->topology().links()));
  std::iota(every_link.begin(), every_link.end(), 0);
  const auto timing = forest::time_by_urgency(*forest.routes, all, bytes, every_link, 1, progress);
  return with_starts(std::move(collective), forest.routes, order, timing.start,
                     std::move(provenance), progress);
}

}  // namespace tacos
