#include "bound/parts.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "graph/best_first.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

constexpr std::size_t kMostDimensions = 6;  // to try all subsets; otherwise only the inner ones

// The stride of NPU ids in each dimension, and its size.
struct Stride {
  NodeId step, size;
  NodeId coordinate(NodeId npu) const { return npu / step % size; }
};

std::vector<Stride> strides(const Topology& topology) {
  std::vector<Stride> result;
  NodeId step = 1;
  for (const auto& dimension : topology.spec().dims) {
    result.push_back({step, dimension.size});
    step *= dimension.size;
  }
  return result;
}

// Bandwidth between a node and each set around it.
struct Neighbourhood {
  std::map<std::int32_t, double> in, out;
  double all_out = 0;
};

Neighbourhood neighbourhood(const Topology& topology, const Parts& parts, NodeId node) {
  Neighbourhood result;
  for (const auto link : topology.in_links(node)) {
    const auto set = parts.of[at(topology.src(link))];
    if (set >= 0) result.in[set] += static_cast<double>(topology.bandwidth(link));
  }
  for (const auto link : topology.out_links(node)) {
    const auto set = parts.of[at(topology.dst(link))];
    const auto bandwidth = static_cast<double>(topology.bandwidth(link));
    result.all_out += bandwidth;
    if (set >= 0) result.out[set] += bandwidth;
  }
  return result;
}

// The set that gains most from including the node, and the decrease of its outgoing bandwidth.
std::pair<std::int32_t, double> best_set(const Neighbourhood& around) {
  std::pair<std::int32_t, double> best{-1, 0};
  for (const auto* side : {&around.in, &around.out}) {
    for (const auto& [set, unused] : *side) {
      const auto in = around.in.find(set), out = around.out.find(set);
      const double gain = (in == around.in.end() ? 0 : in->second) +
                          (out == around.out.end() ? 0 : out->second) - around.all_out;
      if (best.first < 0 || gain > best.second) best = {set, gain};
    }
  }
  return best;
}

constexpr std::size_t kGaps = 8;  // gaps between bandwidths at which boxes are told apart (chosen)

bool active(const Topology& topology, NodeId node) {
  return topology.is_npu(node) || topology.can(node, kMulticast | kReduce);
}

}  // namespace

