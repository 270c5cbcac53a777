// Collectives of process groups whose members are scattered over a network: trees through any NPUs.
//
// Other engines form sums at members and let chunks pass other NPUs unchanged. If few NPUs of a network are members, the
// links of the members limit the time: an all-reduce that first sums every chunk at a member, and then
// spreads it from there, takes twice as long as its bytes need to leave and enter each member once. Here each
// chunk has a tree that connects the members through any NPUs (trees.hpp). An all-reduce goes up the tree and
// down again as soon as the sum is complete. An NPU outside of the group sums or copies where branches meet,
// so a member need not send and receive more than its own chunks.
//
// Several collectives at once share the links: all their trees are packed together.
#pragma once

#include <memory>
#include <string>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

// A schedule of all-gathers, reduce-scatters, all-reduces, broadcasts and reduces. Throws InfeasibleError, which names a
// member that cannot be reached, or if sums go both ways and some link has no opposite link.
Schedule steiner_schedule(const std::shared_ptr<const Topology>& topology,
                          const std::shared_ptr<const Collective>& collective,
                          const std::string& provenance, const Progress& progress);

}  // namespace tacos
