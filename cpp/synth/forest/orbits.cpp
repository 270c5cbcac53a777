#include "synth/forest/orbits.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "synth/forest/balance.hpp"
#include "synth/forest/rates.hpp"
#include "synth/forest/timing.hpp"
#include "synth/forest/translations.hpp"

namespace tacos {

namespace {

using forest::Balance;
using forest::Translations;

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

constexpr std::int64_t kMostNodes = 1 << 24;    // of all trees together
constexpr Time kWhole = 1'000'000'000'000'000;  // the cost of all that an orbit can carry
constexpr std::size_t kTryStages = 200'000;     // moves, up to which half-balanced trees are tried
constexpr Time kLargestStart = std::numeric_limits<std::uint32_t>::max();

bool one_leg(const Routes& routes) {
  for (RouteId r = 0; r < routes.count(); ++r) {
    if (routes.legs(r) != 1) return false;
  }
  return true;
}

// Whether times can be mirrored: each link is then left as long before the end as it is reached after the
// start.
bool one_speed(const Routes& routes) {
  const auto& topology = routes.topology();
  for (RouteId r = 0; r < routes.count(); ++r) {
    for (const LinkId link : routes.links(r)) {
      if (topology.bandwidth(link) != topology.bandwidth(routes.links(r)[0])) return false;
    }
  }
  return topology.spec().reduce_bandwidth_Bps == 0;
}

std::vector<Time> times(const forest::Hops& hops, std::int64_t bytes) {
  std::vector<Time> result;
  for (const auto& way : hops.classes) {
    result.push_back(hops.routes->leg_time(way.routes[0], 0, bytes));
  }
  return result;
}

// Where the translation that takes NPU 0 to `by` takes links.
class Moved {
 public:
  Moved(const Topology& topology, const Symmetry& symmetry)
      : links_(at(topology.links())), symmetry_(symmetry) {}

  LinkId operator()(LinkId link, NodeId by) const {
    NodeId stride = 1;
    for (std::size_t g = 0; g < symmetry_.orders.size(); ++g) {
      for (auto times = by / stride % symmetry_.orders[g]; times > 0; --times) {
        link = symmetry_.link_image[g * links_ + at(link)];
      }
      stride *= symmetry_.orders[g];
    }
    return link;
  }

 private:
  std::size_t links_;
  const Symmetry& symmetry_;
};

// What NPU 0's chunks do: who passes which piece on, when, over the image of which route.
struct Part {
  forest::Hops hops;
  std::vector<NodeId> from;
  std::vector<RouteId> route;
  std::vector<std::int32_t> piece;
  std::vector<Time> start, arrival;
  Time end = 0;
};

ForestMoves moves_of(const Balance& balance, std::size_t nodes, std::vector<NodeId>& from) {
  ForestMoves moves;
  from.clear();
  std::vector<std::int32_t> into(nodes, -1);
  for (std::int32_t piece = 0; piece < balance.count(); ++piece) {
    for (const auto& step : balance.tree(piece)) {
      moves.parent.push_back(step.from == 0 ? -1 : into[at(step.from)]);
      into[at(step.to)] = static_cast<std::int32_t>(moves.route.size());
      moves.route.push_back(step.route);
      moves.piece.push_back(piece);
      moves.turn.push_back(0);
      from.push_back(step.from);
    }
  }
  return moves;
}

std::optional<Part> solve(const std::shared_ptr<const Topology>& topology,
                          const Translations& translations, std::int32_t pieces, std::int64_t bytes,
                          Time quantum, const Progress& progress) {
  Part part;
  part.hops = forest::hops(topology, translations);
  if (!one_leg(*part.hops.routes)) return std::nullopt;
  std::vector<Time> cost(at(translations.orbits()));
  for (LinkId link = 0; link < topology->links(); ++link) {
    cost[at(translations.orbit()[at(link)])] = topology->busy_time(link, bytes);
  }
  Balance balance(translations, part.hops, pieces, std::move(cost), times(part.hops, bytes));
  const auto nodes = at(topology->npus());
  bool first = true;
  const auto weigh = [&] {
    std::vector<NodeId> from;
    const auto moves = moves_of(balance, nodes, from);
    auto timing = forest::time_by_urgency(*part.hops.routes, moves, bytes, translations.orbit(),
                                          quantum, progress);
    if (!std::exchange(first, false) && timing.end >= part.end) return;
    part.from = std::move(from);
    part.route = moves.route;
    part.piece = moves.piece;
    part.start = std::move(timing.start);
    part.end = timing.end;
  };
  weigh();
  const bool stages = at(pieces) * nodes <= kTryStages;
  for (Time before = 0; before != balance.busiest();) {
    before = balance.busiest();
    balance.relieve(stages ? before / 4 * 3 : 0, progress);
    if (before != balance.busiest()) weigh();
  }
  const auto up = [&](Time time) { return (time + quantum - 1) / quantum * quantum; };
  for (std::size_t i = 0; i < part.route.size(); ++i) {
    part.arrival.push_back(part.start[i] + up(part.hops.routes->leg_time(part.route[i], 0, bytes)));
    part.end = std::max(part.end, part.arrival[i]);
  }
  return part;
}

// Collects the lanes of an orbit.
class Lanes {
 public:
  Lanes(std::shared_ptr<const Topology> topology, const Translations& translations,
        const Collective& collective)
      : topology_(std::move(topology)),
        translations_(translations),
        position_(collective.positions()),
        pieces_(collective.parts()[0].chunks) {}

