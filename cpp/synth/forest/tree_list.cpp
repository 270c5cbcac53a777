#include "synth/forest/tree_list.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

#include "support/index.hpp"

namespace tacos::forest {

TreeList::TreeList(std::shared_ptr<const Topology> topology)
    : topology_(std::move(topology)),
      ports_(*topology_),
      load_(at(topology_->links()), 0),
      depth_(at(topology_->nodes()), 0),
      leads_(at(topology_->nodes()), 0),
      in_route_(at(topology_->nodes()), 0),
      leaving_(at(topology_->nodes())) {
  forest_.hop_begin.push_back(0);
}

void TreeList::add(NodeId root, std::int64_t weight, std::span<const std::vector<LinkId>> hops) {
  forest_.root.push_back(root);
  forest_.weight.push_back(weight);
  weight_ = weight;
  depth_[at(root)] = 0;
  survey(hops);
  for (const auto& hop : hops) {
    const NodeId from = topology_->src(hop.front()), to = topology_->dst(hop.back());
    if (topology_->is_npu(from) && (topology_->is_npu(to) || leads_[at(to)])) branch(hop, hops);
  }
  forest_.hop_begin.push_back(static_cast<std::int64_t>(forest_.hop.size()));
}

void TreeList::survey(std::span<const std::vector<LinkId>> hops) {
  for (auto& hops_of_one : leaving_) hops_of_one.clear();
  std::fill(leads_.begin(), leads_.end(), std::uint8_t{0});
  for (std::size_t i = hops.size(); i-- > 0;) {
    const NodeId from = topology_->src(hops[i].front()), to = topology_->dst(hops[i].back());
    if (topology_->is_npu(from)) continue;
    if (!topology_->is_npu(to) && !leads_[at(to)]) continue;
    leads_[at(from)] = 1;
    leaving_[at(from)].push_back(i);
  }
}

void TreeList::branch(std::vector<LinkId> path, std::span<const std::vector<LinkId>> hops) {
  const NodeId source = topology_->src(path.front());
  std::vector<std::pair<NodeId, std::vector<LinkId>>> open;  // switches, each with the way there
  std::vector<NodeId> ends;
  std::vector<std::vector<LinkId>> others;  // ways that would meet this route again
  route_.clear();
  std::fill(in_route_.begin(), in_route_.end(), std::uint8_t{0});
  in_route_[at(source)] = 1;
  const auto extend = [&](std::vector<LinkId> way, std::size_t known) {
    for (std::size_t i = known; i < way.size(); ++i) {
      route_.push_back(way[i]);
      in_route_[at(topology_->dst(way[i]))] = 1;
      load_[at(way[i])] += weight_;
    }
    const NodeId end = topology_->dst(way.back());
    if (topology_->is_npu(end)) {
      ends.push_back(end);
    } else {
      open.emplace_back(end, std::move(way));
    }
  };
  extend(std::move(path), 0);
  while (!open.empty()) {
    const auto [node, way] = std::move(open.back());
    open.pop_back();
    for (auto i = leaving_[at(node)].rbegin(); i != leaving_[at(node)].rend(); ++i) {
      auto longer = way;
      longer.insert(longer.end(), hops[*i].begin(), hops[*i].end());
      // A route with several ends passes only switches.
      const bool relayed = passes_npus(route_) || passes_npus(longer);
      if (collides(hops[*i]) || (relayed && route_.size() > way.size())) {
        others.push_back(without_loops(longer));
      } else {
        extend(std::move(longer), way.size());
      }
    }
  }
  prune(ends);
  if (!ends.empty()) {
    for (const NodeId end : ends) depth_[at(end)] = depth_[at(source)] + 1;
    forest_.depth.push_back(depth_[at(source)] + 1);
    auto kind = RouteKind::multicast;
    auto links = route_;
    if (ends.size() == 1) kind = ports_.replace(links, 0);
    forest_.hop.push_back(table_.number(links, kind));
  }
  for (auto& way : others) branch(std::move(way), hops);
}

void TreeList::prune(std::span<const NodeId> ends) {
  std::fill(in_route_.begin(), in_route_.end(), std::uint8_t{0});
  for (const NodeId end : ends) in_route_[at(end)] = 1;
  std::vector<LinkId> kept;
  for (const LinkId link : std::views::reverse(route_)) {
    if (in_route_[at(topology_->dst(link))]) {
      in_route_[at(topology_->src(link))] = 1;
      kept.push_back(link);
    } else {
      load_[at(link)] -= weight_;
    }
  }
  route_.assign(kept.rbegin(), kept.rend());
}

std::vector<LinkId> TreeList::without_loops(std::span<const LinkId> path) const {
  std::vector<LinkId> result;
  for (const LinkId link : path) {
    result.push_back(link);
    const auto again = std::ranges::find(result, topology_->dst(link),
                                         [&](LinkId before) { return topology_->src(before); });
    result.erase(again, result.end());
  }
  return result;
}

bool TreeList::passes_npus(std::span<const LinkId> path) const {
  return std::ranges::any_of(path, [&](LinkId link) {
    return link != path.front() && topology_->is_npu(topology_->src(link));
  });
}

bool TreeList::collides(std::span<const LinkId> path) const {
  return std::ranges::any_of(path,
                             [&](LinkId link) { return in_route_[at(topology_->dst(link))] != 0; });
}

Forest TreeList::forest() && {
  forest_.routes = std::move(table_).routes(std::move(topology_));
  return std::move(forest_);
}

}  // namespace tacos::forest
