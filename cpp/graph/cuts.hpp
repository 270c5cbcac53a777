// Cuts with little bandwidth for the traffic that has to cross them.
//
// Given supplies (bytes that some nodes hold) and a sink that needs all of them, a cut is a set S of
// nodes without the sink, and its time is supply(S) / bandwidth out of S. The largest such time is
// found by Dinkelbach's iteration: check by one maximum flow from a super-source whether everything
// arrives within the time of the best cut so far; if not, the minimum cut is a better one. With a good
// first guess it takes two or three flows.
//
// Capacities are scaled to whole numbers: exactly if the greatest common divisors allow it, as in all
// commercial machines, else to about 60 bits. A result is a set of nodes, so rounding never makes
// a bound wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/max_flow.hpp"
#include "model/topology.hpp"

namespace tacos {

using NodeSet = std::vector<std::uint8_t>;  // 1 for the nodes that are in it

struct Supply {
  NodeId node;
  std::int64_t bytes;
};

// The demand of one sink. `bytes` is usually the sum of the supplies, but may be less, for example if several
// nodes hold the same data.
struct SinkDemand {
  NodeId sink = 0;
  std::int64_t bytes = 0;
  std::vector<Supply> supplies;
};

// A time in seconds, as a fraction.
struct Ratio {
  std::int64_t bytes = 0;
  std::int64_t bandwidth_Bps = 1;
};

class CutSearch {
 public:
  // If `reversed`, flows run against the links: the sink is then the source of all data, and a cut is
  // the set of nodes that receive it.
  CutSearch(const Topology& topology, bool reversed);

  // A cut whose time is above `time`, if there is one. It does not contain the sink.
  std::optional<NodeSet> above(const SinkDemand& demand, Ratio time);

  // The number of edges looked at since the last call: the work of the flows.
  std::size_t take_visits() { return flow_.take_visits(); }

  // After above() found none: the smallest set around the sink whose incoming bandwidth is only just
  // sufficient; all nodes if there is no such set.
  NodeSet tight() const;

 private:
  std::size_t links_ = 0, nodes_ = 0;
  std::vector<std::int64_t> bandwidth_;  // in units of their greatest common divisor
  std::int64_t unit_Bps_ = 1;
  MaxFlow flow_;
  MaxFlow::Amount slack_ = 0;
};

// For each node, the first node with equal neighbours over equal links. Exchanging two nodes of such a
// class does not change the network.
std::vector<NodeId> twins(const Topology& topology);

// Costs of the cheapest path from any of `from`, with a cost per link; -1 if there is no path.
std::vector<std::int64_t> distances(const Topology& topology, std::span<const NodeId> from,
                                    std::span<const std::int64_t> cost, bool reversed);

}  // namespace tacos
