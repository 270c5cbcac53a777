#include "lowering/moves.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "model/channel_routes.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

// Per node: whether it has parallel links, or links with several switches, so that its channels may differ in route.
std::vector<std::uint8_t> ends_with_choice(const Topology& topology) {
  std::vector<std::uint8_t> several(at(topology.nodes()));
  std::vector<NodeId> ends;
  for (NodeId node = 0; node < topology.npus(); ++node) {
    const auto look = [&](std::span<const LinkId> links, const auto& end_of) {
      ends.clear();
      std::int32_t switches = 0;
      for (const LinkId link : links) {
        ends.push_back(end_of(link));
        switches += topology.is_npu(ends.back()) ? 0 : 1;
      }
      std::sort(ends.begin(), ends.end());
      return switches > 1 || std::adjacent_find(ends.begin(), ends.end()) != ends.end();
    };
    several[at(node)] =
        look(topology.out_links(node), [&](LinkId link) { return topology.dst(link); }) ||
        look(topology.in_links(node), [&](LinkId link) { return topology.src(link); });
  }
  return several;
}

}  // namespace

std::vector<RouteId> same_routes(const Routes& routes) {
  const auto differs = [&](RouteId a, RouteId b) {
    const auto mine = routes.links(a), other = routes.links(b);
    return !std::equal(mine.begin(), mine.end(), other.begin(), other.end());
  };
  std::vector<std::pair<std::uint64_t, RouteId>>
      hashes;  // of the links; a few numbers mixed by multiplication
  hashes.reserve(at(routes.count()));
  for (RouteId r = 0; r < routes.count(); ++r) {
    std::uint64_t hash = 0;
    for (const LinkId link : routes.links(r)) {
      hash = (hash ^ static_cast<std::uint64_t>(link + 1)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    hashes.emplace_back(hash, r);
  }
  std::sort(hashes.begin(), hashes.end());
  std::vector<RouteId> same(hashes.size());
  for (std::size_t i = 0, first = 0; i < hashes.size(); ++i) {
    if (hashes[i].first != hashes[first].first) first = i;
    auto before = first;  // routes of one hash that differ are rare
    while (differs(hashes[before].second, hashes[i].second)) ++before;
    same[at(hashes[i].second)] = hashes[before].second;
  }
  return same;
}

bool channels_differ_in_route(const Topology& topology) {
  const auto several = ends_with_choice(topology);
  return std::find(several.begin(), several.end(), 1) != several.end();
}

bool routes_share_links(const Schedule& schedule) {
  const auto& used = schedule.stored().lane_route;
  return std::any_of(used.begin(), used.end(),
                     [&](RouteId route) { return schedule.routes().links(route).size() > 1; });
}

std::vector<std::vector<LinkId>> slowest_links(const Routes& routes) {
  const auto& topology = routes.topology();
  std::vector<std::vector<LinkId>> slowest(at(routes.count()));
  for (RouteId r = 0; r < routes.count(); ++r) {
    const auto links = routes.links(r);
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const LinkId link : links) least = std::min(least, topology.bandwidth(link));
    for (const LinkId link : links) {
      if (topology.bandwidth(link) == least) slowest[at(r)].push_back(link);
    }
  }
  return slowest;
}

std::vector<Move> all_moves(const Schedule& schedule) {
  const auto same = same_routes(schedule.routes());
  std::vector<Move> moves;
  moves.reserve(at(schedule.stored_transfers()));
  const auto& t = schedule.stored();
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const RouteId route = t.lane_route[at(lane)];
    for (auto i = t.lane_begin[at(lane)]; i < t.lane_begin[at(lane) + 1]; ++i) {
      moves.push_back({schedule.routes().sources(route)[0],
                       schedule.routes().destinations(route)[0], t.chunk[at(i)], same[at(route)],
                       static_cast<Op>(t.lane_op[at(lane)]),
                       static_cast<Reads>(t.lane_reads[at(lane)]), schedule.start(lane, i, 0),
                       schedule.arrival(lane, i)});
    }
  }
  return moves;
}

std::vector<Move> moves_of(const Schedule& schedule, NodeId rank) {
  const auto rows = schedule.rows(rank, std::nullopt);
  const auto same = same_routes(schedule.routes());
  std::vector<Move> moves;
  for (std::size_t i = 0; i < rows.src.size(); ++i) {
    moves.push_back({rows.src[i], rows.dst[i], rows.chunk[i], same[at(rows.route[i])],
                     static_cast<Op>(rows.op[i]), static_cast<Reads>(rows.reads[i]), rows.start[i],
                     rows.arrival[i]});
  }
  return moves;
}

std::vector<SumOrder::Sum> put_sums_in_order(const Collective& collective,
                                             std::vector<Move>& moves) {
  if (!sums_end_at_several(collective)) return {};
  std::vector<SummedTransfer> transfers;
  transfers.reserve(moves.size());
  for (const Move& m : moves) {
    transfers.push_back({m.src, m.dst, m.chunk, m.op, m.reads, m.start, m.arrival});
  }
  auto order = sum_order(collective, transfers);
  for (std::size_t i = 0; i < order.places.size(); ++i) moves[i].place = order.places[i];
  return std::move(order.sums);
}

void assign_channels(const Routes& routes, std::vector<Move>& moves) {
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::tie(a.src, a.dst, a.start, a.arrival, a.chunk) <
           std::tie(b.src, b.dst, b.start, b.arrival, b.chunk);
  });
  const auto& topology = routes.topology();
  const auto has_choice = ends_with_choice(topology);
  std::vector<std::vector<LinkId>> ways;           // of the pair's channels
  std::vector<std::pair<RouteId, Time>> channels;  // route and last arrival; -1: unused
  for (std::size_t i = 0; i < moves.size(); ++i) {
    Move& move = moves[i];
    if (i == 0 || moves[i - 1].src != move.src || moves[i - 1].dst != move.dst) {
      channels.clear();
      ways.clear();
      if (has_choice[at(move.src)] || has_choice[at(move.dst)]) {
        ways = channel_routes(topology, move.src, move.dst);
      }
    }
    std::size_t channel = 0, stride = 1;
    const auto links = routes.links(move.route);
    const auto way = std::find_if(ways.begin(), ways.end(), [&](const auto& one) {
      return std::equal(one.begin(), one.end(), links.begin(), links.end());
    });
    if (way != ways.end()) {
      channel = static_cast<std::size_t>(way - ways.begin());
      stride = ways.size();
    }
    while (channel < channels.size() && channels[channel].first >= 0 &&
           (channels[channel].first != move.route || channels[channel].second > move.arrival)) {
      channel += stride;
    }
    if (channel >= channels.size()) channels.resize(channel + 1, {-1, 0});
    channels[channel] = {move.route, move.arrival};
    move.channel = static_cast<std::int32_t>(channel);
  }
}

}  // namespace tacos