Parts Parts::of_sets(const Topology& topology, std::vector<std::vector<NodeId>> sets) {
  Parts result;
  result.of.assign(at(topology.nodes()), -1);
  std::stable_sort(sets.begin(), sets.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  for (const auto& set : sets) {
    const auto taken = [&](NodeId npu) { return result.of[at(npu)] >= 0; };
    if (set.empty() || std::any_of(set.begin(), set.end(), taken)) continue;
    for (const NodeId npu : set) result.of[at(npu)] = result.count;
    ++result.count;
  }
  result.join_switches(topology);
  return result;
}

std::vector<Parts> joined_faster(const Topology& topology) {
  std::vector<std::int64_t> speeds(topology.spec().link_bandwidth_Bps.begin(),
                                   topology.spec().link_bandwidth_Bps.end());
  std::sort(speeds.begin(), speeds.end());
  speeds.erase(std::unique(speeds.begin(), speeds.end()), speeds.end());
  // Measured bandwidths of equal links differ a little, so the widest gaps count.
  std::vector<std::pair<double, std::int64_t>> gaps;  // the ratio of neighbours, and the lower one
  for (std::size_t i = 1; i < speeds.size(); ++i) {
    gaps.emplace_back(-static_cast<double>(speeds[i]) / static_cast<double>(speeds[i - 1]),
                      speeds[i - 1]);
  }
  std::sort(gaps.begin(), gaps.end());
  gaps.resize(std::min(gaps.size(), kGaps));
  std::sort(gaps.begin(), gaps.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<Parts> result;
  for (const auto& [ratio, speed] : gaps) {
    std::vector<std::vector<NodeId>> near(at(topology.nodes()));
    for (LinkId link = 0; link < topology.links(); ++link) {
      if (topology.bandwidth(link) <= speed) continue;
      near[at(topology.src(link))].push_back(topology.dst(link));
      near[at(topology.dst(link))].push_back(topology.src(link));
    }
    std::vector<std::uint8_t> seen(at(topology.nodes()), 0);
    std::vector<std::vector<NodeId>> sets, wholes;
    for (NodeId first = 0; first < topology.npus(); ++first) {
      if (seen[at(first)]) continue;
      seen[at(first)] = 1;
      std::vector<NodeId> reached{first}, npus;
      for (std::size_t i = 0; i < reached.size(); ++i) {
        if (topology.is_npu(reached[i])) npus.push_back(reached[i]);
        for (const NodeId node : near[at(reached[i])]) {
          if (!std::exchange(seen[at(node)], 1)) reached.push_back(node);
        }
      }
      sets.push_back(std::move(npus));
      wholes.push_back(std::move(reached));
    }
    const bool parted = sets.size() > 1 && sets.size() < at(topology.npus());
    if (!parted || (!result.empty() && at(result.back().count) == sets.size())) continue;
    // With the switches inside a box, others may join it that would not join its NPUs alone.
    auto whole = Parts::of_sets(topology, std::move(wholes));
    result.push_back(Parts::of_sets(topology, std::move(sets)));
    if (whole.of != result.back().of) result.push_back(std::move(whole));
  }
  return result;
}

void Parts::join_switches(const Topology& topology) {
  for (bool changed = true; changed;) {
    changed = false;
    for (NodeId node = topology.npus(); node < topology.nodes(); ++node) {
      if (of[at(node)] >= 0) continue;
      const auto [set, gain] = best_set(neighbourhood(topology, *this, node));
      if (set < 0 || gain <= 0) continue;
      of[at(node)] = set;
      changed = true;
    }
  }
}

std::vector<NodeId> Parts::nodes(std::int32_t set) const {
  std::vector<NodeId> result;
  for (std::size_t node = 0; node < of.size(); ++node) {
    if (of[node] == set) result.push_back(static_cast<NodeId>(node));
  }
  return result;
}

std::vector<double> Parts::bandwidth(const Topology& topology, bool leaving) const {
  std::vector<double> result(at(count));
  for (LinkId link = 0; link < topology.links(); ++link) {
    const auto from = of[at(topology.src(link))], to = of[at(topology.dst(link))];
    const auto set = leaving ? from : to;
    if (set >= 0 && from != to) result[at(set)] += static_cast<double>(topology.bandwidth(link));
  }
  return result;
}

Exits Parts::exits(const Topology& topology, const Approaches& approaches, bool leaving) const {
  Exits result;
  for (LinkId link = 0; link < topology.links(); ++link) {
    const auto from = of[at(topology.src(link))], to = of[at(topology.dst(link))];
    if ((leaving ? from : to) >= 0 && from != to) {
      result.add(topology, link, approaches.around(link));
    }
  }
  return result;
}

void Parts::gather_members(const Topology& topology, std::span<const NodeId> members) {
  std::vector<std::int32_t> renamed(at(count), -1);
  std::int32_t kept = 0;
  for (const NodeId npu : members) {
    const auto set = of[at(npu)];
    if (set >= 0 && renamed[at(set)] < 0) renamed[at(set)] = kept++;
  }
  for (auto& set : of) set = set < 0 ? -1 : renamed[at(set)];
  // A member outside of all sets becomes a set of its own.
  for (const NodeId npu : members) {
    if (of[at(npu)] < 0) of[at(npu)] = kept++;
  }
  count = kept;
  for (bool changed = true; changed;) {
    changed = false;
    for (NodeId node = 0; node < topology.nodes(); ++node) {
      if (of[at(node)] >= 0 || !active(topology, node)) continue;
      of[at(node)] = best_set(neighbourhood(topology, *this, node)).first;
      changed = changed || of[at(node)] >= 0;
    }
    join_switches(topology);
  }
  // The remaining nodes touch no set, so any set will do.
  for (NodeId node = 0; node < topology.nodes(); ++node) {
    if (of[at(node)] < 0 && active(topology, node)) of[at(node)] = 0;
  }
}

std::vector<std::vector<bool>> dimension_choices(const Topology& topology) {
  const auto dims = strides(topology);
  std::vector<std::size_t> wide;  // dimensions in which NPUs differ at all
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].size > 1) wide.push_back(d);
  }
  std::vector<std::vector<bool>> result;
  const auto choose = [&](auto in) {
    std::vector<bool> chosen(dims.size());
    for (std::size_t i = 0; i < wide.size(); ++i) chosen[wide[i]] = in(i);
    result.push_back(std::move(chosen));
  };
  if (wide.empty() && topology.npus() > 1) return {{}};  // no dimensions: single NPUs
  if (wide.size() > kMostDimensions) {
    for (std::size_t k = 0; k < wide.size(); ++k) choose([&](std::size_t i) { return i < k; });
    return result;
  }
  for (std::size_t mask = 0; mask + 1 < std::size_t{1} << wide.size(); ++mask) {
    choose([&](std::size_t i) { return (mask >> i & 1) != 0; });
  }
  return result;
}

Parts blocks(const Topology& topology, const std::vector<bool>& chosen) {
  const auto dims = strides(topology);
  Parts result;
  result.of.assign(at(topology.nodes()), -1);
  std::map<NodeId, std::int32_t> number;  // of the block whose first NPU this is
  for (NodeId npu = 0; npu < topology.npus(); ++npu) {
    NodeId first = npu;
    for (std::size_t d = 0; d < chosen.size(); ++d) {
      if (chosen[d]) first -= dims[d].coordinate(npu) * dims[d].step;
    }
    const auto [block, added] = number.emplace(first, result.count);
    result.count += added;
    result.of[at(npu)] = block->second;
  }
  result.join_switches(topology);
  return result;
}

