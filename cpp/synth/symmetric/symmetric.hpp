// The symmetric engine: solves a collective for one NPU and translates the schedule to all others.
//
// The network. Where moving all NPUs along a dimension changes nothing, the network is a Cayley
// graph of G = Z_n1 × … × Z_nk: its NPUs are the elements of G, and x has a link to x + g exactly if
// 0 has a link to g. Rings, tori with a speed per dimension, hypercubes, cliques, switches and
// their products are such networks. What leaves NPU 0 is therefore the whole network:
//   - a direct link to g is a machine that moves chunks by g;
//   - a link to a switch is one machine that moves chunks by any of the offsets its switch joins,
//     for all of them share the one port into the switch and the one out of it.
// A machine is taken for a period (the longest of its links' busy times) by each chunk it moves,
// and the chunk is there after the route's time. Moving a set of transfers by an element of G keeps
// their times, and takes each link to another of the same machine. So if the transfers of the
// chunks of NPU 0 never use a machine twice at one time, then neither do all their images, with
// every link of every NPU.
//
// All-gather. Every displacement v ≠ 0 is served once: by a machine that moves by some g, when
// v - g has been reached. That is N - 1 assignments (times c pieces) where the schedule has N·(N - 1)
// transfers. Displacements are logged in the order in which they are reached, and each machine
// serves the first entry u of the log for which u + g has not been promised yet: it never has to
// look back, so that all searches together take O(N · machines). Where machines that are free at
// one moment compete, the promises of that moment are exchanged along an augmenting path, which
// matters for the small ones: (N - 1) / machines steps leave no slot unused.
// Where machines differ, the NPUs that reach each other by faster machines alone are a region to a
// slower one. It first takes chunks into regions where they are not yet; then it helps inside
// regions, unless the faster machines will be through with all that waits there before it could
// deliver.
//
// Reduce-scatter. The group is abelian: with every displacement negated, the edge u -> u + g of the
// tree becomes -(u + g) -> -u, which is again a move by g. Read backwards in time, the all-gather
// tree is a reduction to NPU 0 on the same machines. All windows of a machine shift alike, so they
// stay apart.
//
// All-reduce. The reduce-scatter, then the all-gather on the same machines; each piece starts when
// its sum is complete.
//
// All-to-all. Every displacement is a job of hops along shortest ways in each dimension, in any
// order of dimensions (and either way round a ring where both are as short). A free machine serves
// the job with the most work left.
//
// The schedule is stored from the sender's view: all stored transfers leave NPU 0. They are one NPU's
// program, and the translations give that of every other NPU.
//
// Cost: O(N · machines) time and O(N) memory for all but the all-to-all, which takes them per hop.
#pragma once

#include <memory>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

// One generator per dimension longer than 1: the move of all NPUs by one along it. Throws
// std::invalid_argument if one of them changes the network.
Symmetry translations(const Topology& topology);

// An orbit. For an all-gather, reduce-scatter, all-reduce or all-to-all of all NPUs, in equal
// chunks; throws std::invalid_argument for anything else.
Schedule synthesize_symmetric(std::shared_ptr<const Topology> topology,
                              std::shared_ptr<const Collective> collective, std::string provenance,
                              const Progress& progress);

}  // namespace tacos
