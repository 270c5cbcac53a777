// The verifier of workloads: can all ranks finish their nodes?
//
// The rules, each a value of Violation::rule:
//   unmatched   every send has one receive with the same ranks, tag and size, and vice versa;
//   alone       every collective has at least two ranks;
//   missing     all members of a group join each of its collectives;
//   mismatch    all members join with the same kind of collective and the same size;
//   deadlock    nodes do not wait for each other in a cycle across ranks.
//
// The k-th send meets the k-th receive of its key, and the k-th collective of a group on one rank meets
// the k-th on the others. Nodes of a rank are counted in the order in which they become ready if nothing
// takes time, lower ids first. Sends are buffered: they do not wait for receives. A collective ends
// on every member after it has begun on all of them. Nothing else makes a node wait: a simulator that runs one
// communication at a time may still deadlock on the order of two groups, which only its run shows.
//
// Cost: O(nodes · log nodes).
#pragma once

#include "model/workload.hpp"
#include "verify/verify.hpp"

namespace tacos {

// Violations name a row as their `transfer`.
VerifyReport verify(const Workload& workload, std::int64_t limit);

}  // namespace tacos