  // NPU 0's chunks spread from time `at` on; every transfer moved so that it leaves NPU 0.
  void spread(const Part& part, Time begin) {
    add(part, false, [&](std::size_t i) { return begin + part.start[i]; });
  }
  // The part of the reversed network turned around in time; every transfer moved so that it ends at NPU 0.
  void collect(const Part& part) {
    add(part, true, [&](std::size_t i) { return part.end - part.arrival[i]; });
  }

  Time quantum() const {
    Time divisor = 0;
    for (const auto& row : rows_) divisor = std::gcd(divisor, row.start);
    return std::max<Time>(divisor, 1);
  }

  Schedule schedule(const std::shared_ptr<const Collective>& collective,
                    const std::string& provenance) && {
    const Time unit = quantum();
    std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
      return std::pair(a.lane, a.start) < std::pair(b.lane, b.start);
    });
    std::vector<RouteId> lane_route;
    std::vector<std::uint8_t> op, reads;
    std::vector<std::int64_t> lane_begin;
    std::vector<ChunkId> chunk;
    std::vector<std::uint32_t> start;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (i == 0 || rows_[i].lane != rows_[i - 1].lane) {
        lane_route.push_back(rows_[i].lane);
        op.push_back(static_cast<std::uint8_t>(sums_[at(rows_[i].lane)] ? Op::reduce : Op::copy));
        reads.push_back(static_cast<std::uint8_t>(Reads::acc));
        lane_begin.push_back(static_cast<std::int64_t>(i));
      }
      chunk.push_back(rows_[i].chunk);
      start.push_back(static_cast<std::uint32_t>(rows_[i].start / unit));
    }
    lane_begin.push_back(static_cast<std::int64_t>(rows_.size()));
    std::vector<std::uint8_t> kinds(begin_.size() - 1, static_cast<std::uint8_t>(RouteKind::path));
    auto routes = std::make_shared<const Routes>(topology_, std::move(kinds), std::move(begin_),
                                                 std::move(links_));
    Transfers transfers{std::move(lane_route),
                        std::move(op),
                        std::move(reads),
                        std::move(lane_begin),
                        std::move(chunk),
                        std::move(start),
                        unit};
    return Schedule(collective, std::move(routes), std::move(transfers), translations_.symmetry(),
                    provenance);
  }

 private:
  struct Row {
    RouteId lane;
    ChunkId chunk;
    Time start;
  };
  template <typename Start>
  void add(const Part& part, bool sums, Start&& start) {
    const auto first = static_cast<RouteId>(begin_.size()) - 1;
    for (RouteId r = 0; r < part.hops.routes->count(); ++r) {
      const auto links = part.hops.routes->links(r);
      links_.insert(links_.end(), links.begin(), links.end());
      if (sums)
        std::reverse(links_.end() - static_cast<std::ptrdiff_t>(links.size()), links_.end());
      begin_.push_back(static_cast<std::int64_t>(links_.size()));
      sums_.push_back(sums);
    }
    for (std::size_t i = 0; i < part.route.size(); ++i) {
      const auto owner = position_[at(translations_.minus(0, part.from[i]))];
      rows_.push_back(
          {first + part.route[i], static_cast<ChunkId>(owner * pieces_ + part.piece[i]), start(i)});
    }
  }

  std::shared_ptr<const Topology> topology_;
  const Translations& translations_;
  std::vector<std::int32_t> position_;
  std::int32_t pieces_;
  std::vector<std::int64_t> begin_{0};
  std::vector<LinkId> links_;
  std::vector<std::uint8_t> sums_;  // of each route
  std::vector<Row> rows_;
};

// The collective with the next size of which all chunks are equal.
std::shared_ptr<const Collective> padded(const std::shared_ptr<const Collective>& collective) {
  auto part = collective->parts()[0];
  const auto cut = static_cast<std::int64_t>(part.members()) * part.chunks;
  if (part.size % cut == 0) return collective;
  part.size += cut - part.size % cut;
  return std::make_shared<const Collective>(collective->npus(), std::vector{std::move(part)});
}

bool suits(const Topology& topology, const Collective& collective) {
  if (collective.parts().size() != 1 || !collective.resolved()) return false;
  const auto& part = collective.parts()[0];
  return (part.kind == CollectiveKind::all_gather || part.kind == CollectiveKind::reduce_scatter ||
          part.kind == CollectiveKind::all_reduce) &&
         part.members() == topology.npus() &&
         part.size >= static_cast<std::int64_t>(part.members()) * part.chunks;
}

}  // namespace

