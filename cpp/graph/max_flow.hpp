// Maximum flow and minimum cut by Dinic's method, on one graph with changing capacities.
//
// The arcs are given once; capacities are whole numbers that may be set again before every run. A
// flow is grown along shortest paths until it reaches `limit` or no path is left; then the nodes
// that the source still reaches are the source side of a minimum cut, the smallest there is, and the
// nodes that still reach the sink are the smallest sink side. Every phase is O(V·E), but with the few
// distinct path lengths of real networks a run is close to linear.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tacos {

class MaxFlow {
 public:
  using Node = std::int32_t;
  using Amount = std::int64_t;

  // Arc i leads from[i] -> to[i]; capacities are 0 until set.
  MaxFlow(Node nodes, std::span<const Node> from, std::span<const Node> to);

  void set_capacity(std::size_t arc, Amount capacity) { capacity_[arc] = capacity; }

  // The largest flow from source to sink, but at most `limit`. Capacities and limit are at most 2^61.
  Amount run(Node source, Node sink, Amount limit);

  // The number of edges looked at since the last call: the work of the runs.
  std::size_t take_visits() { return std::exchange(visits_, 0); }

  // After a run: 1 for the nodes with a path from the source, or to the sink, over arcs that have
  // more than `slack` capacity left.
  std::vector<std::uint8_t> source_side(Amount slack = 0) const;
  std::vector<std::uint8_t> sink_side(Amount slack = 0) const;

 private:
  struct Edge {
    Node to;
    std::int32_t twin;  // position of the same arc seen from its other end
  };
  bool find_levels();
  Amount augment(Amount limit);
  std::vector<std::uint8_t> side(Node root, bool forward, Amount slack) const;

  std::vector<std::int64_t> begin_;
  std::vector<Edge> edges_;
  std::vector<std::int32_t> forward_;  // position of every arc among the edges
  std::vector<Amount> capacity_;       // of every arc
  std::vector<Amount> left_;           // residual capacity of every edge
  std::vector<std::int32_t> level_;    // hops to the sink; -1: not reached
  std::vector<std::int64_t> next_;
  std::vector<Node> queue_;
  std::vector<std::int32_t> path_;
  Node source_ = 0, sink_ = 0;
  std::size_t visits_ = 0;
};

}  // namespace tacos
