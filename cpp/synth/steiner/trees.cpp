#include "synth/steiner/trees.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include "graph/best_first.hpp"
#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/matching.hpp"

namespace tacos::steiner {

namespace {

constexpr Time kDearest = Time{1} << 56;   // highest price of a link
constexpr Time kFarthest = Time{1} << 62;  // highest cost of a node, so that sums do not overflow
constexpr std::int64_t kWork =
    100'000'000;                      // links visited in all rounds: about a second (measured)
constexpr std::int64_t kVisits = 4;   // visits of a link while a tree grows (measured)
constexpr std::int64_t kRounds = 5;   // at most (chosen)
constexpr int kSquarings = 4;         // prices grow with the 16th power of the load
constexpr std::int64_t kWeight = 16;  // price of the busiest link, in transmission times (chosen)
constexpr Time kDepth = 2;  // distance from the root costs a kDepth-th of its time (chosen)
constexpr int kOne = 20;    // fixed point: 2^20 is 1

class Packer {
 public:
  Packer(const Topology& topology, const std::vector<TreeDemand>& demands,
         const std::vector<LinkId>& back)
      : topology_(topology),
        demands_(demands),
        back_(back),
        load_(at(topology.links()), 0),
        price_(at(topology.links()), 0),
        uses_(at(topology.links()), 0),
        wanted_(at(topology.nodes()), 0),
        search_(topology.nodes()) {
    packing_.trees.resize(demands.size());
  }

  Packing run(const Progress& progress) {
    std::vector<std::size_t> order(demands_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [](std::size_t a, std::size_t b) {
      return std::pair(mix(a), a) <
             std::pair(mix(b), b);  // those of one group should not come at once
    });
    const bool switched = topology_.nodes() > topology_.npus();
    std::int64_t visits =
        1;  // through switches, the search for the next terminal starts anew each time
    for (const auto& demand : demands_) visits += switched ? std::ssize(demand.terminals) : kVisits;
    const auto rounds = std::clamp<std::int64_t>(kWork / (visits * topology_.links()), 1, kRounds);
    Packing best;
    for (std::int64_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < order.size(); ++i) {
        if (progress && (switched || i % 64 == 0)) {
          const auto done = static_cast<double>(round) +
                            static_cast<double>(i) / static_cast<double>(order.size());
          progress(done / static_cast<double>(rounds));
        }
        const auto& demand = demands_[order[i]];
        auto& tree = packing_.trees[order[i]];
        for (const auto& hop : tree.hops) carry(demand, hop, -1);
        tree = grow(demand);
        progress.spend(static_cast<double>(search_.take_offers()) * work::kVisit +
                       static_cast<double>(topology_.links()) * work::kTry);
      }
      packing_.busiest = load_.empty() ? 0 : *std::max_element(load_.begin(), load_.end());
      if (round == 0 || packing_.busiest < best.busiest) best = packing_;
    }
    for (std::size_t i = 0; i < demands_.size(); ++i) {
      if (demands_[i].way == Way::both) best.trees[i] = centred(topology_, back_, best.trees[i]);
    }
    return best;
  }

 private:
  NodeId next(LinkId link) const { return up_ ? topology_.src(link) : topology_.dst(link); }
  NodeId before(LinkId link) const { return up_ ? topology_.dst(link) : topology_.src(link); }

  void carry(const TreeDemand& demand, std::span<const LinkId> links, Time sign) {
    for (const LinkId link : links) {
      load_[at(link)] += sign * busy(demand, link);
      if (demand.way == Way::both)
        load_[at(back_[at(link)])] += sign * busy(demand, back_[at(link)]);
      if (load_[at(link)] > kLongestSchedule) too_long();
    }
  }
  Time busy(const TreeDemand& demand, LinkId link) const {
    const auto time =
        static_cast<__int128>(topology_.busy_time(link, demand.bytes)) * demand.chunks;
    return static_cast<Time>(std::min<__int128>(time, kLongestSchedule));
  }

  // Integers throughout: the same on every machine.
  Time price(const TreeDemand& demand, LinkId link) const {
    const Time own = busy(demand, link);
    const Time load = std::min(load_[at(link)] + own, busiest_) >> coarser_;
    std::int64_t share = (load << kOne) / std::max<Time>(busiest_ >> coarser_, 1);
    for (int i = 0; i < kSquarings; ++i) share = share * share >> kOne;
    const auto dear = (static_cast<__int128>(own) * share * kWeight >> kOne) +
                      static_cast<__int128>(own) * (1 + uses_[at(link)]) + topology_.latency(link);
    return static_cast<Time>(std::min<__int128>(kDearest, dear));
  }
  void set_price(const TreeDemand& demand, LinkId link) {
    price_[at(link)] = price(demand, link);
    if (demand.way == Way::both) {
      const LinkId back = back_[at(link)];
      price_[at(link)] = price_[at(back)] = (price_[at(link)] + price(demand, back)) / 2;
    }
  }

