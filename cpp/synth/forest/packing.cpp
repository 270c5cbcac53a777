#include "synth/forest/packing.hpp"

#include <algorithm>
#include <utility>

#include "error.hpp"
#include "synth/forest/growth.hpp"
#include "synth/forest/rates.hpp"
#include "synth/forest/tree_list.hpp"

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

namespace {

// The members and, where their trees then carry more, the switches that can multicast. One root's trees are
// lower with them; the trees of several roots hinder each other, since each wants all links at once.
struct Task {
  std::vector<NodeId> members;
  forest::Rates rates;
};

Task task(const Topology& topology, std::span<const NodeId> members,
          std::span<const Demand> demands, double slack, const Progress& progress) {
  Task plain{{members.begin(), members.end()}, {}};
  plain.rates = forest::largest_rates(topology, plain.members, demands, slack, progress);
  Task more{plain.members, {}};
  for (NodeId node = topology.npus(); node < topology.nodes(); ++node) {
    if (topology.can(node, kMulticast)) more.members.push_back(node);
  }
  if (more.members.size() == members.size()) return plain;
  try {
    more.rates = forest::largest_rates(topology, more.members, demands, slack, progress);
  } catch (const InfeasibleError&) {  // a switch that nothing leads to
    return plain;
  }
  const auto rate = [](const forest::Rates& rates) {
    return static_cast<double>(rates.demand_weight) * static_cast<double>(rates.unit_Bps) /
           static_cast<double>(rates.unit_parts);
  };
  const double gain = rate(more.rates) / rate(plain.rates);
  return gain > 1 || (gain == 1 && demands.size() == 1) ? more : plain;
}

}  // namespace

Forest pack(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> members,
            std::span<const Demand> demands, double slack, const Progress& progress) {
  if (slack < 0 || slack >= 1)
    invalid("slack is " + std::to_string(slack) + ", it must be in [0, 1)");
  check(*topology, members, demands);
  const auto [reached, rates] =
      task(*topology, members, demands, slack, part_of(progress, 0.0, 0.1));
  forest::Growth growth(*topology, rates.capacity, reached);
  std::int64_t total = 0, left = 0;
  for (const auto& demand : demands) {
    growth.wants(demand.root, demand.amount * rates.demand_weight);
    total += demand.amount * rates.demand_weight;
  }
  left = total;
  forest::TreeList trees(topology);
  const auto keep = [&](const forest::Tree& tree) {
    trees.add(tree.root, tree.weight, tree.hops);
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
  double rate = 1;
  for (std::size_t link = 0; link < trees.load().size(); ++link) {
    if (trees.load()[link] <= rates.capacity[link]) continue;
    rate = std::min(
        rate, static_cast<double>(rates.capacity[link]) / static_cast<double>(trees.load()[link]));
  }
  auto result = std::move(trees).forest();
  result.demand_weight = rates.demand_weight;
  result.unit_Bps = rates.unit_Bps;
  result.unit_parts = rates.unit_parts;
  result.tolerance = rates.tolerance;
  result.rate = rate;
  return result;
}

}  // namespace tacos
