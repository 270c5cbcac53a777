#include "bound/crowd.hpp"

#include <queue>
#include <utility>
#include <vector>

#include "support/index.hpp"

namespace tacos {

Parts crowd(const Topology& topology, std::span<const NodeId> members) {
  Parts result;
  if (members.size() < 3) return result;
  std::vector<std::uint8_t> inside(at(topology.nodes()), 0);
  for (const NodeId member : members) inside[at(member)] = 1;
  // The bandwidth of each member that its removal saves: that of links to and from nodes outside.
  std::vector<double> outward(at(topology.nodes()), 0);
  double exits = 0;
  const auto each_link = [&](NodeId node, const auto& visit) {
    for (const LinkId link : topology.out_links(node)) visit(link, topology.dst(link));
    for (const LinkId link : topology.in_links(node)) visit(link, topology.src(link));
  };
  using Entry = std::pair<double, NodeId>;
  std::priority_queue<Entry> queue;
  for (const NodeId member : members) {
    each_link(member, [&](LinkId link, NodeId other) {
      const auto bandwidth = static_cast<double>(topology.bandwidth(link));
      if (inside[at(other)] == 0) outward[at(member)] += bandwidth;
      exits += inside[at(other)] != 0 ? bandwidth / 2 : bandwidth;  // seen from both ends
    });
    queue.emplace(outward[at(member)], member);
  }
  std::vector<NodeId> removed;
  std::size_t best = 0;  // members removed before the best set
  double ratio = 0;
  while (removed.size() + 1 < members.size()) {
    const auto [saved, member] = queue.top();
    queue.pop();
    if (inside[at(member)] == 0 || saved != outward[at(member)]) continue;
    inside[at(member)] = 0;
    removed.push_back(member);
    exits -= saved;
    each_link(member, [&](LinkId link, NodeId other) {
      if (inside[at(other)] == 0) return;
      outward[at(other)] += static_cast<double>(topology.bandwidth(link));
      queue.emplace(outward[at(other)], other);
    });
    const auto count = static_cast<double>(members.size() - removed.size());
    if (exits > 0 && count / exits > ratio) {
      ratio = count / exits;
      best = removed.size();
    }
  }
  if (best == 0) return result;
  for (const NodeId member : members) inside[at(member)] = 1;
  for (std::size_t i = 0; i < best; ++i) inside[at(removed[i])] = 0;
  result.of.assign(at(topology.nodes()), -1);
  for (const NodeId member : members) {
    if (inside[at(member)] != 0) result.of[at(member)] = result.count++;
  }
  for (auto& set : result.of) set = set < 0 ? result.count : set;
  ++result.count;
  return result;
}

}  // namespace tacos
