#include "lowering/lift_order.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <span>
#include <tuple>
#include <utility>

#include "support/index.hpp"

namespace tacos {

namespace {

using Node = std::int32_t;  // a transfer, or a joint: all transfers before it precede all after it

struct Edge {
  Node from, to;
  bool arrived;  // `to` starts when `from` has arrived, not only started
};

// A transfer's access to an `acc`.
struct Access {
  std::int32_t acc, version;
  bool reads;
  bool adds;  // writes, but does not overwrite
  Node transfer;

  auto key() const { return std::tie(acc, version, reads, adds, transfer); }
};

class Constraints {
 public:
  explicit Constraints(const std::vector<LiftedTransfer>& transfers)
      : nodes_(static_cast<Node>(transfers.size())) {
    std::vector<Access> all;
    for (Node t = 0; t < nodes_; ++t) {
      const auto& transfer = transfers[at(t)];
      if (transfer.after >= 0) edges_.push_back({transfer.after, t, true});
      if (transfer.source >= 0) {
        all.push_back({transfer.source, transfer.source_version, true, false, t});
      }
      if (transfer.target >= 0) {
        all.push_back({transfer.target, transfer.version, false, transfer.op == Op::reduce, t});
      }
    }
    std::sort(all.begin(), all.end(),
              [](const Access& a, const Access& b) { return a.key() < b.key(); });
    for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      while (end < all.size() && all[end].acc == all[begin].acc) ++end;
      add_acc(std::span(all).subspan(begin, end - begin));
    }
  }

  Node nodes() const { return nodes_; }
  const std::vector<Edge>& edges() const { return edges_; }

 private:
  // Readers, additions and copies of one `acc` follow each other in phases.
  void add_acc(std::span<const Access> all) {
    std::span<const Access> before;
    for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      const bool copies = !all[begin].reads && !all[begin].adds;
      for (end = begin + 1; end < all.size() && !copies; ++end) {
        if (all[end].reads != all[begin].reads || all[end].adds != all[begin].adds) break;
      }
      const auto phase = all.subspan(begin, end - begin);
      if (!before.empty()) join(before, phase);
      before = phase;
    }
  }

  void join(std::span<const Access> before, std::span<const Access> after) {
    const bool arrived = !before[0].reads;
    if (before.size() == 1 || after.size() == 1) {
      for (const auto& a : before) {
        for (const auto& b : after) edges_.push_back({a.transfer, b.transfer, arrived});
      }
      return;
    }
    const Node joint = nodes_++;
    for (const auto& a : before) edges_.push_back({a.transfer, joint, arrived});
    for (const auto& b : after) edges_.push_back({joint, b.transfer, false});
  }

  Node nodes_;
  std::vector<Edge> edges_;
};

// The graph row by row.
class Adjacency {
 public:
  Adjacency(Node nodes, const std::vector<Edge>& edges) : begin_(at(nodes) + 1, 0) {
    for (const Edge& edge : edges) ++begin_[at(edge.from) + 1];
    for (std::size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    to_.resize(edges.size());
    auto next = begin_;
    for (const Edge& edge : edges) to_[at(next[at(edge.from)]++)] = edge.to;
  }
  Node nodes() const { return static_cast<Node>(begin_.size()) - 1; }
  std::span<const Node> from(Node node) const {
    return std::span(to_).subspan(at(begin_[at(node)]),
                                  at(begin_[at(node) + 1] - begin_[at(node)]));
  }

 private:
  std::vector<std::int64_t> begin_;
  std::vector<Node> to_;
};

// The strongly connected component of every node (Tarjan's algorithm without recursion).
std::vector<Node> components(const Adjacency& graph) {
  const auto nodes = at(graph.nodes());
  std::vector<Node> component(nodes, -1), low(nodes, -1), open;
  struct Visit {
    Node node;
    std::size_t next;
  };
  std::vector<Visit> path;
  std::vector<Node> index(nodes, -1);
  Node count = 0, found = 0;
  for (Node root = 0; root < graph.nodes(); ++root) {
    if (index[at(root)] >= 0) continue;
    path.push_back({root, 0});
    while (!path.empty()) {
      const Node node = path.back().node;
      if (path.back().next == 0) {
        index[at(node)] = low[at(node)] = count++;
        open.push_back(node);
      }
      const auto next = graph.from(node);
      bool deeper = false;
      while (path.back().next < next.size() && !deeper) {
        const Node to = next[path.back().next++];
        if (index[at(to)] < 0) {
          path.push_back({to, 0});
          deeper = true;
        } else if (component[at(to)] < 0) {
          low[at(node)] = std::min(low[at(node)], index[at(to)]);
        }
      }
      if (deeper) continue;
      path.pop_back();
      if (!path.empty()) {
        auto& above = low[at(path.back().node)];
        above = std::min(above, low[at(node)]);
      }
      if (low[at(node)] != index[at(node)]) continue;
      for (Node member = -1; member != node;) {
        member = open.back();
        open.pop_back();
        component[at(member)] = found;
      }
      ++found;
    }
  }
  return component;
}

}  // namespace

