// The latency of a message before and after one link of its way, at least: from a node that sends to the link, and from the
// link to a node that can use the message. Both are 0 at NPUs; switches that only forward are passed through.
#pragma once

#include <algorithm>
#include <vector>

#include "graph/cuts.hpp"
#include "model/topology.hpp"
#include "support/index.hpp"

namespace tacos {

class Approaches {
 public:
  explicit Approaches(const Topology& topology) : topology_(topology) {
    std::vector<NodeId> acting;
    for (NodeId node = 0; node < topology.nodes(); ++node) {
      if (topology.is_npu(node) || topology.can(node, kReduce) || topology.can(node, kMulticast))
        acting.push_back(node);
    }
    if (acting.size() == at(topology.nodes())) return;
    const auto latency = topology.spec().link_latency_ps.span();
    before_ = distances(topology, acting, latency, false);
    after_ = distances(topology, acting, latency, true);
  }

  Time around(LinkId link) const {
    if (before_.empty()) return 0;
    // A node without a way is never used, so any time is right for it.
    return std::max<Time>(before_[at(topology_.src(link))], 0) +
           std::max<Time>(after_[at(topology_.dst(link))], 0);
  }

 private:
  const Topology& topology_;
  std::vector<Time> before_, after_;  // of each node; empty if all nodes act
};

}  // namespace tacos
