// Trees that carry sums up and results down: each of their links has one back, of the same bandwidth.
#pragma once

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "model/topology.hpp"
#include "support/index.hpp"

namespace tacos {

// A tree whose edges are paths of links.
struct HopTree {
  NodeId root = 0;
  std::vector<std::vector<LinkId>> hops;  // the one into a node before those out of it
};

// The opposite link of each link, of the same bandwidth; empty if some link has none.
inline std::vector<LinkId> links_back(const Topology& topology) {
  std::map<std::tuple<NodeId, NodeId, std::int64_t>, std::vector<LinkId>> open;
  std::vector<LinkId> back(at(topology.links()), -1);
  std::size_t alone = 0;
  for (LinkId link = 0; link < topology.links(); ++link) {
    const auto src = topology.src(link), dst = topology.dst(link);
    const auto found = open.find({dst, src, topology.bandwidth(link)});
    if (found == open.end() || found->second.empty()) {
      open[{src, dst, topology.bandwidth(link)}].push_back(link);
      ++alone;
      continue;
    }
    back[at(link)] = found->second.front();
    back[at(found->second.front())] = link;
    found->second.erase(found->second.begin());
    --alone;
  }
  if (alone > 0) back.clear();
  return back;
}

// The same tree, rooted at the NPU in the middle of its longest path, so that the farthest sums and results take equally
// long. The ends of the longest path are NPUs.
inline HopTree centred(const Topology& topology, const std::vector<LinkId>& back,
                       const HopTree& tree) {
  if (tree.hops.empty()) return tree;
  // The hops out of each node; those that led to it are reversed.
  std::vector<std::vector<std::vector<LinkId>>> around(at(topology.nodes()));
  for (const auto& hop : tree.hops) {
    std::vector<LinkId> turned;
    for (auto link = hop.rbegin(); link != hop.rend(); ++link) turned.push_back(back[at(*link)]);
    around[at(topology.src(hop.front()))].push_back(hop);
    around[at(topology.dst(hop.back()))].push_back(std::move(turned));
  }
  const auto rooted = [&](NodeId root) {  // hops in breadth-first order
    HopTree result{root, {}};
    std::vector<std::pair<NodeId, NodeId>> queue{{root, -1}};
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const auto [node, from] = queue[head];
      for (const auto& hop : around[at(node)]) {
        const NodeId to = topology.dst(hop.back());
        if (to == from) continue;
        result.hops.push_back(hop);
        queue.emplace_back(to, node);
      }
    }
    return result;
  };
  const auto farthest = [&](const HopTree& one) { return topology.dst(one.hops.back().back()); };
  const auto whole = rooted(farthest(rooted(tree.root)));
  std::vector<NodeId> above(at(topology.nodes()), -1);
  for (const auto& hop : whole.hops) {
    above[at(topology.dst(hop.back()))] = topology.src(hop.front());
  }
  std::vector<NodeId> way{farthest(whole)};
  while (above[at(way.back())] >= 0) way.push_back(above[at(way.back())]);
  auto middle = way.size() / 2;
  while (!topology.is_npu(way[middle])) ++middle;
  return rooted(way[middle]);
}

}  // namespace tacos
