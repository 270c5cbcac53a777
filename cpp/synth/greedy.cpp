#include "synth/greedy.hpp"

#include <numeric>

#include "retime.hpp"
#include "synth/greedy_events.hpp"
#include "synth/greedy_steps.hpp"
#include "synth/neighbours.hpp"

namespace tacos {

namespace {

// The routes of the step-synchronous way: one per link.
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

}  // namespace

Schedule greedy(const std::shared_ptr<const Topology>& topology,
                const std::shared_ptr<const Collective>& collective, const GreedyOptions& options,
                const std::string& provenance, const Progress& progress) {
  if (!collective->resolved()) invalid("the greedy engine needs a number of chunks");
  for (ChunkId chunk = 0; chunk < collective->chunks(); ++chunk) {
    if (collective->reduces(chunk)) invalid("the greedy engine sums nothing by itself");
  }
  if (options.steps) {
    auto transfers = greedy_steps(*topology, *collective, options, progress);
    if (transfers) {
      return Schedule(collective, std::make_shared<const Routes>(link_routes(topology)),
                      std::move(*transfers), std::nullopt, provenance);
    }
  }
  const auto bytes = typical_size(*collective);
  auto routes = std::make_shared<const Routes>(neighbour_routes(topology, bytes));
  const auto found = greedy_events(*routes, *collective, bytes, options, progress);
  const std::vector<std::uint8_t> op(found.route.size(), static_cast<std::uint8_t>(Op::copy));
  const std::vector<std::uint8_t> reads(found.route.size(), static_cast<std::uint8_t>(Reads::acc));
  const Order order{found.route, found.chunk, found.step, op, reads};
  // A route of several legs was taken as if nothing ever waited between them.
  for (const RouteId route : found.route) {
    if (routes->legs(route) > 1)
      return retime(collective, std::move(routes), order, provenance, progress);
  }
  return with_starts(collective, std::move(routes), order, found.start, provenance, progress);
}

}  // namespace tacos
