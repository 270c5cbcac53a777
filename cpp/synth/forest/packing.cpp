#include "synth/forest/packing.hpp"

#include <algorithm>
#include <utility>

#include "error.hpp"
#include "synth/forest/growth.hpp"
#include "synth/forest/rates.hpp"
#include "synth/path_table.hpp"

namespace tacos {

namespace {

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

void check(const Topology& topology, std::span<const NodeId> members,
           std::span<const Demand> demands) {
  const auto npu = [&](NodeId node) {
    if (node >= 0 && topology.is_npu(node)) return;
    invalid("NPU " + std::to_string(node) + " is not one of the topology's " +
            std::to_string(topology.npus()));
  };
  for (const NodeId member : members) npu(member);
  for (const auto& demand : demands) {
    npu(demand.root);
    if (demand.amount < 1)
      invalid("a root's demand is " + std::to_string(demand.amount) + ", it must be positive");
    if (std::find(members.begin(), members.end(), demand.root) == members.end()) {
      invalid(topology.name(demand.root) + " is a root, but no member");
    }
  }
}

}  // namespace

Forest pack(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> members,
            std::span<const Demand> demands, double slack, const Progress& progress) {
  if (slack < 0 || slack >= 1)
    invalid("slack is " + std::to_string(slack) + ", it must be in [0, 1)");
  check(*topology, members, demands);
  const auto rates =
      forest::largest_rates(*topology, members, demands, slack, part_of(progress, 0.0, 0.1));
  Forest result;
  result.demand_weight = rates.demand_weight;
  result.unit_Bps = rates.unit_Bps;
  result.unit_parts = rates.unit_parts;
  result.tolerance = rates.tolerance;
  result.hop_begin.push_back(0);
  forest::Growth growth(*topology, rates.capacity, members);
  std::int64_t total = 0, left = 0;
  for (const auto& demand : demands) {
    growth.wants(demand.root, demand.amount * rates.demand_weight);
    total += demand.amount * rates.demand_weight;
  }
  left = total;
  PathTable table;
  std::vector<std::int64_t> load(at(topology->links()), 0);
  std::vector<std::int32_t> depth(at(topology->nodes()));
  const auto keep = [&](const forest::Tree& tree) {
    result.root.push_back(tree.root);
    result.weight.push_back(tree.weight);
    depth[at(tree.root)] = 0;
    for (const auto& hop : tree.hops) {
      auto& end = depth[at(topology->dst(hop.back()))];
      end = depth[at(topology->src(hop.front()))] + 1;
      result.depth.push_back(end);
      result.hop.push_back(table.number(hop));
      for (const LinkId link : hop) load[at(link)] += tree.weight;
    }
    result.hop_begin.push_back(static_cast<std::int64_t>(result.hop.size()));
    left -= tree.weight;
    if (progress)
      progress(0.1 + 0.9 * (1.0 - static_cast<double>(left) / static_cast<double>(total)));
  };
  // Roots take turns, so that none takes all the short ways.
  for (bool grew = true; grew && left > 0;) {
    grew = false;
    for (const auto& demand : demands) {
      if (growth.wanted(demand.root) == 0) continue;
      if (const auto tree = growth.tree(demand.root, progress)) {
        keep(*tree);
        grew = true;
      }
    }
  }
  for (const auto& demand : demands) {
    if (growth.wanted(demand.root) > 0) keep(growth.fastest_tree(demand.root));
  }
  for (std::size_t link = 0; link < load.size(); ++link) {
    if (load[link] > rates.capacity[link]) {
      result.rate = std::min(
          result.rate, static_cast<double>(rates.capacity[link]) / static_cast<double>(load[link]));
    }
  }
  result.routes = std::move(table).routes(topology);
  return result;
}

}  // namespace tacos
