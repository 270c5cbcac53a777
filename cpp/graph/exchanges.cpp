#include "graph/exchanges.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "support/index.hpp"

namespace tacos {

namespace {

constexpr int kRounds = 3;  // of refinement: pods differ from boxes, and boxes from GPUs
constexpr std::size_t kMostVisits =
    64;  // of each link: exchanges of two levels of boxes take some ten

std::uint64_t mixed(std::uint64_t x) {  // the finalizer of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::vector<std::uint64_t> colours(const Topology& topology) {
  std::vector<std::uint64_t> now(at(topology.nodes()));
  for (NodeId node = 0; node < topology.nodes(); ++node) {
    now[at(node)] = (topology.is_npu(node) ? 1u : 0u) + (topology.can(node, kMulticast) ? 2u : 0u) +
                    (topology.can(node, kReduce) ? 4u : 0u);
  }
  for (int round = 0; round < kRounds; ++round) {
    auto next = now;
    for (auto& colour : next) colour = mixed(colour);
    for (LinkId link = 0; link < topology.links(); ++link) {
      const auto from = at(topology.src(link)), to = at(topology.dst(link));
      const auto kind = mixed(static_cast<std::uint64_t>(topology.latency(link)) * 3 +
                              mixed(static_cast<std::uint64_t>(topology.bandwidth(link))));
      next[from] += mixed(now[to] + kind);
      next[to] += mixed(now[from] - kind);
    }
    now = std::move(next);
  }
  return now;
}

// Searches for exchanges, one pair of nodes after another.
class Search {
 public:
  explicit Search(const Topology& topology)
      : topology_(topology),
        colour_(colours(topology)),
        image_(at(topology.nodes()), -1),
        left_(kMostVisits * at(topology.nodes() + topology.links())) {}

  const std::vector<std::uint64_t>& colour() const { return colour_; }
  bool tired() const { return left_ == 0; }

  // The nodes that change places if `a` and `b` do; empty if that was not found to be an automorphism.
  std::vector<std::pair<NodeId, NodeId>> exchange(NodeId a, NodeId b) {
    moved_.clear();
    swap(a, b);
    bool fine = true;
    for (std::size_t i = 0; fine && i < moved_.size(); ++i) fine = spread(moved_[i]);
    for (std::size_t i = 0; fine && i < moved_.size(); ++i) {
      fine = preserved(moved_[i].first) && preserved(moved_[i].second);
    }
    for (const auto& [one, other] : moved_) image_[at(one)] = image_[at(other)] = -1;
    if (!fine) moved_.clear();
    return moved_;
  }

 private:
  // One end of a link, seen from the other.
  struct End {
    NodeId node;
    bool out;
    Time latency;
    std::int64_t bandwidth;
    auto operator<=>(const End&) const = default;
  };

  void swap(NodeId a, NodeId b) {
    image_[at(a)] = b;
    image_[at(b)] = a;
    moved_.emplace_back(a, b);
  }
  NodeId image(NodeId node) const { return image_[at(node)] < 0 ? node : image_[at(node)]; }

  std::vector<End> ends(NodeId node) {
    std::vector<End> result;
    for (const auto link : topology_.out_links(node)) {
      result.push_back(
          {topology_.dst(link), true, topology_.latency(link), topology_.bandwidth(link)});
    }
    for (const auto link : topology_.in_links(node)) {
      result.push_back(
          {topology_.src(link), false, topology_.latency(link), topology_.bandwidth(link)});
    }
    left_ -= std::min(left_, result.size());
    std::sort(result.begin(), result.end());
    return result;
  }

  // Moves the neighbours of two nodes that change places.
  bool spread(const std::pair<NodeId, NodeId>& both) {
    const auto mine = ends(both.first), theirs = ends(both.second);
    if (mine.size() != theirs.size() || tired()) return false;
    std::vector<End> from, to;
    std::set_difference(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                        std::back_inserter(from));
    std::set_difference(theirs.begin(), theirs.end(), mine.begin(), mine.end(),
                        std::back_inserter(to));
    const auto open = [&](const std::vector<End>& all) {
      std::vector<End> result;
      for (const auto& end : all) {
        if (image_[at(end.node)] < 0) result.push_back(end);
      }
      std::stable_sort(result.begin(), result.end(), [&](const End& x, const End& y) {
        return std::tuple(colour_[at(x.node)], x.out, x.latency, x.bandwidth) <
               std::tuple(colour_[at(y.node)], y.out, y.latency, y.bandwidth);
      });
      return result;
    };
    const auto here = open(from), there = open(to);
    if (here.size() != there.size()) return false;
    for (std::size_t i = 0; i < here.size(); ++i) {
      const NodeId one = here[i].node, other = there[i].node;
      if (image_[at(one)] == other && image_[at(other)] == one)
        continue;  // another link between them
      if (image_[at(one)] >= 0 || image_[at(other)] >= 0 || one == other) return false;
      if (colour_[at(one)] != colour_[at(other)]) return false;
      swap(one, other);
    }
    return true;
  }

