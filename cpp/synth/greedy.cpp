#include "synth/greedy.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "synth/greedy_events.hpp"
#include "synth/greedy_steps.hpp"
#include "synth/neighbours.hpp"
#include "synth/paths.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

// The routes of the step-synchronous variant: one per link.
Routes link_routes(const std::shared_ptr<const Topology>& topology) {
  const auto count = static_cast<std::size_t>(topology->links());
  std::vector<std::int64_t> begin(count + 1);
  std::vector<LinkId> links(count);
  std::iota(begin.begin(), begin.end(), std::int64_t{0});
  std::iota(links.begin(), links.end(), LinkId{0});
  std::vector<std::uint8_t> kinds(count, static_cast<std::uint8_t>(RouteKind::path));
  return Routes(topology, std::move(kinds), std::move(begin), std::move(links));
}

// The most frequent chunk size, or close to it: that of the first chunk with any bytes.
std::int64_t typical_size(const Collective& collective) {
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (collective.bytes(chunk) > 0) return collective.bytes(chunk);
  }
  return 1;
}

// Whether every NPU contributes something and needs everything: then any route may take any chunk at any
// time, without planned paths.
bool all_to_all_npus(const Collective& collective) {
  const auto npus = static_cast<std::size_t>(collective.npus());
  std::vector<std::uint8_t> brings(npus, 0);
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (collective.bytes(chunk) > 0 && collective.outputs(chunk).size() != npus) return false;
    for (const NodeId npu : collective.inputs(chunk)) brings[static_cast<std::size_t>(npu)] = 1;
  }
  return std::find(brings.begin(), brings.end(), 0) == brings.end();
}

}  // namespace

Schedule greedy(const std::shared_ptr<const Topology>& topology,
                const std::shared_ptr<const Collective>& collective, const GreedyOptions& options,
                const std::string& provenance, const Progress& progress) {
  if (collective->npus() != topology->npus()) {
    invalid("the collective is for " + std::to_string(collective->npus()) +
            " NPUs, but the topology has " + std::to_string(topology->npus()));
  }
  if (!collective->resolved()) invalid("the greedy engine needs a number of chunks");
  for (ChunkId chunk = 0; chunk < collective->chunks(); ++chunk) {
    if (collective->reduces(chunk)) invalid("the greedy engine does not reduce");
  }
  if (options.steps) {
    auto transfers = greedy_steps(*topology, *collective, options, progress);
    if (transfers) {
      return Schedule(collective, std::make_shared<const Routes>(link_routes(topology)),
                      std::move(*transfers), std::nullopt, provenance);
    }
  }
  const auto bytes = typical_size(*collective);
  const auto schedule = [&](std::shared_ptr<const Routes> routes, const TimedMoves& moves,
                            const Progress& report) {
    const auto count = moves.route.size();
    const std::vector<std::uint8_t> op(count, static_cast<std::uint8_t>(Op::copy));
    const std::vector<std::uint8_t> reads(count, static_cast<std::uint8_t>(Reads::acc));
    const Order order{moves.route, moves.chunk, moves.step, op, reads};
    // Others were timed as if no chunk waited between legs, and all chunks were of one size.
    for (const RouteId route : moves.route) {
      if (!routes->steady(route))
        return retime(collective, std::move(routes), order, provenance, report);
    }
    return with_starts(collective, std::move(routes), order, moves.start, provenance, report);
  };
  if (all_to_all_npus(*collective)) {
    auto routes = std::make_shared<const Routes>(neighbour_routes(topology, bytes, progress));
    const auto moves =
        greedy_events(*routes, *collective, bytes, options, part_of(progress, 0, 0.8));
    return schedule(std::move(routes), moves, part_of(progress, 0.8, 1));
  }
  std::optional<Schedule> best;
  double done = 0.4;
  for (auto& paths : lay_paths(topology, *collective, options, part_of(progress, 0, done))) {
    const auto moves =
        greedy_events(paths, *collective, bytes, options, part_of(progress, done, done + 0.2));
    auto found = schedule(std::make_shared<const Routes>(std::move(paths.routes)), moves,
                          part_of(progress, done + 0.2, done + 0.3));
    done += 0.3;  // there are at most two
    if (!best || found.time() < best->time()) best = std::move(found);
  }
  return std::move(*best);
}

}  // namespace tacos
