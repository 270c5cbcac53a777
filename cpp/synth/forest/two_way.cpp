#include "synth/forest/two_way.hpp"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "support/error.hpp"
#include "support/index.hpp"
#include "synth/forest/tree_list.hpp"

namespace tacos {

std::vector<LinkId> links_back(const Topology& topology) {
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

namespace {

constexpr int kSquarings = 6;  // a link's price is the 64th power of its usage

class TwoWayGrowth {
 public:
  TwoWayGrowth(const Topology& topology, std::span<const NodeId> members, std::vector<LinkId> back)
      : topology_(topology),
        members_(members.begin(), members.end()),
        back_(std::move(back)),
        is_member_(at(topology.nodes()), 0),
        uses_(back_.size(), 0),
        price_(back_.size(), 0),
        reach_(at(topology.nodes())) {
    for (const NodeId member : members_) is_member_[at(member)] = 1;
    for (NodeId node = topology.npus(); node < topology.nodes(); ++node) {
      is_member_[at(node)] = topology.can(node, kMulticast) && topology.can(node, kReduce);
    }
  }

  struct Tree {
    NodeId root = 0;
    std::vector<std::vector<LinkId>> hops;  // the one into a node before those out of it
  };

  // Whether sums and results meet in switches: then trees with one root hinder each other least.
  bool meets() const {
    return std::find(is_member_.begin() + topology_.npus(), is_member_.end(), 1) !=
           is_member_.end();
  }

  Tree grow(NodeId first) {
    set_prices();
    Tree tree{first, {}};
    for (auto& reach : reach_) reach = {};
    std::vector<std::uint8_t> joined(reach_.size(), 0);
    queue_ = {};
    const auto join = [&](NodeId node, std::int32_t depth) {
      joined[at(node)] = 1;
      reach_[at(node)] = {0, depth, -1};
      offer(node, joined);
    };
    join(first, 0);
    for (std::size_t open = members_.size() - 1; open > 0;) {
      if (queue_.empty()) lost(joined);
      const auto [price, depth, node] = queue_.top();
      queue_.pop();
      const auto& reach = reach_[at(node)];
      if (joined[at(node)] || std::pair(price, depth) != std::pair(reach.price, reach.depth)) {
        continue;
      }
      if (!is_member_[at(node)]) {
        offer(node, joined);
        continue;
      }
      auto& hop = tree.hops.emplace_back();
      for (NodeId here = node; hop.empty() || !is_member_[at(here)];) {
        hop.push_back(reach_[at(here)].into);
        here = topology_.src(hop.back());
      }
      std::reverse(hop.begin(), hop.end());
      join(node, depth);
      open -= topology_.is_npu(node);
    }
    prune(tree);
    for (const auto& hop : tree.hops) {
      for (const LinkId link : hop) {
        ++uses_[at(link)];
        ++uses_[at(back_[at(link)])];
      }
    }
    return centred(tree);
  }

 private:
  struct Reach {
    double price = -1;
    std::int32_t depth = 0;
    LinkId into = -1;
  };
  using Entry = std::tuple<double, std::int32_t, NodeId>;

  void set_prices() {
    double most = 0;
    const auto next = [&](LinkId link) {
      return static_cast<double>(uses_[at(link)] + 1) /
             static_cast<double>(topology_.bandwidth(link));
    };
    for (LinkId link = 0; link < topology_.links(); ++link) most = std::max(most, next(link));
    for (LinkId link = 0; link < topology_.links(); ++link) {
      double price = next(link) / most;
      for (int i = 0; i < kSquarings; ++i) price *= price;
      price_[at(link)] = price;
    }
  }

  void offer(NodeId from, const std::vector<std::uint8_t>& joined) {
    const auto& here = reach_[at(from)];
    for (const LinkId link : topology_.out_links(from)) {
      const NodeId to = topology_.dst(link);
      if (joined[at(to)]) continue;
      const double price = here.price + price_[at(link)];
      const auto depth = here.depth + (is_member_[at(from)] ? 1 : 0);
      auto& there = reach_[at(to)];
      if (there.price >= 0 && std::pair(there.price, there.depth) <= std::pair(price, depth)) {
        continue;
      }
      there = {price, depth, link};
      queue_.emplace(price, depth, to);
    }
  }

  [[noreturn]] void lost(const std::vector<std::uint8_t>& joined) const {
    for (const NodeId member : members_) {
      if (!joined[at(member)]) {
        throw InfeasibleError(topology_.name(members_[0]) + " cannot reach " +
                              topology_.name(member));
      }
    }
    throw InfeasibleError("a member cannot be reached");
  }

  // Removes switches that lead to no NPU.
  void prune(Tree& tree) const {
    std::vector<std::uint8_t> leads(reach_.size(), 0);
    for (auto hop = tree.hops.rbegin(); hop != tree.hops.rend(); ++hop) {
      const NodeId to = topology_.dst(hop->back());
      if (topology_.is_npu(to) || leads[at(to)]) {
        leads[at(topology_.src(hop->front()))] = 1;
      } else {
        hop->clear();
      }
    }
    std::erase_if(tree.hops, [](const auto& hop) { return hop.empty(); });
  }

  // The hops out of each member; those that led to it are reversed.
  using Around = std::map<NodeId, std::vector<std::vector<LinkId>>>;

  // The same tree, rooted in the middle of its longest path.
  Tree centred(const Tree& tree) const {
    Around around;
    for (const auto& hop : tree.hops) {
      std::vector<LinkId> turned;
      for (auto i = hop.rbegin(); i != hop.rend(); ++i) turned.push_back(back_[at(*i)]);
      around[topology_.src(hop.front())].push_back(hop);
      around[topology_.dst(hop.back())].push_back(std::move(turned));
    }
    const auto one_end = end(rooted(tree.root, around));
    const auto whole = rooted(one_end, around);
    std::map<NodeId, NodeId> above;
    for (const auto& hop : whole.hops)
      above[topology_.dst(hop.back())] = topology_.src(hop.front());
    std::vector<NodeId> way{end(whole)};
    while (way.back() != one_end) way.push_back(above[way.back()]);
    // Both ends are NPUs, the middle may be a switch.
    auto middle = way.size() / 2;
    while (!topology_.is_npu(way[middle])) ++middle;
    return rooted(way[middle], around);
  }

  Tree rooted(NodeId root, const Around& around) const {
    Tree tree{root, {}};
    std::vector<std::pair<NodeId, NodeId>> queue{{root, -1}};
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const auto [node, from] = queue[head];
      const auto hops = around.find(node);
      if (hops == around.end()) break;
      for (const auto& hop : hops->second) {
        const NodeId to = topology_.dst(hop.back());
        if (to == from) continue;
        tree.hops.push_back(hop);
        queue.emplace_back(to, node);
      }
    }
    return tree;
  }

  // A node with the most hops from the root; hops are in breadth-first order.
  NodeId end(const Tree& tree) const {
    return tree.hops.empty() ? tree.root : topology_.dst(tree.hops.back().back());
  }

  const Topology& topology_;
  std::vector<NodeId> members_;
  std::vector<LinkId> back_;
  std::vector<std::uint8_t> is_member_;
  std::vector<std::int64_t> uses_;  // of each link: trees
  std::vector<double> price_;
  std::vector<Reach> reach_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

std::optional<TwoWay> pack_two_way(const std::shared_ptr<const Topology>& topology,
                                   std::span<const NodeId> members, std::int64_t count,
                                   const Progress& progress) {
  for (const NodeId member : members) {
    if (member < 0 || !topology->is_npu(member)) {
      invalid("NPU " + std::to_string(member) + " is not one of the topology's " +
              std::to_string(topology->npus()));
    }
  }
  auto back = links_back(*topology);
  if (back.empty() || members.size() < 2) return std::nullopt;
  TwoWayGrowth growth(*topology, members, back);
  const auto reversed = std::make_shared<const Topology>(topology->reversed());
  forest::TreeList up(reversed), down(topology);
  for (std::int64_t i = 0; i < count; ++i) {
    if (progress) progress(static_cast<double>(i) / static_cast<double>(count));
    const auto tree = growth.grow(members[growth.meets() ? 0 : at(i) % members.size()]);
    auto turned = tree.hops;
    for (auto& hop : turned) {
      for (auto& link : hop) link = back[at(link)];
    }
    up.add(tree.root, 1, turned);
    down.add(tree.root, 1, tree.hops);
  }
  LinkId most = 0;
  const auto load = [&](LinkId link) {
    return static_cast<double>(up.load()[at(link)] + down.load()[at(link)]) /
           static_cast<double>(topology->bandwidth(link));
  };
  for (LinkId link = 1; link < topology->links(); ++link) {
    if (load(link) > load(most)) most = link;
  }
  const auto uses = std::max<std::int64_t>(up.load()[at(most)] + down.load()[at(most)], 1);
  TwoWay result{std::move(up).forest(), std::move(down).forest()};
  for (auto* forest : {&result.up, &result.down}) {
    forest->demand_weight = count;
    forest->unit_Bps = topology->bandwidth(most);
    forest->unit_parts = uses;
  }
  return result;
}

}  // namespace tacos
