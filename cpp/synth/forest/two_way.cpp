#include "synth/forest/two_way.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/best_first.hpp"
#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/both_ways.hpp"
#include "synth/forest/tree_list.hpp"

namespace tacos {

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
        search_(topology.nodes()) {
    for (const NodeId member : members_) is_member_[at(member)] = 1;
    for (NodeId node = topology.npus(); node < topology.nodes(); ++node) {
      is_member_[at(node)] = topology.can(node, kMulticast) && topology.can(node, kReduce);
    }
  }

  // Whether sums and results meet in switches: then trees with one root hinder each other least.
  bool meets() const {
    return std::find(is_member_.begin() + topology_.npus(), is_member_.end(), 1) !=
           is_member_.end();
  }

  // Counts the work since the last call.
  void spend(const Progress& progress) {
    progress.spend(static_cast<double>(search_.take_offers()) * work::kVisit +
                   static_cast<double>(std::exchange(priced_, 0)) * work::kStep);
  }

  HopTree grow(NodeId first) {
    priced_ += price_.size();
    set_prices();
    HopTree tree{first, {}};
    search_.clear();
    search_.start(first, {0, 0});
    for (std::size_t open = members_.size() - 1; open > 0;) {
      const auto next = search_.next();
      if (!next) lost();
      const NodeId node = *next;
      if (is_member_[at(node)] && !search_.source(node)) {
        auto& hop = tree.hops.emplace_back();
        for (NodeId here = node; hop.empty() || !is_member_[at(here)];) {
          hop.push_back(search_.mark(here));
          here = topology_.src(hop.back());
        }
        std::reverse(hop.begin(), hop.end());
        search_.start(node, {0, search_.key(node).second});
        open -= topology_.is_npu(node);
      } else {
        offer(node);
      }
    }
    prune(tree);
    for (const auto& hop : tree.hops) {
      for (const LinkId link : hop) {
        ++uses_[at(link)];
        ++uses_[at(back_[at(link)])];
      }
    }
    return centred(topology_, back_, tree);
  }

 private:
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

  void offer(NodeId from) {
    const auto [price, depth] = search_.key(from);
    for (const LinkId link : topology_.out_links(from)) {
      search_.offer(topology_.dst(link),
                    {price + price_[at(link)], depth + (is_member_[at(from)] ? 1 : 0)}, link);
    }
  }

  [[noreturn]] void lost() const {
    for (const NodeId member : members_) {
      if (!search_.source(member)) {
        throw InfeasibleError(topology_.name(members_[0]) + " cannot reach " +
                              topology_.name(member));
      }
    }
    throw InfeasibleError("a member cannot be reached");
  }

  // Removes switches that lead to no NPU.
  void prune(HopTree& tree) const {
    std::vector<std::uint8_t> leads(is_member_.size(), 0);
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

  const Topology& topology_;
  std::vector<NodeId> members_;
  std::vector<LinkId> back_;
  std::vector<std::uint8_t> is_member_;
  std::vector<std::int64_t> uses_;  // of each link: trees
  std::vector<double> price_;
  std::size_t priced_ = 0;                             // links, since they were counted last
  BestFirst<std::pair<double, std::int32_t>> search_;  // by price, then depth
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
    growth.spend(progress);
    const auto tree = growth.grow(members[growth.meets() ? 0 : at(i) % members.size()]);
    auto turned = tree.hops;
    for (auto& hop : turned) {
      for (auto& link : hop) link = back[at(link)];
    }
    up.add(tree.root, 1, turned);
    down.add(tree.root, 1, tree.hops);
  }
  growth.spend(progress);
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
