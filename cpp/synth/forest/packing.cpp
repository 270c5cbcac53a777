#include "synth/forest/packing.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "support/error.hpp"
#include "support/index.hpp"
#include "synth/forest/growth.hpp"
#include "synth/forest/rates.hpp"
#include "synth/forest/tree_list.hpp"
#include "synth/path_table.hpp"

namespace tacos {

namespace {

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
      invalid("a root's demand is " + std::to_string(demand.amount) + "; it must be positive");
    if (std::find(members.begin(), members.end(), demand.root) == members.end()) {
      invalid(topology.name(demand.root) + " is a root, but not a member");
    }
  }
}

}  // namespace

namespace {

// The members and, if that gives a higher rate, the switches that can multicast. They make the trees of one root
// shallower; trees of several roots hinder each other, since each needs all links at once.
struct RatedMembers {
  std::vector<NodeId> members;
  forest::Rates rates;
};

RatedMembers rated(const Topology& topology, std::span<const NodeId> members,
                   std::span<const Demand> demands, double slack, const Progress& progress) {
  RatedMembers plain{{members.begin(), members.end()}, {}};
  plain.rates = forest::largest_rates(topology, plain.members, demands, slack, progress);
  RatedMembers more{plain.members, {}};
  for (NodeId node = topology.npus(); node < topology.nodes(); ++node) {
    if (topology.can(node, kMulticast)) more.members.push_back(node);
  }
  if (more.members.size() == members.size()) return plain;
  try {
    more.rates = forest::largest_rates(topology, more.members, demands, slack, progress);
  } catch (const InfeasibleError&) {  // a switch that cannot be reached
    return plain;
  }
  const auto rate = [](const forest::Rates& rates) {
    return static_cast<double>(rates.demand_weight) * static_cast<double>(rates.unit_Bps) /
           static_cast<double>(rates.unit_parts);
  };
  const double gain = rate(more.rates) / rate(plain.rates);
  return gain > 1 || (gain == 1 && demands.size() == 1) ? more : plain;
}

// Lowers the rate if a link is overloaded.
Forest finished(forest::TreeList trees, const forest::Rates& rates, double rate) {
  double carried = 1;
  for (std::size_t link = 0; link < trees.load().size(); ++link) {
    if (trees.load()[link] <= rates.capacity[link]) continue;
    carried = std::min(carried, static_cast<double>(rates.capacity[link]) /
                                    static_cast<double>(trees.load()[link]));
  }
  auto result = std::move(trees).forest();
  result.demand_weight = rates.demand_weight;
  result.unit_Bps = rates.unit_Bps;
  result.unit_parts = rates.unit_parts;
  result.tolerance = rates.tolerance;
  result.rate = rate * carried;
  return result;
}

constexpr std::int64_t kParts = 32;  // of the rate that the cuts allow

// Trees that carry a number of parts of the largest rates, if they can be found.
std::optional<Forest> grow(const std::shared_ptr<const Topology>& topology,
                           std::span<const NodeId> members, std::span<const Demand> demands,
                           forest::Rates rates, std::int64_t parts, const Progress& progress) {
  // Keeps the rate of the trees equal to the rate of the cuts times `rate`.
  const auto common = std::gcd(parts, kParts);
  for (auto& capacity : rates.capacity) capacity *= kParts / common;
  rates.demand_weight *= parts / common;
  rates.unit_parts *= parts / common;
  forest::Growth growth(*topology, rates.capacity, members);
  std::int64_t total = 0;
  for (const auto& demand : demands) {
    growth.wants(demand.root, demand.amount * rates.demand_weight);
    total += demand.amount * rates.demand_weight;
  }
  forest::TreeList trees(topology);
  // Roots take turns, so that none takes all the short paths.
  for (auto left = total; left > 0;) {
    bool grew = false;
    for (const auto& demand : demands) {
      if (growth.wanted(demand.root) == 0) continue;
      const auto tree = growth.tree(demand.root, progress);
      growth.spend(progress);
      if (!tree) continue;
      trees.add(tree->root, tree->weight, tree->hops);
      left -= tree->weight;
      grew = true;
      if (progress) progress(1.0 - static_cast<double>(left) / static_cast<double>(total));
    }
    if (!grew) return std::nullopt;
  }
  return finished(std::move(trees), rates,
                  static_cast<double>(parts) / static_cast<double>(kParts));
}

// One tree for each root, over the fastest paths.
Forest fastest(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> members,
               std::span<const Demand> demands, const forest::Rates& rates) {
  forest::Growth growth(*topology, rates.capacity, members);
  forest::TreeList trees(topology);
  for (const auto& demand : demands) {
    growth.wants(demand.root, demand.amount * rates.demand_weight);
    const auto tree = growth.fastest_tree(demand.root);
    trees.add(tree.root, tree.weight, tree.hops);
  }
  return finished(std::move(trees), rates, 1.0);
}

}  // namespace

Forest pack(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> members,
            std::span<const Demand> demands, double slack, const Progress& progress) {
  if (slack < 0 || slack >= 1)
    invalid("slack is " + std::to_string(slack) + "; it must be in [0, 1)");
  check(*topology, members, demands);
  const auto [reached, rates] =
      rated(*topology, members, demands, slack, part_of(progress, 0.0, 0.1));
  if (auto found = grow(topology, reached, demands, rates, kParts, part_of(progress, 0.1, 1.0))) {
    return *found;
  }
  // Some node that is not a member is uneven, so the rates of the cuts cannot be reached: find the largest that can.
  std::optional<Forest> best;
  for (std::int64_t low = 0, high = kParts; high - low > 1;) {
    const auto middle = (low + high) / 2;
    auto found = grow(topology, reached, demands, rates, middle, progress);
    (found ? low : high) = middle;
    if (found) best = std::move(found);
  }
  return best ? *best : fastest(topology, reached, demands, rates);
}

Forest rerouted(const Forest& forest, const std::shared_ptr<const Topology>& topology,
                std::span<const std::int64_t> begin, std::span<const LinkId> links) {
  const auto count = forest.routes->topology().links();
  if (begin.size() != at(count) + 1 || begin.front() != 0 ||
      begin.back() != static_cast<std::int64_t>(links.size())) {
    invalid("begin must have a place for each of " + std::to_string(count) + " links");
  }
  PathTable table;
  std::vector<RouteId> number;
  for (RouteId r = 0; r < forest.routes->count(); ++r) {
    std::vector<LinkId> path;
    for (const LinkId link : forest.routes->links(r)) {
      const auto first = begin[at(link)], last = begin[at(link) + 1];
      if (first > last || last > begin.back()) invalid("begin must not decrease");
      path.insert(path.end(), links.begin() + first, links.begin() + last);
    }
    number.push_back(table.number(path));
  }
  Forest result = forest;
  for (auto& hop : result.hop) hop = number[at(hop)];
  result.routes = std::move(table).routes(topology);
  return result;
}

}  // namespace tacos