std::optional<Forest> pack_orbits(const std::shared_ptr<const Topology>& topology,
                                  const Progress& progress) {
  const auto translations = Translations::of(*topology);
  if (!translations) return std::nullopt;
  std::vector<Demand> demands;
  for (NodeId npu = 0; npu < topology->npus(); ++npu) demands.push_back({npu, 1});
  // All NPUs are alike, so one shows the narrowest cut.
  const NodeId sink = 0;
  const auto rates = forest::largest_rates(*topology, {&sink, 1}, demands, progress);
  if (rates.demand_weight * topology->npus() > kMostNodes) return std::nullopt;
  const auto hops = forest::hops(topology, *translations);
  std::vector<Time> cost(at(translations->orbits()));
  for (LinkId link = 0; link < topology->links(); ++link) {
    cost[at(translations->orbit()[at(link)])] = kWhole / rates.capacity[at(link)];
  }
  auto time = times(hops, 1);
  Balance balance(*translations, hops, static_cast<std::int32_t>(rates.demand_weight),
                  std::move(cost), std::move(time));
  balance.relieve(kWhole, progress);
  if (balance.busiest() > kWhole) return std::nullopt;
  Forest result;
  result.demand_weight = rates.demand_weight;
  result.unit_Bps = rates.unit_Bps;
  result.unit_parts = rates.unit_parts;
  result.tolerance = rates.tolerance;
  result.hop_begin.push_back(0);
  const Moved moved(*topology, translations->symmetry());
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  std::map<std::pair<NodeId, RouteId>, RouteId> routes;
  std::map<std::vector<std::pair<NodeId, RouteId>>, std::size_t> known;
  std::vector<std::int32_t> depth(at(topology->npus()), 0);
  for (std::int32_t number = 0; number < balance.count(); ++number) {
    const auto tree = balance.tree(number);
    std::vector<std::pair<NodeId, RouteId>> key;
    for (const auto& step : tree) key.emplace_back(step.from, step.route);
    const auto [found, added] = known.try_emplace(std::move(key), result.root.size());
    if (!added) {
      ++result.weight[found->second];
      continue;
    }
    result.root.push_back(0);
    result.weight.push_back(1);
    for (const auto& step : tree) {
      const auto next = static_cast<RouteId>(begin.size() - 1);
      const auto [route, is_new] = routes.try_emplace({step.from, step.route}, next);
      if (is_new) {
        for (const LinkId link : hops.routes->links(step.route)) {
          links.push_back(moved(link, step.from));
        }
        begin.push_back(static_cast<std::int64_t>(links.size()));
      }
      result.hop.push_back(route->second);
      result.depth.push_back(depth[at(step.to)] = depth[at(step.from)] + 1);
    }
    result.hop_begin.push_back(static_cast<std::int64_t>(result.hop.size()));
  }
  std::vector<std::uint8_t> kinds(begin.size() - 1, static_cast<std::uint8_t>(RouteKind::path));
  result.routes = std::make_shared<const Routes>(topology, std::move(kinds), std::move(begin),
                                                 std::move(links));
  result.symmetry = translations->symmetry();
  return result;
}

std::optional<Schedule> schedule_orbits(const std::shared_ptr<const Topology>& topology,
                                        const std::shared_ptr<const Collective>& collective,
                                        const std::string& provenance, const Progress& progress) {
  if (!suits(*topology, *collective)) return std::nullopt;
  const auto translations = Translations::of(*topology);
  if (!translations) return std::nullopt;
  const auto equal = padded(collective);
  const auto pieces = equal->parts()[0].chunks;
  const auto bytes = equal->bytes(0);
  const auto kind = equal->parts()[0].kind;
  std::optional<Translations> back;
  std::shared_ptr<const Topology> reversed;
  if (kind != CollectiveKind::all_gather) {
    reversed = std::make_shared<const Topology>(topology->reversed());
    back = Translations::of(*reversed);
    if (!back) return std::nullopt;
  }
  for (Time quantum = 1;;) {
    Lanes lanes(topology, *translations, *equal);
    Time end = 0;
    if (back) {
      const auto part = solve(reversed, *back, pieces, bytes, quantum, progress);
      if (!part || !one_speed(*part->hops.routes)) return std::nullopt;
      lanes.collect(*part);
      end = part->end;
    }
    if (kind != CollectiveKind::reduce_scatter) {
      const auto part = solve(topology, *translations, pieces, bytes, quantum, progress);
      if (!part) return std::nullopt;
      lanes.spread(*part, end);
      end += part->end;
    }
    if (end / lanes.quantum() > kLargestStart) {
      quantum = end / (kLargestStart / 2) + 1;
      continue;
    }
    auto orbit = std::move(lanes).schedule(equal, provenance);
    if (equal == collective) return orbit;
    // Smaller chunks at the same times.
    const auto whole = orbit.expand();
    return Schedule(collective, whole.shared_routes(), whole.stored(), std::nullopt, provenance);
  }
}

}  // namespace tacos
