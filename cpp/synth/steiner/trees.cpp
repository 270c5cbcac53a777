#include "synth/steiner/trees.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
#include <utility>

#include "support/error.hpp"
#include "support/index.hpp"
#include "synth/matching.hpp"

namespace tacos::steiner {

namespace {

constexpr Time kUnreached = std::numeric_limits<Time>::max();
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
  Packer(const Topology& topology, const std::vector<Task>& tasks, const std::vector<LinkId>& back)
      : topology_(topology),
        tasks_(tasks),
        back_(back),
        load_(at(topology.links()), 0),
        price_(at(topology.links()), 0),
        cost_(at(topology.nodes()), kUnreached),
        uses_(at(topology.links()), 0),
        into_(at(topology.nodes()), -1),
        in_tree_(at(topology.nodes()), 0),
        wanted_(at(topology.nodes()), 0) {
    packing_.trees.resize(tasks.size());
  }

  Packing run(const Progress& progress) {
    std::vector<std::size_t> order(tasks_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [](std::size_t a, std::size_t b) {
      return std::pair(mix(a), a) <
             std::pair(mix(b), b);  // those of one group should not come at once
    });
    const bool switched = topology_.nodes() > topology_.npus();
    std::int64_t visits =
        1;  // through switches, the search for the next terminal starts anew each time
    for (const auto& task : tasks_) visits += switched ? std::ssize(task.terminals) : kVisits;
    const auto rounds = std::clamp<std::int64_t>(kWork / (visits * topology_.links()), 1, kRounds);
    Packing best;
    for (std::int64_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < order.size(); ++i) {
        if (progress && (switched || i % 64 == 0)) {
          const auto done = static_cast<double>(round) +
                            static_cast<double>(i) / static_cast<double>(order.size());
          progress(done / static_cast<double>(rounds));
        }
        const auto& task = tasks_[order[i]];
        auto& tree = packing_.trees[order[i]];
        for (const auto& hop : tree.hops) carry(task, hop, -1);
        tree = grow(task);
      }
      packing_.busiest = load_.empty() ? 0 : *std::max_element(load_.begin(), load_.end());
      if (round == 0 || packing_.busiest < best.busiest) best = packing_;
    }
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (tasks_[i].way == Way::both) best.trees[i] = centred(best.trees[i]);
    }
    return best;
  }

 private:
  NodeId next(LinkId link) const { return up_ ? topology_.src(link) : topology_.dst(link); }
  NodeId before(LinkId link) const { return up_ ? topology_.dst(link) : topology_.src(link); }

  void carry(const Task& task, std::span<const LinkId> links, Time sign) {
    for (const LinkId link : links) {
      load_[at(link)] += sign * busy(task, link);
      if (task.way == Way::both) load_[at(back_[at(link)])] += sign * busy(task, back_[at(link)]);
      if (load_[at(link)] > kLongestSchedule) too_long();
    }
  }
  Time busy(const Task& task, LinkId link) const {
    const auto time = static_cast<__int128>(topology_.busy_time(link, task.bytes)) * task.chunks;
    return static_cast<Time>(std::min<__int128>(time, kLongestSchedule));
  }

  // Integers throughout: the same on every machine.
  Time price(const Task& task, LinkId link) const {
    const Time own = busy(task, link);
    const Time load = std::min(load_[at(link)] + own, busiest_) >> coarser_;
    std::int64_t share = (load << kOne) / std::max<Time>(busiest_ >> coarser_, 1);
    for (int i = 0; i < kSquarings; ++i) share = share * share >> kOne;
    const auto dear = (static_cast<__int128>(own) * share * kWeight >> kOne) +
                      static_cast<__int128>(own) * (1 + uses_[at(link)]) + topology_.latency(link);
    return static_cast<Time>(std::min<__int128>(kDearest, dear));
  }
  void set_price(const Task& task, LinkId link) {
    price_[at(link)] = price(task, link);
    if (task.way == Way::both) {
      const LinkId back = back_[at(link)];
      price_[at(link)] = price_[at(back)] = (price_[at(link)] + price(task, back)) / 2;
    }
  }

  Tree grow(const Task& task) {
    up_ = task.way == Way::up;
    busiest_ = 1;
    for (const Time load : load_) busiest_ = std::max(busiest_, load);
    // Times that fit 62 bits in the fixed point.
    const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(busiest_)));
    coarser_ = std::max(bits - (62 - kOne), 0);
    for (LinkId link = 0; link < topology_.links(); ++link) set_price(task, link);
    for (const NodeId node : touched_) cost_[at(node)] = kUnreached, in_tree_[at(node)] = 0;
    touched_.clear();
    queue_ = {};
    for (const NodeId npu : task.terminals) wanted_[at(npu)] = 1;
    const auto any = mix(turn_++) % task.terminals.size();
    Tree tree{task.root >= 0 ? task.root : task.terminals[any], {}};
    std::size_t waiting = task.terminals.size() - wanted_[at(tree.root)];
    wanted_[at(tree.root)] = 0;
    join(tree.root, 0);
    while (waiting > 0) {
      const NodeId npu = nearest();
      if (npu < 0) lost(task, tree.root);
      waiting -= join_path(task, npu, tree);
    }
    for (const auto& hop : tree.hops) {
      for (const LinkId link : hop) uses_[at(link)] = 0;
    }
    return tree;
  }

  // Joins a terminal by the path that was found, and returns the number of terminals on the path.
  std::size_t join_path(const Task& task, NodeId npu, Tree& tree) {
    path_.clear();
    for (NodeId node = npu; in_tree_[at(node)] == 0; node = before(path_.back())) {
      path_.push_back(into_[at(node)]);
    }
    std::reverse(path_.begin(), path_.end());
    Time ready = cost_[at(before(path_.front()))];
    std::size_t found = 0;
    bool switched = false;
    auto* hop = &tree.hops.emplace_back();
    for (const LinkId link : path_) {
      hop->push_back(link);
      ++uses_[at(link)];
      ready = std::min(ready + busy(task, link) / kDepth, kFarthest);
      const NodeId node = next(link);
      if (!topology_.is_npu(node)) {
        switched = true;
        continue;
      }
      join(node, ready);
      found += wanted_[at(node)];
      wanted_[at(node)] = 0;
      if (node != npu) hop = &tree.hops.emplace_back();
    }
    carry(task, path_, 1);
    // A link to or from a switch may be used again, at a higher price. Then what was found at its old price is not valid.
    if (!switched) return found;
    for (const LinkId link : path_) set_price(task, link);
    queue_ = {};
    for (const NodeId node : touched_) {
      if (in_tree_[at(node)] != 0) {
        queue_.emplace(cost_[at(node)], node);
      } else {
        cost_[at(node)] = kUnreached;
      }
    }
    std::erase_if(touched_, [&](NodeId node) { return in_tree_[at(node)] == 0; });
    return found;
  }

  void join(NodeId npu, Time ready) {
    if (cost_[at(npu)] == kUnreached) touched_.push_back(npu);
    in_tree_[at(npu)] = 1;
    cost_[at(npu)] = ready;
    queue_.emplace(ready, npu);
  }

  // The nearest terminal outside of the tree; -1 if none can be reached.
  NodeId nearest() {
    while (!queue_.empty()) {
      const auto [cost, node] = queue_.top();
      if (cost > cost_[at(node)]) {
        queue_.pop();
        continue;
      }
      if (wanted_[at(node)] != 0) return node;
      queue_.pop();
      for (const LinkId link : up_ ? topology_.in_links(node) : topology_.out_links(node)) {
        const NodeId other = next(link);
        const Time through = std::min(cost + price_[at(link)], kFarthest);
        if (in_tree_[at(other)] != 0 || through >= cost_[at(other)]) continue;
        if (cost_[at(other)] == kUnreached) touched_.push_back(other);
        cost_[at(other)] = through;
        into_[at(other)] = link;
        queue_.emplace(through, other);
      }
    }
    return -1;
  }

  [[noreturn]] void lost(const Task& task, NodeId root) const {
    for (const NodeId npu : task.terminals) {
      if (wanted_[at(npu)] == 0) continue;
      const auto from = topology_.name(up_ ? npu : root), to = topology_.name(up_ ? root : npu);
      throw InfeasibleError(from + " cannot reach " + to);
    }
    throw InfeasibleError("an NPU cannot be reached");
  }

  // The same tree, rooted in the middle of its longest path.
  Tree centred(const Tree& tree) {
    std::vector<std::vector<std::vector<LinkId>>> around(at(topology_.npus()));
    for (const auto& hop : tree.hops) {
      std::vector<LinkId> turned;
      for (auto link = hop.rbegin(); link != hop.rend(); ++link) {
        turned.push_back(back_[at(*link)]);
      }
      around[at(topology_.src(hop.front()))].push_back(hop);
      around[at(topology_.dst(hop.back()))].push_back(std::move(turned));
    }
    const auto rooted = [&](NodeId root) {
      Tree result{root, {}};
      std::vector<std::pair<NodeId, NodeId>> queue{{root, -1}};
      for (std::size_t head = 0; head < queue.size(); ++head) {
        const auto [node, from] = queue[head];
        for (const auto& hop : around[at(node)]) {
          const NodeId to = topology_.dst(hop.back());
          if (to == from) continue;
          result.hops.push_back(hop);
          queue.emplace_back(to, node);
        }
      }
      return result;
    };
    const auto last = [&](const Tree& one) { return topology_.dst(one.hops.back().back()); };
    if (tree.hops.empty()) return tree;
    const auto whole = rooted(last(rooted(tree.root)));
    std::vector<NodeId> above(at(topology_.npus()), -1);
    for (const auto& hop : whole.hops) {
      above[at(topology_.dst(hop.back()))] = topology_.src(hop.front());
    }
    std::vector<NodeId> way{last(whole)};
    while (above[at(way.back())] >= 0) way.push_back(above[at(way.back())]);
    return rooted(way[way.size() / 2]);
  }

  const Topology& topology_;
  const std::vector<Task>& tasks_;
  const std::vector<LinkId>& back_;
  Packing packing_;
  std::vector<Time> load_;  // of each link
  bool up_ = false;         // whether the current tree grows against its links
  std::uint64_t turn_ = 0;
  Time busiest_ = 1;
  int coarser_ = 0;                 // bits by which times are shortened
  std::vector<Time> price_;         // of each link
  std::vector<Time> cost_;          // of each node, from the tree
  std::vector<std::int64_t> uses_;  // of each link, in the current tree
  std::vector<LinkId> into_, path_;
  std::vector<std::uint8_t> in_tree_, wanted_;  // per node
  std::vector<NodeId> touched_;
  using Entry = std::pair<Time, NodeId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

Packing pack(const Topology& topology, const std::vector<Task>& tasks,
             const std::vector<LinkId>& back, const Progress& progress) {
  return Packer(topology, tasks, back).run(progress);
}

}  // namespace tacos::steiner
