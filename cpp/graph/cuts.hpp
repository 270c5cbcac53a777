// Cuts that are narrow for what has to pass them.
//
// Given supplies (bytes that some nodes hold) and a sink that needs all of them, a cut is a set S of
// nodes without the sink, and its time is supply(S) / bandwidth out of S. The largest such time is
// found by Dinkelbach's iteration: ask whether everything arrives within the time of the best cut so
// far, which is one maximum flow from a super-source; if not, the minimum cut is a better one. It takes
// two or three flows where the first guess is good.
//
// Capacities are scaled to whole numbers: exactly where the greatest common divisors allow it, as in
// every machine one can buy, else to some 60 bits. A result is a set of nodes, so rounding never makes
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

// What one sink needs. Usually all supplies; `bytes` may be less than their sum, as where several
// nodes hold the same.
struct SinkDemand {
  NodeId sink = 0;
  std::int64_t bytes = 0;
  std::vector<Supply> supplies;
};

// Seconds, as a fraction.
struct Ratio {
  std::int64_t bytes = 0;
  std::int64_t bandwidth_Bps = 1;
};

class CutSearch {
 public:
  // Against the links where `reversed`: then the sink is what everything comes from, and a cut is
  // the set of nodes to which it goes.
  CutSearch(const Topology& topology, bool reversed);

  // A cut whose time is above `time`, if there is one; contains no sink.
  std::optional<NodeSet> above(const SinkDemand& demand, Ratio time);

  // After above() found none: the smallest set around the sink into which there is only as much
  // bandwidth as is needed; all nodes where there is plenty.
  NodeSet tight() const;

 private:
  std::size_t links_ = 0, nodes_ = 0;
  std::vector<std::int64_t> bandwidth_;  // in units of their greatest common divisor
  std::int64_t unit_Bps_ = 1;
  MaxFlow flow_;
  MaxFlow::Amount slack_ = 0;
};

// Nodes with equal neighbours over equal links: the first node of each such class, per node. Exchanging
// two of a class leaves the network as it is.
std::vector<NodeId> twins(const Topology& topology);

// Times over the cheapest way from any of `from`, with a cost per link; -1 where there is no way.
std::vector<std::int64_t> distances(const Topology& topology, std::span<const NodeId> from,
                                    std::span<const std::int64_t> cost, bool reversed);

}  // namespace tacos
