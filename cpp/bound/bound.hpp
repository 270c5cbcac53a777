// A lower bound on the time of every schedule, and the reason for it.
//
// Three arguments, all true of every valid schedule:
//   paths  A chunk takes at least the time of the shortest path from where it is to where it is needed:
//          Σα and, wherever a whole chunk is stored, its transmission.
//   cuts   What must leave a set of nodes (demand.hpp) must pass the links out of it. As a fluid: link e
//          carries B_e·(T - α_e) by the time T. In chunks: link e carries as many whole chunks as fit
//          into T under the link model.
//   parts  An all-reduce among p disjoint sets of nodes that each hold a member takes at least 2(p - 1)
//          passages out of them for every byte. In order of arrival, let P be the first set that knows
//          all contributions: each of the p - 1 others has sent by then, and each is still to receive.
//          Nodes outside the sets must not be able to add or copy, so that every passage ends in a
//          set. So all NPUs and all switches that multicast or reduce must be in one. The same holds of
//          passages into the sets.
//
// The narrowest cut is searched by maximum flows (graph/cuts.hpp), one NPU at a time. Every set that is
// found is then evaluated for the whole collective with all its parts, so the search itself may relax the
// problem. A network of n nodes and m links costs about n·m·(path lengths) operations; NPUs with
// equal neighbours are searched once, symmetric networks from one NPU; beyond a budget only some NPUs
// are searched. In networks of many thousand nodes, only the cuts at ports and along dimensions are evaluated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bound/farthest.hpp"
#include "model/collective.hpp"
#include "model/topology.hpp"
#include "support/progress.hpp"

namespace tacos {

// A set of nodes (or several), what must leave it and over what.
struct Bottleneck {
  std::vector<NodeId> nodes;  // of one set
  bool leaving = true;        // or entering
  std::int32_t sets = 1;      // of that kind, with `nodes` the first, in an all-reduce among sets
  double bytes = 0;           // through the links of all the sets
  std::int64_t links = 0;
  double bandwidth_Bps = 0;
};

// A set of nodes around which latencies and bandwidths together make a bound (timed_cuts.hpp).
struct TimedSet {
  Time time = 0;
  std::vector<NodeId> nodes;
  bool leaving = true;  // or entering
};

struct BoundReport {
  Time time = 0;                // the largest bound
  Farthest farthest;            // pair of NPUs that a chunk travels between
  double bandwidth_s = 0;       // of the cuts, as a fluid
  Bottleneck bottleneck;        // of bandwidth_s; no nodes if there is none
  TimedSet timed;               // of latencies and bandwidths together
  bool time_in_chunks = false;  // whether whole chunks make `time`
  bool all_cuts = true;         // whether no cut is narrower for single NPUs' demands
  bool two_halves = false;      // an all-reduce bound that a reduce-scatter and an all-gather reach
  // All pairs along the dimensions of a symmetric network.
  bool lines = false;      // whether they were weighed
  double line_s = 0;       // what the fullest dimension needs
  std::int32_t line = -1;  // which one
  bool even_lines = true;  // whether each has links of one speed
};

// Throws InfeasibleError where something needed cannot be reached.
BoundReport bound(const Topology& topology, const Collective& collective, const Progress& progress);

// Σ of bytes times distance over all demands with one source and one destination (all-to-all,
// send-recv), the links being as long as `length` says. Divided by Σ length·bandwidth it bounds the
// time: every byte uses up at least its distance of the capacity.
double distance_sum(const Topology& topology, const Collective& collective,
                    std::span<const std::int64_t> length, const Progress& progress);

}  // namespace tacos
