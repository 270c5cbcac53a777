// Cuts in time: what must enter a set of nodes, with the latencies of the paths to it and within it.
//
// Let Q be a set of nodes, A members outside it and V members inside it, and let every v in V need
// something of every x in A: its own piece of a gathered buffer, its contribution to a sum, or a block
// for that pair. Take a schedule of time T. For x, v and a byte that v needs of x, what v holds at the
// end came from x along a chain of messages, which entered Q for the last time over some link e = (a, b)
// and reached b at some time t. One byte that arrives over e at t can count
//   - for several x only if it is a sum of what has reached `a` in time: at most for
//       c(t) = |{x in A: distance(x, a) <= t - latency(e)}|,
//   - for several v only if it is copied from b on, and reaches them by T: at most for
//       r(T - t) = |{v in V: distance(b, v) <= T - t}|.
// Distances are sums of latencies. A switch that cannot add passes on what one of the nodes before it has
// sent, so that its c is the largest of theirs, later by the latency; one that cannot copy is the same for
// r. Where nothing is added up (an all-gather), c is at most 1; where nothing is copied (a reduce-scatter),
// r is. Link e delivers at most B_e bytes in a second, so
//   Σ_e B_e ∫ c_e(t) r_e(T - t) dt  >=  the bytes, counted once for every x and v,
// and the least such T is a bound. With steps Δc at t_i and Δr at s_j the integral is
// Σ_ij Δc_i Δr_j (T - t_i - s_j)+, so that T is found on a line with a bend for every pair of steps.
//
// This holds wherever and however often values are added. It captures that few bytes can be sent to all at
// once, while many bytes should be reduced somewhere first, which takes another latency.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "graph/cuts.hpp"
#include "model/collective.hpp"
#include "model/topology.hpp"

namespace tacos {

class TimedCuts {
 public:
  explicit TimedCuts(const Topology& topology);

  // The time that `part` needs for what `from` sends to `to`, over the links out of `outside`, a set
  // that holds all of `from` and none of `to`; 0 where the argument does not apply.
  Time least(const CollectivePart& part, const NodeSet& outside, std::span<const NodeId> from,
             std::span<const NodeId> to);

  // Distances from a node to all (or, reversed, from all to it), in latencies; -1 if there is no path.
  const std::vector<Time>& distance(NodeId node, bool reversed);

  // Whether the budget is used up.
  bool tired() const { return work_ > kBudget; }

 private:
  static constexpr double kBudget = 4e6;  // of links and distances looked at: some milliseconds
  struct Step {
    Time time;
    std::int64_t count;  // from then on
  };
  using Steps = std::vector<Step>;

  // How many of `ends` can be reached from `node` (or, reversed, reach it) over time, if they count
  // separately; otherwise when the first one can.
  Steps steps(NodeId node, std::span<const NodeId> ends, bool reversed, bool many);
  // The nodes that add or copy from which a switch gets something (or to which it gives), through
  // other switches, and how far they are.
  const std::vector<std::pair<NodeId, Time>>& beyond(NodeId node, bool reversed);
  bool acts(NodeId node, bool reversed) const;

  const Topology& topology_;
  std::vector<std::vector<Time>> to_, from_;
  std::vector<std::vector<std::pair<NodeId, Time>>> before_, after_;
  double work_ = 0;
};

}  // namespace tacos