std::vector<NodeId> block_of_first(const Topology& topology, const std::vector<bool>& chosen) {
  const auto dims = strides(topology);
  std::vector<NodeId> result{0};
  for (std::size_t d = 0; d < chosen.size(); ++d) {
    const auto count = result.size();
    for (NodeId c = 1; chosen[d] && c < dims[d].size; ++c) {
      for (std::size_t i = 0; i < count; ++i) result.push_back(result[i] + c * dims[d].step);
    }
  }
  // A switch all of whose links end in the block belongs to it.
  std::vector<std::uint8_t> inside(at(topology.nodes()));
  for (const NodeId npu : result) inside[at(npu)] = 1;
  const auto npus = result.size();
  for (std::size_t i = 0; i < npus; ++i) {
    for (const auto up : topology.out_links(result[i])) {
      const NodeId node = topology.dst(up);
      if (topology.is_npu(node) || inside[at(node)]) continue;
      const auto ends_inside = [&](LinkId link) { return inside[at(topology.dst(link))] != 0; };
      const auto down = topology.out_links(node);
      if (!std::all_of(down.begin(), down.end(), ends_inside)) continue;
      inside[at(node)] = 1;
      result.push_back(node);
    }
  }
  return result;
}

std::vector<std::uint8_t> half_along(const Topology& topology, std::size_t dimension) {
  const auto stride = strides(topology)[dimension];
  Parts halves;
  halves.count = 2;
  halves.of.assign(at(topology.nodes()), -1);
  for (NodeId npu = 0; npu < topology.npus(); ++npu) {
    halves.of[at(npu)] = stride.coordinate(npu) < (stride.size + 1) / 2 ? 0 : 1;
  }
  halves.join_switches(topology);
  std::vector<std::uint8_t> result(at(topology.nodes()));
  for (std::size_t node = 0; node < result.size(); ++node) result[node] = halves.of[node] == 0;
  return result;
}

std::vector<NodeId> translated(const Topology& topology, std::span<const NodeId> npus, NodeId by) {
  std::vector<NodeId> result;
  result.reserve(npus.size());
  const auto dims = strides(topology);
  for (const NodeId npu : npus) {
    NodeId moved = 0;
    for (const auto& dim : dims) {
      moved += (dim.coordinate(npu) + dim.coordinate(by)) % dim.size * dim.step;
    }
    result.push_back(moved);
  }
  return result;
}

namespace {

// The only dimension in which an NPU differs from NPU 0, or -1.
int along(const std::vector<Stride>& dims, NodeId npu) {
  int found = -1;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].coordinate(npu) == 0) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(d);
  }
  return found;
}

// The dimension that a link out of NPU 0 leads along, or -1 if there is no such dimension.
int along(const Topology& topology, const std::vector<Stride>& dims, LinkId link) {
  const NodeId next = topology.dst(link);
  if (topology.is_npu(next)) return along(dims, next);
  int common = -1;
  for (const auto down : topology.out_links(next)) {
    const NodeId npu = topology.dst(down);
    if (npu == 0) continue;
    const int dimension = topology.is_npu(npu) ? along(dims, npu) : -1;
    if (dimension < 0 || (common >= 0 && common != dimension)) return -1;
    common = dimension;
  }
  return common;
}

// Distances from NPU 0 to the NPUs of one dimension, in order of distance.
template <typename Cost, typename Take>
void walk_line(const Topology& topology, const std::vector<Stride>& dims, std::size_t d,
               BestFirst<Time, NoMark>& search, const Cost& cost, const Take& take) {
  search.clear();
  search.start(0, 0);
  while (const auto node = search.next()) {
    const Time far = search.key(*node);
    if (topology.is_npu(*node)) take(far, *node);
    for (const auto link : topology.out_links(*node)) {
      const NodeId next = topology.dst(link);
      if (topology.is_npu(next) && next != 0 && along(dims, next) != static_cast<int>(d)) continue;
      search.offer(next, far + cost(link));
    }
  }
}

}  // namespace

std::vector<Line> lines(const Topology& topology, std::int64_t bytes) {
  const auto dims = strides(topology);
  std::vector<Line> result(dims.size());
  for (const auto link : topology.out_links(0)) {
    const int d = along(topology, dims, link);
    if (d < 0) return {};
    auto& line = result[at(d)];
    const auto bandwidth = topology.bandwidth(link);
    if (line.bandwidth_Bps == 0) line.first_Bps = bandwidth;
    line.even = line.even && bandwidth == line.first_Bps;
    line.bandwidth_Bps += bandwidth;
  }
  const bool whole = topology.spec().forwarding == Forwarding::store_and_forward;
  BestFirst<Time, NoMark> search(topology.nodes());
  for (std::size_t d = 0; d < dims.size(); ++d) {
    auto& line = result[d];
    walk_line(
        topology, dims, d, search,
        [&](LinkId link) {
          const bool pays = whole || topology.is_npu(topology.dst(link));
          return topology.latency(link) +
                 (pays ? sending_time(bytes, topology.bandwidth(link)) : 0);
        },
        [&](Time far, NodeId npu) { line.farthest_ps = far, line.farthest = npu; });
    walk_line(
        topology, dims, d, search,
        [&](LinkId link) { return topology.is_npu(topology.src(link)) ? 1 : 0; },
        [&](Time hops, NodeId) { line.hops += hops; });
  }
  return result;
}

}  // namespace tacos
