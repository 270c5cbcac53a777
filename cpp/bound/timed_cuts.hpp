// Cuts in time: bounds on what must enter a set of nodes, with the latencies of the paths to it and within it.
//
// Let Q be a set of nodes, A members outside it and V members inside it, and let every v in V need
// something from every x in A: its own piece of a gathered buffer, its contribution to a sum, or a block
// for that pair. Take a schedule of time T. Each byte that v needs from x reached v along a chain of
// messages, which entered Q for the last time over some link e = (a, b) and reached b at some time t.
// One byte that arrives over e at t can count
//   - for several x only if it is a sum of values that have reached `a` in time: at most for
//       c(t) = |{x in A: distance(x, a) <= t - latency(e)}|,
//   - for several v only if it is copied from b on, and reaches them by T: at most for
//       r(T - t) = |{v in V: distance(b, v) <= T - t}|.
// Distances are sums of latencies. A switch that cannot add forwards the message of a single node before it,
// so its c is the largest c of these nodes, delayed by the latency; the same holds for r and a switch that
// cannot copy. If nothing is added up (an all-gather), c is at most 1; if nothing is copied (a
// reduce-scatter), r is at most 1. Link e delivers at most B_e bytes per second, so
//   Σ_e B_e ∫ c_e(t) r_e(T - t) dt  >=  the bytes, counted once for every x and v,
// and the least such T is a bound. With steps Δc at t_i and Δr at s_j the integral is
// Σ_ij Δc_i Δr_j (T - t_i - s_j)+, which is piecewise linear in T with a bend for every pair of steps.
//
// The bound holds wherever and however often values are added. It captures a trade-off: few bytes can be sent
// to all members at once, while many bytes should be reduced somewhere first, which costs another latency.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "graph/best_first.hpp"
#include "graph/cuts.hpp"
#include "graph/exchanges.hpp"
#include "model/collective.hpp"
#include "model/topology.hpp"

namespace tacos {

class TimedCuts {
 public:
  // Nodes that `exchanges` take to each other are looked at once; nullptr: every node is looked at.
  TimedCuts(const Topology& topology, const Exchanges* exchanges);

  // A bound on the time that `part` needs for what `from` sends to `to` over the links out of `outside`,
  // which contains all of `from` and none of `to`; 0 if the argument does not apply.
  Time least(const CollectivePart& part, const NodeSet& outside, std::span<const NodeId> from,
             std::span<const NodeId> to);

  // Distances from a node to all (or, reversed, from all to it), in latencies; -1 if there is no path.
  const std::vector<Time>& distance(NodeId node, bool reversed);

  // The nodes that can copy and that `node` reaches through switches that cannot (reversed: the nodes that
  // can add and that reach it through switches that cannot), with their distances; `node` itself if it can.
  const std::vector<std::pair<NodeId, Time>>& beyond(NodeId node, bool reversed);
  // Whether a node can copy (reversed: add).
  bool acts(NodeId node, bool reversed) const;

  // Whether the budget is used up.
  bool tired() const { return work_ > kBudget; }

 private:
  static constexpr double kBudget = 4e6;  // links and distances visited: some milliseconds
  struct Step {
    Time time;
    std::int64_t count;  // from then on
  };
  using Steps = std::vector<Step>;

  // The number of `ends` that can be reached from `node` (or, reversed, reach it) as a function of time; if
  // not `many`, only the first one counts. Nodes with the same entry in `same`, if it has any, are equally far from the ends.
  Steps steps(NodeId node, std::span<const NodeId> ends, bool reversed, bool many,
              std::span<const NodeId> same);

  const Topology& topology_;
  const Exchanges* exchanges_;
  std::vector<std::vector<Time>> to_, from_;
  std::vector<std::vector<std::pair<NodeId, Time>>> before_, after_;
  BestFirst<Time, NoMark> search_;
  double work_ = 0;
};

}  // namespace tacos
