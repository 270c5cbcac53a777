// Finds the order of hosts that makes a pattern of messages fastest.
//
// A pattern has places 0 … n-1 and terms. A term is a set of messages between places that run at once, all of one
// size, and is repeated `weight` times. An order puts host order[p] at place p. A message from host i to host j takes
// latency(i, j) + bytes(i, j); where routes are given, bytes(i, j) counts how many messages of the term share each link.
//
//   a step   takes as long as its slowest message;
//   a ring   takes max(mean of all messages, slowest bytes): each chunk passes all hops one after the other, and each
//            hop carries one chunk at a time.
//
// The cost of an order is the sum of weight · time over all terms. Finding the cheapest order is a quadratic assignment
// problem; for a single ring whose mean decides, it is a travelling salesman problem.
//
//   exact_order    branch and bound over places 0, 1, 2, …: the bound counts messages whose ends are both placed, and the
//                  cheapest message for each of the others.
//   tour_search    iterated local search for the sum of n hops: or-opt and 2-opt over near neighbours, and random
//                  double bridges. Prefix sums in both directions make a reversal O(1), also if costs are directed.
//   place_search   late acceptance over swaps of two hosts. It compares maximum plus mean of each term, since the maximum
//                  alone is flat almost everywhere.
//
// All costs are integers (picoseconds), all randomness comes from the seed, and effort is counted, not timed: the same
// input gives the same order on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "support/progress.hpp"

namespace tacos {

struct OrderTerm {
  std::vector<std::int32_t> src, dst;  // places
  std::int32_t size_class = 0;         // row of `bytes` and `link_bytes`
  std::int64_t weight = 1;
  bool ring = false;    // false: a step
  bool latency = true;  // whether latencies count
};

struct OrderProblem {
  std::int32_t hosts = 0;
  std::vector<OrderTerm> terms;
  std::span<const std::int64_t> latency;             // [hosts * hosts]
  std::vector<std::span<const std::int64_t>> bytes;  // [classes][hosts * hosts], without sharing
  std::span<const std::int64_t> route_begin;         // [hosts * hosts + 1], or empty: no routes
  std::span<const std::int32_t> route_links;
  std::int32_t links = 0;
  std::vector<std::span<const std::int64_t>> link_bytes;  // [classes][links], for one message
};

// Throws std::invalid_argument if sizes or indices are inconsistent.
void check(const OrderProblem& problem);

std::int64_t order_cost(const OrderProblem& problem, std::span<const std::int32_t> order);

struct ExactOrder {
  std::vector<std::int32_t> order;
  std::int64_t cost = 0;
  bool proven = false;  // whether the search ended before it had used up `nodes`
};

// The cheapest order, starting from a known one. `fixed` keeps the first host of `start` at place 0, which is allowed
// if rotating the order does not change its cost.
ExactOrder exact_order(const OrderProblem& problem, std::span<const std::int32_t> start, bool fixed,
                       std::int64_t nodes, const Progress& progress);

// A short closed tour through all hosts; `work` limits the hops that are examined.
std::vector<std::int32_t> tour_search(std::span<const std::int64_t> hop, std::int32_t hosts,
                                      std::span<const std::int32_t> start, std::uint64_t seed,
                                      std::int64_t work, const Progress& progress);

// A cheaper order, by swaps. `pair` [classes][hosts * hosts] is the cost of a message in the search; `work` limits the messages
// that are examined.
std::vector<std::int32_t> place_search(const OrderProblem& problem,
                                       const std::vector<std::span<const std::int64_t>>& pair,
                                       std::span<const std::int32_t> start, std::uint64_t seed,
                                       std::int64_t work, const Progress& progress);

// A lower bound on the length of closed tours: the best one-tree (a spanning tree and a second edge at host 0) in `rounds` of
// subgradient ascent on the hosts' prices. A hop costs its cheaper direction.
double one_tree_bound(std::span<const std::int64_t> hop, std::int32_t hosts, std::int64_t upper,
                      std::int32_t rounds, const Progress& progress);

// A lower bound on the length of closed tours: a linear assignment, in which every host has one successor and one predecessor.
std::int64_t assignment_bound(std::span<const std::int64_t> hop, std::int32_t hosts,
                              const Progress& progress);

}  // namespace tacos