  Tree grow(const TreeDemand& demand) {
    up_ = demand.way == Way::up;
    busiest_ = 1;
    for (const Time load : load_) busiest_ = std::max(busiest_, load);
    // Times that fit 62 bits in the fixed point.
    const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(busiest_)));
    coarser_ = std::max(bits - (62 - kOne), 0);
    for (LinkId link = 0; link < topology_.links(); ++link) set_price(demand, link);
    search_.clear();
    for (const NodeId npu : demand.terminals) wanted_[at(npu)] = 1;
    const auto any = mix(turn_++) % demand.terminals.size();
    Tree tree{demand.root >= 0 ? demand.root : demand.terminals[any], {}};
    std::size_t waiting = demand.terminals.size() - wanted_[at(tree.root)];
    wanted_[at(tree.root)] = 0;
    search_.start(tree.root, 0);
    while (waiting > 0) {
      const NodeId npu = nearest();
      if (npu < 0) lost(demand, tree.root);
      waiting -= join_path(demand, npu, tree);
    }
    for (const auto& hop : tree.hops) {
      for (const LinkId link : hop) uses_[at(link)] = 0;
    }
    return tree;
  }

  // Joins a terminal by the path that was found, and returns the number of terminals on the path.
  std::size_t join_path(const TreeDemand& demand, NodeId npu, Tree& tree) {
    path_.clear();
    for (NodeId node = npu; !search_.source(node); node = before(path_.back())) {
      path_.push_back(search_.mark(node));
    }
    std::reverse(path_.begin(), path_.end());
    Time ready = search_.key(before(path_.front()));
    std::size_t found = 0;
    bool switched = false;
    auto* hop = &tree.hops.emplace_back();
    for (const LinkId link : path_) {
      hop->push_back(link);
      ++uses_[at(link)];
      ready = std::min(ready + busy(demand, link) / kDepth, kFarthest);
      const NodeId node = next(link);
      if (!topology_.is_npu(node)) {
        switched = true;
        continue;
      }
      search_.start(node, ready);
      found += wanted_[at(node)];
      wanted_[at(node)] = 0;
      if (node != npu) hop = &tree.hops.emplace_back();
    }
    carry(demand, path_, 1);
    // A link to or from a switch may be used again, at a higher price. Then what was found at its old price is not valid.
    if (!switched) return found;
    for (const LinkId link : path_) set_price(demand, link);
    search_.restart();
    return found;
  }

  // The nearest terminal outside of the tree; -1 if none can be reached.
  NodeId nearest() {
    while (const auto node = search_.next()) {
      if (wanted_[at(*node)] != 0) return *node;
      const Time cost = search_.key(*node);
      for (const LinkId link : up_ ? topology_.in_links(*node) : topology_.out_links(*node)) {
        search_.offer(next(link), std::min(cost + price_[at(link)], kFarthest), link);
      }
    }
    return -1;
  }

  [[noreturn]] void lost(const TreeDemand& demand, NodeId root) const {
    for (const NodeId npu : demand.terminals) {
      if (wanted_[at(npu)] == 0) continue;
      const auto from = topology_.name(up_ ? npu : root), to = topology_.name(up_ ? root : npu);
      throw InfeasibleError(from + " cannot reach " + to);
    }
    throw InfeasibleError("an NPU cannot be reached");
  }

  const Topology& topology_;
  const std::vector<TreeDemand>& demands_;
  const std::vector<LinkId>& back_;
  Packing packing_;
  std::vector<Time> load_;  // of each link
  bool up_ = false;         // whether the current tree grows against its links
  std::uint64_t turn_ = 0;
  Time busiest_ = 1;
  int coarser_ = 0;                 // bits by which times are shortened
  std::vector<Time> price_;         // of each link
  std::vector<std::int64_t> uses_;  // of each link, in the current tree
  std::vector<LinkId> path_;
  std::vector<std::uint8_t> wanted_;  // per node
  BestFirst<Time> search_;            // from the tree
};

}  // namespace

Packing pack(const Topology& topology, const std::vector<TreeDemand>& demands,
             const std::vector<LinkId>& back, const Progress& progress) {
  return Packer(topology, demands, back).run(progress);
}

}  // namespace tacos::steiner
