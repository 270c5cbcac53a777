// A lower bound on the time of every schedule, and the reason for it.
//
// Four arguments, all true of every valid schedule:
//   paths  A chunk takes at least the time of the shortest path from where it is to where it is needed:
//          Σα and, wherever a whole chunk is stored, its transmission.
//   cuts   Bytes that must leave a set of nodes (demand.hpp) must cross the links out of it. As a fluid: link e
//          carries at most B_e·(T - α_e) by the time T. In chunks: link e carries at most the number of
//          whole chunks that fit into T under the link model.
//   time   Bytes that cross a cut also need the latencies of the paths before and after it (timed_cuts.hpp).
//   parts  An all-reduce among p disjoint sets of nodes that each hold a member takes at least 2(p - 1)
//          passages out of them for every byte. In order of arrival, let P be the first set that knows
//          all contributions: by then each of the other p - 1 sets has sent, and each must still receive.
//          This requires that every passage ends in a set: nodes outside the sets must not be able to add
//          or copy. So every NPU and every switch that multicasts or reduces must be in a set. The same
//          holds for passages into the sets. The passages of simultaneous all-reduces add up.
//
// The narrowest cut is searched by maximum flows (graph/cuts.hpp), one NPU at a time. Every set that the
// search finds is then evaluated for the whole collective with all its parts, so the search itself may relax
// the problem. A network of n nodes and m links costs about n·m·(path lengths) operations; NPUs with
// equal neighbours are searched once, and so are NPUs of parts of the network that can be exchanged (graph/exchanges.hpp)
// if all take part alike, symmetric networks from one NPU; beyond a budget only some NPUs are searched. In symmetric
// networks of many thousand nodes, only the cuts at ports and along dimensions are evaluated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bound/farthest.hpp"
#include "model/collective.hpp"
#include "model/topology.hpp"
#include "support/progress.hpp"

namespace tacos {

// A set of nodes (or several sets), the bytes that must cross its border, and the links there.
struct Bottleneck {
  std::vector<NodeId> nodes;  // of one set
  bool leaving = true;        // or entering
  std::int32_t sets = 1;      // number of sets in an all-reduce among sets; `nodes` is the first
  // The set of each node, -1 if none; empty if there is one set, or if all sets are images of the first.
  std::vector<std::int32_t> set_of = {};
  double bytes = 0;  // through the links of all the sets
  std::int64_t links = 0;
  double bandwidth_Bps = 0;
};

// A set of nodes for which latencies and bandwidths together give a bound (timed_cuts.hpp).
struct TimedSet {
  Time time = 0;
  std::vector<NodeId> nodes;
  bool leaving = true;  // or entering
};

struct BoundReport {
  Time time = 0;                // the largest bound
  Farthest farthest;            // the pair of NPUs with the longest path that a chunk must travel
  double bandwidth_s = 0;       // bound of the cuts, as a fluid
  Bottleneck bottleneck;        // the cut of bandwidth_s; no nodes if there is none
  TimedSet timed;               // bound of latencies and bandwidths together
  bool time_in_chunks = false;  // whether `time` comes from counting whole chunks
  bool all_cuts = true;         // whether no cut is narrower for single NPUs' demands
  bool two_halves = false;      // whether reduce-scatter and all-gather attain the all-reduce bound
  // All-to-all traffic along the dimensions of a symmetric network.
  bool lines = false;      // whether it was evaluated
  double line_s = 0;       // time of the dimension with the highest load
  std::int32_t line = -1;  // that dimension
  bool even_lines = true;  // whether the links of each dimension have the same bandwidth
};

// Throws InfeasibleError if an NPU cannot get a chunk that it needs.
BoundReport bound(const Topology& topology, const Collective& collective, const Progress& progress);

// Σ of bytes times distance over all demands with one source and one destination (all-to-all,
// send-recv), where `length` gives the length of each link. Divided by Σ length·bandwidth it bounds the
// time: every byte uses up at least its distance of that capacity.
double distance_sum(const Topology& topology, const Collective& collective,
                    std::span<const std::int64_t> length, const Progress& progress);

}  // namespace tacos