LiftedOrder find_order(const std::vector<LiftedTransfer>& transfers, std::int32_t npus,
                       const Progress& progress) {
  LiftedOrder order;
  const Constraints constraints(transfers);
  const auto component = components(Adjacency(constraints.nodes(), constraints.edges()));
  const auto count =
      component.empty() ? 0 : *std::max_element(component.begin(), component.end()) + 1;
  std::vector<Edge> between;
  std::vector<std::int32_t> waits(at(count), 0);
  for (const Edge& edge : constraints.edges()) {
    const Edge across{component[at(edge.from)], component[at(edge.to)], edge.arrived};
    if (across.from != across.to) {
      between.push_back(across);
      ++waits[at(across.to)];
    } else if (edge.arrived) {
      order.circular = edge.from;
      return order;
    }
  }
  const Adjacency graph(count, between);
  // The members of each component, lowest first; joints have higher numbers than all transfers.
  std::vector<Node> first(at(count), -1), next(transfers.size(), -1);
  for (auto t = static_cast<Node>(transfers.size()) - 1; t >= 0; --t) {
    next[at(t)] = std::exchange(first[at(component[at(t)])], t);
  }
  // Of each component, its place in the queue: a joint alone goes first.
  struct Place {
    std::int32_t urgency = std::numeric_limits<std::int32_t>::max(), distance = 0;
    Node first = -1;
    auto key() const { return std::tuple(-urgency, distance, first); }
  };
  const auto distance = [npus](const LiftedTransfer& transfer) {
    return (transfer.dst - transfer.src + npus) % npus;
  };
  std::vector<Place> places(at(count));
  for (auto t = static_cast<Node>(transfers.size()) - 1; t >= 0; --t) {
    const Place place{transfers[at(t)].urgency, distance(transfers[at(t)]), t};
    auto& of = places[at(component[at(t)])];
    if (of.first < 0 || place.key() < of.key()) of = place;
  }
  const auto later = [&](Node a, Node b) {
    return std::pair(places[at(a)].key(), a) > std::pair(places[at(b)].key(), b);
  };
  std::priority_queue<Node, std::vector<Node>, decltype(later)> ready(later);
  for (Node c = 0; c < count; ++c) {
    if (waits[at(c)] == 0) ready.push(c);
  }
  order.transfers.reserve(transfers.size());
  order.steps.reserve(transfers.size());
  for (std::int32_t step = 0; !ready.empty(); ++step) {
    const Node c = ready.top();
    ready.pop();
    const auto begin = static_cast<std::ptrdiff_t>(order.transfers.size());
    for (Node t = first[at(c)]; t >= 0; t = next[at(t)]) {
      order.transfers.push_back(t);
      order.steps.push_back(step);
    }
    // An exchange among several ranks goes in rounds, so that few share a link at a time.
    std::stable_sort(order.transfers.begin() + begin, order.transfers.end(), [&](Node a, Node b) {
      return distance(transfers[at(a)]) < distance(transfers[at(b)]);
    });
    for (const Node to : graph.from(c)) {
      if (--waits[at(to)] == 0) ready.push(to);
    }
    if (progress && (step & 0xffff) == 0) progress(0.5);
  }
  return order;
}

}  // namespace tacos