  bool preserved(NodeId node) {
    const NodeId other = image(node);
    if (topology_.is_npu(node) != topology_.is_npu(other) ||
        topology_.can(node, kMulticast) != topology_.can(other, kMulticast) ||
        topology_.can(node, kReduce) != topology_.can(other, kReduce)) {
      return false;
    }
    auto moved = ends(node);
    for (auto& end : moved) end.node = image(end.node);
    std::sort(moved.begin(), moved.end());
    return moved == ends(other);
  }

  const Topology& topology_;
  const std::vector<std::uint64_t> colour_;
  std::vector<NodeId> image_;  // of each node that moves, otherwise -1
  std::vector<std::pair<NodeId, NodeId>> moved_;
  std::size_t left_;
};

}  // namespace

Exchanges::Exchanges(const Topology& topology) : nodes_(at(topology.nodes())) {
  Search search(topology);
  std::map<std::uint64_t, std::vector<NodeId>> by_colour;
  for (std::size_t node = 0; node < nodes_; ++node) {
    by_colour[search.colour()[node]].push_back(static_cast<NodeId>(node));
  }
  std::vector<std::vector<NodeId>> alike;
  for (auto& [colour, nodes] : by_colour) alike.push_back(std::move(nodes));
  std::sort(alike.begin(), alike.end(), [](const auto& a, const auto& b) {
    return std::pair(a.size(), a[0]) < std::pair(b.size(), b[0]);
  });
  for (const auto& nodes : alike) {
    for (std::size_t i = 1; i < nodes.size() && !search.tired(); ++i) {
      const auto found = search.exchange(nodes[i - 1], nodes[i]);
      if (found.empty()) continue;
      pairs_.insert(pairs_.end(), found.begin(), found.end());
      begin_.push_back(pairs_.size());
    }
  }
}

std::span<const Exchanges::Pair> Exchanges::pairs(std::size_t exchange) const {
  return std::span(pairs_).subspan(begin_[exchange], begin_[exchange + 1] - begin_[exchange]);
}

bool Exchanges::keeps(std::size_t exchange, std::span<const std::int32_t> label) const {
  const auto all = pairs(exchange);
  return std::all_of(all.begin(), all.end(), [&](const Pair& pair) {
    return label[at(pair.first)] == label[at(pair.second)];
  });
}

std::vector<NodeId> Exchanges::classes(std::span<const std::int32_t> label) const {
  std::vector<NodeId> first(nodes_);
  std::iota(first.begin(), first.end(), 0);
  const auto root = [&](NodeId node) {
    while (first[at(node)] != node) node = first[at(node)] = first[at(first[at(node)])];
    return node;
  };
  for (std::size_t exchange = 0; exchange < count(); ++exchange) {
    if (!keeps(exchange, label)) continue;
    for (const auto& [a, b] : pairs(exchange)) {
      const auto [low, high] = std::minmax({root(a), root(b)});
      first[at(high)] = low;
    }
  }
  for (std::size_t node = 0; node < nodes_; ++node) first[node] = root(static_cast<NodeId>(node));
  return first;
}

void Exchanges::each_image(
    NodeId first, std::span<const NodeId> set, std::span<const std::int32_t> label,
    const std::function<void(NodeId, const std::vector<NodeId>&)>& visit) const {
  std::unordered_map<NodeId, std::vector<std::size_t>> moves;  // the exchanges that move a node
  for (std::size_t exchange = 0; exchange < count(); ++exchange) {
    if (!keeps(exchange, label)) continue;
    for (const auto& [a, b] : pairs(exchange)) {
      moves[a].push_back(exchange);
      moves[b].push_back(exchange);
    }
  }
  std::vector<NodeId> image(nodes_);
  std::iota(image.begin(), image.end(), 0);
  std::unordered_map<NodeId, std::vector<NodeId>> found{{first, {set.begin(), set.end()}}};
  std::vector<NodeId> queue{first};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const auto exchange : moves[queue[i]]) {
      for (const auto& [a, b] : pairs(exchange)) image[at(a)] = b, image[at(b)] = a;
      const NodeId next = image[at(queue[i])];
      if (const auto [entry, added] = found.try_emplace(next); added) {
        for (const NodeId node : found[queue[i]]) entry->second.push_back(image[at(node)]);
        std::sort(entry->second.begin(), entry->second.end());
        visit(next, entry->second);
        queue.push_back(next);
      }
      for (const auto& [a, b] : pairs(exchange)) image[at(a)] = a, image[at(b)] = b;
    }
  }
}

}  // namespace tacos
