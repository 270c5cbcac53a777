#include "synth/forest/chunks.hpp"

#include <algorithm>
#include <numeric>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/forest/timing.hpp"
#include "timing/retime.hpp"

namespace tacos {

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
  // An NPU that holds fewer chunks starts them at larger intervals.
  const auto most = pieces.empty() ? 0 : *std::max_element(pieces.begin(), pieces.end());
  const auto turn = [&](std::size_t x) {
    return static_cast<std::int32_t>(piece[x] * most / pieces[at(holder[x])]);
  };
  std::vector<std::size_t> order(holder.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return turn(a) < turn(b); });
  ForestMoves result;
  const auto& topology = forest.routes->topology();
  std::vector<std::int32_t> into(nodes, -1);
  for (const auto x : order) {
    into[at(holder[x])] = -1;
    for (auto h = forest.hop_begin[tree_of[x]]; h < forest.hop_begin[tree_of[x] + 1]; ++h) {
      result.route.push_back(forest.hop[at(h)]);
      result.chunk.push_back(static_cast<ChunkId>(x));
      result.step.push_back(forest.depth[at(h)]);
      result.piece.push_back(turn(x));
      const NodeId from = forest.routes->sources(result.route.back())[0];
      const auto ends = forest.routes->destinations(result.route.back());
      if (into[at(from)] >= 0) result.after.push_back(into[at(from)]);
      result.close();
      // Start with different destinations, which would otherwise be a bottleneck.
      const auto ahead = ends[0] - from;
      result.turn.push_back(ahead < 0 ? ahead + topology.npus() : ahead);
      for (const NodeId end : ends) {
        into[at(end)] = static_cast<std::int32_t>(result.route.size()) - 1;
      }
    }
  }
  return result;
}

namespace {

void check(std::span<const NodeId> holder, const Collective& collective) {
  if (holder.size() == collective.chunks()) return;
  invalid(std::to_string(holder.size()) + " holders are given for " +
          std::to_string(collective.chunks()) + " chunks");
}

// Appends the sums up the trees, in the reverse order of the distribution.
void append_up(const ForestMoves& spread, std::int32_t highest, ForestMoves& all) {
  const auto count = spread.route.size();
  std::vector<std::vector<std::int32_t>> below(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (const auto above : spread.after_of(i)) {
      below[at(above)].push_back(static_cast<std::int32_t>(count - 1 - i));
    }
  }
  for (std::size_t i = count; i-- > 0;) {
    all.route.push_back(spread.route[i]);
    all.chunk.push_back(spread.chunk[i]);
    all.step.push_back(highest - spread.step[i]);
    all.piece.push_back(spread.piece[i]);
    all.turn.push_back(spread.turn[i]);
    all.after.insert(all.after.end(), below[i].begin(), below[i].end());
    all.close();
  }
}

void append_down(const ForestMoves& spread, std::int32_t highest, RouteId first_route,
                 const std::vector<std::vector<std::int32_t>>& last, ForestMoves& all) {
  const auto first = static_cast<std::int32_t>(all.route.size());
  for (std::size_t i = 0; i < spread.route.size(); ++i) {
    all.route.push_back(first_route + spread.route[i]);
    all.chunk.push_back(spread.chunk[i]);
    all.step.push_back(highest + spread.step[i]);
    all.piece.push_back(spread.piece[i]);
    all.turn.push_back(spread.turn[i]);
    for (const auto above : spread.after_of(i)) all.after.push_back(first + above);
    if (spread.after_of(i).empty()) {
      const auto& sums = last[spread.chunk[i]];
      all.after.insert(all.after.end(), sums.begin(), sums.end());
    }
    all.close();
  }
}

}  // namespace

Schedule timed(const Untimed& untimed, std::shared_ptr<const Collective> collective,
               std::string provenance, const Progress& progress) {
  const auto& moves = untimed.moves;
  progress.reserve(static_cast<double>(moves.route.size()) * work::kTransfer);
  const std::vector<std::uint8_t> reads(moves.route.size(), static_cast<std::uint8_t>(Reads::acc));
  const Order order{moves.route, moves.chunk, moves.step, untimed.op, reads};
  const auto& topology = untimed.routes->topology();
  bool simple = topology.spec().reduce_bandwidth_Bps == 0;
  for (RouteId r = 0; r < untimed.routes->count(); ++r) {
    simple &= untimed.routes->steady(r);
  }
  std::int64_t bytes = 0;
  for (ChunkId x = 0; x < collective->chunks(); ++x) {
    bytes = std::max(bytes, collective->bytes(x));
    simple &= collective->bytes(x) > 0;
  }
  if (!simple) {
    return retime(std::move(collective), untimed.routes, order, std::move(provenance), progress);
  }
  std::vector<std::int32_t> every_link(at(topology.links()));
  std::iota(every_link.begin(), every_link.end(), 0);
  const auto timing =
      forest::time_by_urgency(*untimed.routes, moves, bytes, every_link, 1, progress);
  return with_starts(std::move(collective), untimed.routes, order, timing.start,
                     std::move(provenance), progress);
}

Schedule schedule(const Forest& forest, std::span<const NodeId> holder,
                  std::shared_ptr<const Collective> collective, std::string provenance,
                  const Progress& progress) {
  check(holder, *collective);
  Untimed untimed{forest.routes, moves(forest, holder), {}};
  untimed.op.assign(untimed.moves.route.size(), static_cast<std::uint8_t>(Op::copy));
  return timed(untimed, std::move(collective), std::move(provenance), progress);
}

Schedule all_reduce(const Forest& up, const Forest& down, std::span<const NodeId> holder,
                    std::shared_ptr<const Collective> collective, std::string provenance,
                    const Progress& progress) {
  check(holder, *collective);
  const auto sums = moves(up, holder), results = moves(down, holder);
  std::int32_t highest = 0;
  for (const auto depth : sums.step) highest = std::max(highest, depth);
  std::vector<std::vector<std::int32_t>> last(holder.size());  // moves of sums into each holder
  for (std::size_t i = 0; i < sums.route.size(); ++i) {
    if (!sums.after_of(i).empty()) continue;
    last[sums.chunk[i]].push_back(static_cast<std::int32_t>(sums.route.size() - 1 - i));
  }
  Untimed untimed;
  append_up(sums, highest, untimed.moves);
  untimed.op.assign(untimed.moves.route.size(), static_cast<std::uint8_t>(Op::reduce));
  append_down(results, highest, up.routes->count(), last, untimed.moves);
  untimed.op.resize(untimed.moves.route.size(), static_cast<std::uint8_t>(Op::copy));
  const auto& topology = down.routes->shared_topology();
  const auto sums_routes = up.routes->reversed(topology);
  std::vector<LinkId> links;
  std::vector<std::int64_t> begin{0};
  std::vector<std::uint8_t> kinds;
  for (const auto* routes : {&sums_routes, down.routes.get()}) {
    for (RouteId r = 0; r < routes->count(); ++r) {
      const auto path = routes->links(r);
      links.insert(links.end(), path.begin(), path.end());
      begin.push_back(static_cast<std::int64_t>(links.size()));
      kinds.push_back(static_cast<std::uint8_t>(routes->kind(r)));
    }
  }
  untimed.routes = std::make_shared<const Routes>(topology, std::move(kinds), std::move(begin),
                                                  std::move(links));
  return timed(untimed, std::move(collective), std::move(provenance), progress);
}

}  // namespace tacos
