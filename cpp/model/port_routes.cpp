#include "model/port_routes.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "support/index.hpp"

namespace tacos {

RouteKind PortRoutes::replace(std::vector<LinkId>& links, std::size_t begin) {
  const auto routing = topology_.spec().routing;
  if (links.size() < begin + 3) return RouteKind::path;
  for (auto i = begin + 1; i < links.size(); ++i) {
    if (topology_.is_npu(topology_.src(links[i]))) return RouteKind::path;
  }
  const LinkId last = links.back();
  const NodeId from = topology_.dst(links[begin]), to = topology_.src(last);
  const auto& ways = between(from, to);
  if (routing == Routing::spread) {
    if (!several_paths(ways, from)) return RouteKind::path;
    links.resize(begin + 1);
    links.insert(links.end(), ways.begin(), ways.end());
    links.push_back(last);
    return RouteKind::spread;
  }
  // Each switch with a choice takes the next digit of the destination's number, or always the first link.
  links.resize(begin + 1);
  auto digits = routing == Routing::first ? 0 : at(topology_.dst(last));
  for (NodeId node = from; node != to; node = topology_.dst(links.back())) {
    std::vector<LinkId> next;
    for (const LinkId link : ways) {
      if (topology_.src(link) == node) next.push_back(link);
    }
    std::sort(next.begin(), next.end());
    links.push_back(next[digits % next.size()]);
    digits /= next.size();
  }
  links.push_back(last);
  return RouteKind::path;
}

const std::vector<LinkId>& PortRoutes::between(NodeId from, NodeId to) {
  if (from != from_) find_hops(from);
  const auto [found, added] = between_.try_emplace(to);
  auto& links = found->second;
  if (!added || from == to) return links;
  std::vector<NodeId> queue{to};
  std::vector<std::uint8_t> queued(hops_.size(), 0);
  for (std::size_t head = 0; head < queue.size(); ++head) {
    const NodeId node = queue[head];
    for (const LinkId link : topology_.in_links(node)) {
      const NodeId before = topology_.src(link);
      if (topology_.is_npu(before) || hops_[at(before)] < 0 ||
          hops_[at(before)] + 1 != hops_[at(node)]) {
        continue;
      }
      links.push_back(link);
      if (std::exchange(queued[at(before)], 1) == 0) queue.push_back(before);
    }
  }
  std::sort(links.begin(), links.end(), [&](LinkId a, LinkId b) {
    return std::tuple(hops_[at(topology_.src(a))], a) < std::tuple(hops_[at(topology_.src(b))], b);
  });
  return links;
}

void PortRoutes::find_hops(NodeId from) {
  from_ = from;
  between_.clear();
  hops_.assign(at(topology_.nodes()), -1);
  hops_[at(from)] = 0;
  std::vector<NodeId> queue{from};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    for (const LinkId link : topology_.out_links(queue[head])) {
      const NodeId next = topology_.dst(link);
      if (topology_.is_npu(next) || hops_[at(next)] >= 0) continue;
      hops_[at(next)] = hops_[at(queue[head])] + 1;
      queue.push_back(next);
    }
  }
}

bool PortRoutes::several_paths(const std::vector<LinkId>& links, NodeId from) const {
  std::unordered_map<NodeId, std::int64_t> paths{{from, 1}};
  std::int64_t most = 1;
  for (const LinkId link : links) {
    auto& there = paths[topology_.dst(link)];
    there += paths.at(topology_.src(link));
    most = std::max(most, there);
    if (most > kMostPaths) return false;  // too many to divide a message
  }
  return most > 1;
}

Routes port_routes(const Routes& routes) {
  PortRoutes ports(routes.topology());
  std::vector<std::uint8_t> kinds;
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  for (RouteId r = 0; r < routes.count(); ++r) {
    const auto mine = routes.links(r);
    links.insert(links.end(), mine.begin(), mine.end());
    const bool path = routes.kind(r) == RouteKind::path;
    kinds.push_back(path ? static_cast<std::uint8_t>(ports.replace(links, at(begin.back())))
                         : routes.kinds()[at(r)]);
    begin.push_back(static_cast<std::int64_t>(links.size()));
  }
  return Routes(routes.shared_topology(), std::move(kinds), std::move(begin), std::move(links));
}

}  // namespace tacos
