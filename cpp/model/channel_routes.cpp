#include "model/channel_routes.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "support/index.hpp"
#include "support/pairs.hpp"

namespace tacos {

std::vector<std::vector<LinkId>> channel_routes(const Topology& topology, NodeId src, NodeId dst) {
  std::vector<std::vector<LinkId>> found;
  bool switched = false;
  for (const LinkId link : topology.out_links(src)) {
    if (topology.dst(link) == dst) found.push_back({link});
    switched = switched || !topology.is_npu(topology.dst(link));
  }
  if (found.empty() && switched) {
    std::size_t port = 0;
    std::int64_t fastest = 0;
    for (const LinkId down : topology.in_links(dst)) {
      const NodeId middle = topology.src(down);
      if (topology.is_npu(middle)) continue;
      std::vector<LinkId> up;
      for (const LinkId link : topology.out_links(src)) {
        if (topology.dst(link) == middle) up.push_back(link);
      }
      // Each port of the destination is reached over the next link of the source.
      const auto turn = port++;
      if (up.empty()) continue;
      const LinkId first = up[turn % up.size()];
      const auto bandwidth = std::min(topology.bandwidth(first), topology.bandwidth(down));
      if (bandwidth > fastest) found.clear();
      fastest = std::max(fastest, bandwidth);
      if (bandwidth == fastest) found.push_back({first, down});
    }
  }
  if (found.size() < 2) found.clear();
  return found;
}

ChannelRoutes::ChannelRoutes(const std::shared_ptr<const Topology>& topology,
                             std::vector<std::uint64_t> pairs, const Progress& progress)
    : pairs_(std::move(pairs)) {
  std::sort(pairs_.begin(), pairs_.end());
  pairs_.erase(std::unique(pairs_.begin(), pairs_.end()), pairs_.end());
  std::vector<NodeId> src, dst;
  for (const auto pair : pairs_) {
    src.push_back(static_cast<NodeId>(pair >> 32));
    dst.push_back(static_cast<NodeId>(pair & 0xffffffff));
  }
  const Routes shortest = shortest_routes(topology, src, dst, progress);
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  std::vector<std::uint8_t> kinds;
  const auto add = [&](std::span<const LinkId> path, RouteKind kind) {
    kinds.push_back(static_cast<std::uint8_t>(kind));
    links.insert(links.end(), path.begin(), path.end());
    begin.push_back(static_cast<std::int64_t>(links.size()));
  };
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    first_.push_back(static_cast<RouteId>(begin.size()) - 1);
    const auto ways = channel_routes(*topology, src[i], dst[i]);
    for (const auto& way : ways) add(way, RouteKind::path);
    const auto usual = static_cast<RouteId>(i);
    if (ways.empty()) add(shortest.links(usual), shortest.kind(usual));
  }
  first_.push_back(static_cast<RouteId>(begin.size()) - 1);
  routes_ = std::make_shared<const Routes>(topology, std::move(kinds), std::move(begin),
                                           std::move(links));
}

Routes message_routes(const Routes& routes, const Progress& progress) {
  std::vector<std::uint64_t> pairs(at(routes.count()), 0), distinct;
  for (RouteId r = 0; r < routes.count(); ++r) {
    const NodeId src = routes.sources(r)[0], dst = routes.destinations(r)[0];
    const bool ends = routes.topology().is_npu(src) && routes.topology().is_npu(dst);
    if (!routes.unicast(r) || !ends) continue;
    pairs[at(r)] = pair_key(src, dst);
    distinct.push_back(pairs[at(r)]);
  }
  const ChannelRoutes usual(routes.shared_topology(), std::move(distinct), progress);
  std::vector<std::uint8_t> kinds;
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  for (RouteId r = 0; r < routes.count(); ++r) {
    const Routes* table = &routes;
    RouteId chosen = r;
    if (pairs[at(r)] != 0) {  // no NPU sends to NPU 0 from itself
      const auto mine = routes.links(r);
      const auto [first, last] = usual.all(pairs[at(r)]);
      chosen = first;
      for (RouteId way = first; way < last; ++way) {
        const auto theirs = usual.routes()->links(way);
        if (std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) chosen = way;
      }
      table = usual.routes().get();
    }
    const auto taken = table->links(chosen);
    links.insert(links.end(), taken.begin(), taken.end());
    kinds.push_back(table->kinds()[at(chosen)]);
    begin.push_back(static_cast<std::int64_t>(links.size()));
  }
  return Routes(routes.shared_topology(), std::move(kinds), std::move(begin), std::move(links));
}

std::pair<RouteId, RouteId> ChannelRoutes::all(std::uint64_t pair) const {
  const auto found = std::lower_bound(pairs_.begin(), pairs_.end(), pair);
  const auto i = at(found - pairs_.begin());
  return {first_[i], first_[i + 1]};
}

RouteId ChannelRoutes::of(NodeId src, NodeId dst, std::int32_t channel) const {
  const auto found = std::lower_bound(pairs_.begin(), pairs_.end(), pair_key(src, dst));
  const auto i = at(found - pairs_.begin());
  return first_[i] + channel % (first_[i + 1] - first_[i]);
}

}  // namespace tacos
