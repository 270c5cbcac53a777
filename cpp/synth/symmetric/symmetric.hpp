// The symmetric engine: solves a collective for one NPU and translates the schedule to all others.
//
// The network. If moving all NPUs along a dimension changes nothing, the network is a Cayley
// graph of G = Z_n1 × … × Z_nk: its NPUs are the elements of G, and x has a link to x + g exactly if
// 0 has a link to g. Rings, tori with a speed per dimension, hypercubes, cliques, switches and
// their products are such networks. So the links out of NPU 0 describe the whole network:
//   - a direct link to g is an outlet that moves chunks by g;
//   - a link to a switch is one outlet that moves chunks by any of the offsets that the switch
//     reaches, since all of them share one port into the switch and one out of it.
// Each chunk keeps its outlet busy for a period (the longest busy time of the outlet's links) and
// arrives after the route's time. Moving a set of transfers by an element of G keeps their times,
// and maps each link to a link of the same outlet. So if the transfers of NPU 0's chunks never use
// an outlet twice at the same time, their images under G never use a link twice at the same time.
//
// All-gather. Every displacement v ≠ 0 is served once: by an outlet that moves by some g, when
// v - g has been reached. These are N - 1 assignments (times c pieces), while the schedule has
// N·(N - 1) transfers. Displacements are logged in the order in which they are reached, and each
// outlet serves the first entry u of the log for which u + g has not been promised yet. It never has
// to look back, so all searches together take O(N · outlets). If outlets that are free at
// one moment compete, the promises of that moment are exchanged along an augmenting path. This
// matters in small networks, where it fills every slot of (N - 1) / outlets steps.
// If outlets differ in speed, the NPUs that reach each other over faster outlets alone form a
// region for a slower one. The slower outlet first brings chunks into regions that do not have them
// yet; then it helps inside regions, unless the faster outlets will have finished all that waits
// there before it could deliver.
//
// That rule keeps all outlets busy, but not for the items on which others wait longest. In small networks, a second
// all-gather is made along trees of shortest paths (short_trees.hpp), and the faster one counts. Each item has one parent, chosen
// such that the items at each distance are spread evenly over the outlets, and an outlet serves the item whose branch takes
// longest first. It wins if latency matters: then the last chunks to arrive are those with the most hops.
//
// Reduce-scatter. The group is abelian: with every displacement negated, the edge u -> u + g of the
// tree becomes -(u + g) -> -u, which is again a move by g. Read backwards in time, the all-gather
// tree is a reduction to NPU 0 on the same outlets. All windows of an outlet shift alike, so they
// stay disjoint.
//
// All-reduce. The reduce-scatter, then the all-gather on the same outlets; each piece starts when
// its sum is complete.
//
// All-to-all. Every displacement is a parcel: hops along a shortest path in each dimension, with the
// dimensions in any order (and either way around a ring if both are equally short). A free outlet
// serves the parcel with the most work left.
//
// The schedule is stored from the sender's view: all stored transfers leave NPU 0. They are one NPU's
// program, and the translations give the programs of all others.
//
// Cost: O(N · outlets) time and O(N) memory; for an all-to-all, both are proportional to its hops.
#pragma once

#include <memory>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

// One generator per dimension longer than 1: the move of all NPUs by one along it. Throws
// std::invalid_argument if one of them changes the network.
Symmetry translations(const Topology& topology);

// Returns an orbit. For an all-gather, reduce-scatter, all-reduce or all-to-all of all NPUs, with a byte for each chunk;
// throws std::invalid_argument for anything else. Chunks that are a byte smaller than others take the time of these.
Schedule synthesize_symmetric(std::shared_ptr<const Topology> topology,
                              std::shared_ptr<const Collective> collective, std::string provenance,
                              const Progress& progress);

}  // namespace tacos
