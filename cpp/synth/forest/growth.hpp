// Grows trees hop by hop, such that every cut keeps enough bandwidth for the remaining trees; packing.hpp has
// the theory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/best_first.hpp"
#include "graph/max_flow.hpp"
#include "model/topology.hpp"
#include "support/progress.hpp"

namespace tacos::forest {

struct Tree {
  NodeId root = 0;
  std::int64_t weight = 0;
  std::vector<std::vector<LinkId>> hops;  // the hop into a node precedes those out of it
};

class Growth {
 public:
  Growth(const Topology& topology, std::span<const std::int64_t> capacity,
         std::span<const NodeId> members);

  void wants(NodeId root, std::int64_t weight);
  std::int64_t wanted(NodeId root) const { return rest_[static_cast<std::size_t>(root)]; }

  // A tree that carries part or all of its root's demand; nullopt if no tree can grow.
  std::optional<Tree> tree(NodeId root, const Progress& progress);

  // Adds images of the last tree for the images of its root, all with one weight, which it returns; the tree itself may
  // become lighter. `links` are the links of all images, with repetitions; `enough` are members of which all others
  // are images. Returns 0 if no part of the tree can be repeated.
  std::int64_t repeat(const Tree& tree, std::span<const NodeId> roots,
                      std::span<const LinkId> links, std::span<const NodeId> enough);

  // Counts the work since the last call.
  void spend(const Progress& progress);

  // A tree for the remaining demand, regardless of link capacities: each member over its fastest path.
  Tree fastest_tree(NodeId root);

 private:
  using Amount = MaxFlow::Amount;
  using Set = std::vector<std::uint8_t>;
  struct Hop {
    Time arrival = 0;
    NodeId from = 0, to = 0;
    std::vector<LinkId> path;
  };
  struct Later {
    bool operator()(const Hop& a, const Hop& b) const;
  };
  // A set of nodes with little incoming bandwidth left.
  struct Narrow {
    Set inside;
    Amount slack = 0;
    bool holds_tree = false;
  };

  bool joined(NodeId node) const { return arrival_[static_cast<std::size_t>(node)] >= 0; }
  void plant(NodeId root);
  // Adds the hops that start at a node of the tree, by their first links.
  void offer(NodeId from);
  void offer(NodeId from, LinkId first, NodeId only = -1);
  // An upper bound of what a hop may carry, from the known narrow sets and then from flows.
  Amount room(const Hop& hop) const;
  Amount limit(const Hop& hop);
  Amount limit_by_flow(const Hop& hop);
  // The largest part of `amount` with which a path through switches leaves enough bandwidth for all members.
  Amount limit_inside(const Hop& hop, Amount amount);
  // Whether all sets certainly keep enough bandwidth, given the capacities that `limit_inside` sets for this amount.
  bool keeps_enough(const Hop& hop, Amount amount);
  void accept(const Hop& hop, Amount amount);
  void shrink(Amount weight);
  void remember(Set inside);
  Amount slack(const Set& inside) const;
  std::int64_t entries(const Hop& hop, const Set& inside) const;
  std::int64_t losses(const Hop& hop, const Narrow& narrow) const;

  const Topology& topology_;
  std::vector<NodeId> members_;
  Set is_member_;
  std::vector<Amount> left_;  // per link: capacity left by the current tree at its current weight
  std::vector<Amount> rest_;  // per node: demand that remains after the current tree
  Amount rest_total_ = 0;
  MaxFlow flow_;
  // Per link: the time of a chunk that takes as long on the fastest link as the longest latency.
  std::vector<Time> slowness_;
  std::vector<Narrow> narrow_;
  // The current tree.
  Tree tree_;
  std::vector<std::int32_t> uses_;  // per link
  std::vector<Time> arrival_;       // per node; -1: not in the tree
  std::vector<Hop> queue_, partial_;
  // Of a hop's path: its latencies after the root's, the time of the slowest link, and the last link.
  struct Way {
    Time latency = 0, slowest = 0;
    LinkId into = -1;
  };
  BestFirst<Time, Way> search_;
  mutable std::size_t looked_at_ = 0;  // cells of sets and links, since they were counted last
};

}  // namespace tacos::forest
