#include "synth/forest/rates.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "graph/cuts.hpp"
#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos::forest {

namespace {

constexpr std::int64_t kParts = 10'000;  // of the slowest link's bandwidth, at least

// The topology with bandwidths that are multiples of one unit, which is at least a ten-thousandth of
// the smallest of them.
Topology rounded(const Topology& topology, double& tolerance) {
  const auto& bandwidths = topology.spec().link_bandwidth_Bps;
  std::int64_t unit = 0, slowest = 0;
  for (const auto bandwidth : bandwidths) {
    unit = std::gcd(unit, bandwidth);
    slowest = slowest == 0 ? bandwidth : std::min(slowest, bandwidth);
  }
  tolerance = 0;
  if (slowest <= unit * kParts) return topology;
  unit = slowest / kParts;
  TopologySpec spec = topology.spec();
  spec.faults = nullptr;
  std::vector<std::int64_t> changed;
  for (const auto bandwidth : bandwidths) {
    changed.push_back(bandwidth / unit * unit);
    tolerance = std::max(
        tolerance, 1.0 - static_cast<double>(changed.back()) / static_cast<double>(bandwidth));
  }
  spec.link_bandwidth_Bps = std::move(changed);
  return Topology(std::move(spec));
}

// Per link: whether one of its ends is a switch that is linked to another switch.
std::vector<std::uint8_t> between_switches(const Topology& topology) {
  std::vector<std::uint8_t> chained(at(topology.nodes()), 0), result;
  for (LinkId link = 0; link < topology.links(); ++link) {
    const NodeId src = topology.src(link), dst = topology.dst(link);
    if (!topology.is_npu(src) && !topology.is_npu(dst)) chained[at(src)] = chained[at(dst)] = 1;
  }
  for (LinkId link = 0; link < topology.links(); ++link) {
    result.push_back(chained[at(topology.src(link))] || chained[at(topology.dst(link))]);
  }
  return result;
}

Topology with_slack(const Topology& topology, double slack) {
  const auto slower = between_switches(topology);
  TopologySpec spec = topology.spec();
  spec.faults = nullptr;
  std::vector<std::int64_t> bandwidths;
  for (LinkId link = 0; link < topology.links(); ++link) {
    const auto whole = topology.bandwidth(link);
    const auto part = static_cast<std::int64_t>(static_cast<double>(whole) * (1 - slack));
    bandwidths.push_back(slower[at(link)] ? std::max<std::int64_t>(part, 1) : whole);
  }
  spec.link_bandwidth_Bps = std::move(bandwidths);
  return Topology(std::move(spec));
}

// The time of a cut: the demands in it over the bandwidth out of it.
Ratio time_of(const Topology& topology, std::span<const Demand> demands, const NodeSet& inside) {
  Ratio time{0, 0};
  for (const auto& demand : demands) {
    if (inside[at(demand.root)]) time.bytes += demand.amount;
  }
  for (LinkId link = 0; link < topology.links(); ++link) {
    if (inside[at(topology.src(link))] && !inside[at(topology.dst(link))]) {
      time.bandwidth_Bps += topology.bandwidth(link);
    }
  }
  return time;
}

[[noreturn]] void unreachable(const Topology& topology, std::span<const Demand> demands,
                              const NodeSet& inside, NodeId sink) {
  for (const auto& demand : demands) {
    if (inside[at(demand.root)]) {
      throw InfeasibleError(topology.name(demand.root) + " cannot reach " + topology.name(sink));
    }
  }
  throw InfeasibleError(topology.name(sink) + " cannot be reached");
}

}  // namespace

NarrowestCut narrowest_cut(const Topology& topology, std::span<const NodeId> members,
                           std::span<const Demand> demands, const Progress& progress) {
  CutSearch search(topology, false);
  // Start at or below the time of every cut: no cut has more bandwidth than the whole network.
  std::int64_t all = 0;
  for (LinkId link = 0; link < topology.links(); ++link) all += topology.bandwidth(link);
  NarrowestCut found{{}, {1, std::max<std::int64_t>(all, 1)}};
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (progress) progress(static_cast<double>(i) / static_cast<double>(members.size()));
    SinkDemand need{members[i], 0, {}};
    for (const auto& demand : demands) {
      if (demand.root == members[i]) continue;
      need.supplies.push_back({demand.root, demand.amount});
      need.bytes += demand.amount;
    }
    if (need.bytes == 0) continue;
    double looked_at = static_cast<double>(demands.size());
    while (auto cut = search.above(need, found.time)) {
      looked_at += static_cast<double>(demands.size()) + topology.links();
      found = {std::move(*cut), {}};
      found.time = time_of(topology, demands, found.inside);
      if (found.time.bandwidth_Bps == 0) unreachable(topology, demands, found.inside, members[i]);
    }
    progress.spend(looked_at * work::kCell +
                   static_cast<double>(search.take_visits()) * work::kArc);
  }
  return found;
}

Rates largest_rates(const Topology& topology, std::span<const NodeId> members,
                    std::span<const Demand> demands, double slack, const Progress& progress) {
  Rates rates;
  const Topology network =
      rounded(slack > 0 ? with_slack(topology, slack) : topology, rates.tolerance);
  const Ratio time = narrowest_cut(network, members, demands, progress).time;
  std::int64_t unit = 0;
  for (LinkId link = 0; link < network.links(); ++link) {
    unit = std::gcd(unit, network.bandwidth(link));
  }
  unit = std::max<std::int64_t>(unit, 1);
  // The rate of a demand of one is bandwidth/bytes of the narrowest cut.
  const std::int64_t width = time.bandwidth_Bps / unit;
  const std::int64_t common = std::gcd(width, time.bytes);
  rates.demand_weight = width / common;
  rates.unit_Bps = unit;
  rates.unit_parts = time.bytes / common;
  for (LinkId link = 0; link < network.links(); ++link) {
    rates.capacity.push_back(network.bandwidth(link) / unit * rates.unit_parts);
  }
  return rates;
}

}  // namespace tacos::forest
