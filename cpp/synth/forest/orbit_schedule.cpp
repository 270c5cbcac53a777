#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "support/index.hpp"
#include "synth/forest/balance.hpp"
#include "synth/forest/chunks.hpp"
#include "synth/forest/orbits.hpp"
#include "synth/forest/timing.hpp"
#include "synth/forest/translations.hpp"

namespace tacos {

namespace {

using forest::Balance;
using forest::Translations;

constexpr std::size_t kTryStages = 200'000;  // moves, up to which half-balanced trees are tried
constexpr Time kLargestStart = std::numeric_limits<std::uint32_t>::max();

bool steady(const Routes& routes) {
  for (RouteId r = 0; r < routes.count(); ++r) {
    if (!routes.steady(r)) return false;
  }
  return true;
}

// Whether times can be mirrored: the links of each route have the same bandwidth, and sums take no time.
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

// The transfers that represent all others: the owner and piece, the route and the times of each.
struct Part {
  std::shared_ptr<const Routes> routes;
  std::vector<NodeId> owner;
  std::vector<RouteId> route;
  std::vector<std::int32_t> piece;
  std::vector<Time> start, arrival;
  Time end = 0;
};

void finish(Part& part, std::int64_t bytes, Time quantum) {
  const auto up = [&](Time time) { return (time + quantum - 1) / quantum * quantum; };
  for (std::size_t i = 0; i < part.route.size(); ++i) {
    part.arrival.push_back(part.start[i] + up(part.routes->leg_time(part.route[i], 0, bytes)));
    part.end = std::max(part.end, part.arrival[i]);
  }
}

// The moves of NPU 0's chunks, each translated so that it leaves NPU 0, which changes the owner of its chunk.
ForestMoves moves_of(const Balance& balance, const Translations& translations, std::size_t nodes,
                     std::vector<NodeId>& owner) {
  ForestMoves moves;
  std::vector<std::int32_t> into(nodes, -1);
  for (std::int32_t piece = 0; piece < balance.count(); ++piece) {
    for (const auto& step : balance.tree(piece)) {
      if (step.from != 0) moves.after.push_back(into[at(step.from)]);
      moves.close();
      into[at(step.to)] = static_cast<std::int32_t>(moves.route.size());
      moves.route.push_back(step.route);
      moves.piece.push_back(piece);
      moves.turn.push_back(0);
      owner.push_back(translations.minus(0, step.from));
    }
  }
  return moves;
}

// Trees that are balanced for this number of pieces, as far as that saves time for this size.
std::optional<Part> solve_balanced(const std::shared_ptr<const Topology>& topology,
                                   const Translations& translations, std::int32_t pieces,
                                   std::int64_t bytes, Time quantum, const Progress& progress) {
  const auto hops = forest::hops(topology, translations);
  if (!steady(*hops.routes)) return std::nullopt;
  std::vector<Time> cost(at(translations.orbits()));
  for (LinkId link = 0; link < topology->links(); ++link) {
    cost[at(translations.orbit()[at(link)])] = topology->busy_time(link, bytes);
  }
  Balance balance(translations, hops, pieces, std::move(cost), times(hops, bytes));
  const auto nodes = at(topology->npus());
  Part part;
  part.routes = hops.routes;
  const auto weigh = [&] {
    std::vector<NodeId> owner;
    auto moves = moves_of(balance, translations, nodes, owner);
    auto timing = forest::time_by_urgency(*hops.routes, moves, bytes, translations.orbit(), quantum,
                                          progress);
    if (!part.route.empty() && timing.end >= part.end) return;
    part.owner = std::move(owner);
    part.route = std::move(moves.route);
    part.piece = std::move(moves.piece);
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
  finish(part, bytes, quantum);
  return part;
}

// The trees of the orbits' bases, as they were packed.
std::optional<Part> solve_packed(const Forest& forest, const Translations& translations,
                                 std::int32_t pieces, std::int64_t bytes, Time quantum,
                                 const Progress& progress) {
  if (!steady(*forest.routes)) return std::nullopt;
  Part part;
  part.routes = forest.routes;
  std::vector<NodeId> holder;
  for (NodeId npu = 0; npu < forest.routes->topology().npus(); ++npu) {
    if (translations.base(npu) == npu) holder.insert(holder.end(), at(pieces), npu);
  }
  auto all = moves(forest, holder);
  auto timing =
      forest::time_by_urgency(*forest.routes, all, bytes, translations.orbit(), quantum, progress);
  for (const ChunkId chunk : all.chunk) part.owner.push_back(holder[chunk]);
  part.route = std::move(all.route);
  part.piece = std::move(all.piece);
  part.start = std::move(timing.start);
  finish(part, bytes, quantum);
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

  // From time `begin` on.
  void spread(const Part& part, Time begin) {
    add(part, false, [&](std::size_t i) { return begin + part.start[i]; });
  }
  // A part of the reversed network, reversed in time.
  void collect(const Part& part) {
    add(part, true, [&](std::size_t i) { return part.end - part.arrival[i]; });
  }

  Time quantum() const {
    Time divisor = 0;
    for (const auto& row : rows_) divisor = std::gcd(divisor, row.start);
    return std::max<Time>(divisor, 1);
  }

  Time latest() const {
    Time start = 0;
    for (const auto& row : rows_) start = std::max(start, row.start);
    return start;
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
    for (RouteId r = 0; r < part.routes->count(); ++r) {
      const auto links = part.routes->links(r);
      links_.insert(links_.end(), links.begin(), links.end());
      if (sums)
        std::reverse(links_.end() - static_cast<std::ptrdiff_t>(links.size()), links_.end());
      begin_.push_back(static_cast<std::int64_t>(links_.size()));
      sums_.push_back(sums);
    }
    for (std::size_t i = 0; i < part.route.size(); ++i) {
      const auto owner = position_[at(part.owner[i])];
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

bool suits(const Topology& topology, const Collective& collective) {
  if (collective.parts().size() != 1 || !collective.resolved()) return false;
  const auto& part = collective.parts()[0];
  return part.traits().uniform() && part.traits().spreads() && part.members() == topology.npus() &&
         part.size >= static_cast<std::int64_t>(part.members()) * part.chunks;
}

}  // namespace

// The translations along the dimensions that the forest was packed with.
static std::optional<Translations> translations_of(const Topology& topology, const Forest* forest) {
  for (std::size_t first = 0; first < topology.spec().dims.size(); ++first) {
    auto found = Translations::of(topology, first);
    if (!found || (!forest && !found->transitive())) return std::nullopt;
    if (!forest || (forest->symmetry && forest->symmetry->orders == found->symmetry().orders &&
                    forest->symmetry->node_image == found->symmetry().node_image)) {
      return found;
    }
  }
  return std::nullopt;
}

std::optional<Schedule> schedule_orbits(const std::shared_ptr<const Topology>& topology,
                                        const std::shared_ptr<const Collective>& collective,
                                        const Forest* forward, const Forest* backward,
                                        const std::string& provenance, const Progress& progress) {
  if (!suits(*topology, *collective)) return std::nullopt;
  const auto& part = collective->parts()[0];
  const auto kind = part.kind;
  const auto translations =
      translations_of(*topology, kind == CollectiveKind::reduce_scatter ? backward : forward);
  if (!translations) return std::nullopt;
  const auto pieces = part.chunks;
  const auto cut = static_cast<std::int64_t>(part.members()) * pieces;
  const auto bytes = (part.size + cut - 1) / cut;  // of the largest chunk
  std::optional<Translations> back;
  std::shared_ptr<const Topology> reversed;
  if (kind != CollectiveKind::all_gather) {
    reversed = std::make_shared<const Topology>(topology->reversed());
    back = translations_of(*reversed, backward);
    if (!back || back->symmetry().orders != translations->symmetry().orders) return std::nullopt;
  }
  for (Time quantum = 1;;) {
    Lanes lanes(topology, *translations, *collective);
    Time end = 0;
    const auto solve = [&](const std::shared_ptr<const Topology>& network,
                           const Translations& moves, const Forest* trees) {
      return trees ? solve_packed(*trees, moves, pieces, bytes, quantum, progress)
                   : solve_balanced(network, moves, pieces, bytes, quantum, progress);
    };
    if (back) {
      const auto solved = solve(reversed, *back, backward);
      if (!solved || !one_speed(*solved->routes)) return std::nullopt;
      lanes.collect(*solved);
      end = solved->end;
    }
    if (kind != CollectiveKind::reduce_scatter) {
      const auto solved = solve(topology, *translations, forward);
      if (!solved) return std::nullopt;
      lanes.spread(*solved, end);
      end += solved->end;
    }
    if (lanes.latest() / lanes.quantum() > kLargestStart) {
      quantum = end / (kLargestStart / 2) + 1;
      continue;
    }
    return std::move(lanes).schedule(collective, provenance);
  }
}

}  // namespace tacos
