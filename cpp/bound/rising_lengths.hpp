// Lengths of links for a bound on the traffic between pairs of NPUs.
//
// However the bytes of all pairs are routed, and for any lengths of the links,
//     time >= sum over pairs of bytes · distance / sum over links of length · bandwidth,
// and the best lengths give the least time of fractional routes (linear programming duality). All lengths equal suit a
// network whose links are equally loaded. Here they are found by multiplicative weights (N. Garg and J. Könemann, FOCS 1998): in
// each round, all bytes take shortest paths, and each link becomes longer in proportion to the time it takes for
// its bytes, less in later rounds. The lengths of the round with the best bound are kept. The bound is valid after any number of rounds.
//
// Cost: one search for shortest paths per sender and round.
#pragma once

#include <cstdint>
#include <vector>

#include "model/collective.hpp"
#include "model/topology.hpp"
#include "support/progress.hpp"

namespace tacos {

// The lengths, at most 2^40 each; integers throughout, so that they are the same on every machine.
std::vector<std::int64_t> rising_lengths(const Topology& topology, const Collective& collective,
                                         std::int64_t rounds, const Progress& progress);

}  // namespace tacos
