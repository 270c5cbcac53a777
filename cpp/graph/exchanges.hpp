// Exchanges of equal parts of a network: two GPUs of a box, two boxes on a fabric, two pods of a fat tree.
//
// An exchange is an automorphism that is its own inverse: it maps links to links with the same latency and bandwidth, and NPUs
// and switches to nodes of their kind. It is found from two nodes that change places. Neighbours that both have alike stay;
// the others change places in pairs, in the order of their numbers, and so on. Each exchange is then checked link by link, so
// the search may guess. It finds what is equal in clusters, but not the rotations of a torus.
//
// Pairs to try are neighbours in a class of nodes that look alike to some distance (refinement of colours, by hashes). Small
// classes come first: if two boxes are exchanged because of their switches, their GPUs keep their order.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "model/topology.hpp"

namespace tacos {

class Exchanges {
 public:
  explicit Exchanges(const Topology& topology);

  // For each node, the first node of its class: those that take each other's place by exchanges under which all nodes keep
  // their label.
  std::vector<NodeId> classes(std::span<const std::int32_t> label) const;

  // Carries a set of nodes from `first` to the other nodes of its class: calls visit(node, image of the set) for each.
  void each_image(NodeId first, std::span<const NodeId> set, std::span<const std::int32_t> label,
                  const std::function<void(NodeId, const std::vector<NodeId>&)>& visit) const;

 private:
  using Pair = std::pair<NodeId, NodeId>;  // two nodes that change places

  std::size_t count() const { return begin_.size() - 1; }
  std::span<const Pair> pairs(std::size_t exchange) const;
  bool keeps(std::size_t exchange, std::span<const std::int32_t> label) const;

  std::size_t nodes_;
  std::vector<Pair> pairs_;
  std::vector<std::size_t> begin_{0};  // of each exchange
};

}  // namespace tacos
