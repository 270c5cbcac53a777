// The largest rates that all cuts allow, and whole numbers to compute with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "graph/cuts.hpp"
#include "model/topology.hpp"
#include "support/progress.hpp"
#include "synth/forest/packing.hpp"

namespace tacos::forest {

// Bandwidths and rates in a common unit of unit_Bps / unit_parts, in which all of them are whole numbers.
struct Rates {
  std::vector<std::int64_t> capacity;  // of each link
  std::int64_t demand_weight = 0;      // the rate of a demand of one
  std::int64_t unit_Bps = 1, unit_parts = 1;
  double tolerance = 0;
};

// The cut that limits the rates most: the time that the demands in it need to leave it.
struct NarrowestCut {
  NodeSet inside;
  Ratio time;
};

// Throws InfeasibleError naming a member that a root cannot reach. Empty if no demand has to leave its root.
NarrowestCut narrowest_cut(const Topology& topology, std::span<const NodeId> members,
                           std::span<const Demand> demands, const Progress& progress);

// Bandwidths are rounded down by up to a ten-thousandth if their ratios are not those of small numbers.
// A share `slack` of what passes chains of switches is left unused.
// Throws InfeasibleError naming a member that a root cannot reach.
Rates largest_rates(const Topology& topology, std::span<const NodeId> members,
                    std::span<const Demand> demands, double slack, const Progress& progress);

}  // namespace tacos::forest
