#include "model/topology.hpp"

#include <algorithm>
#include <limits>

namespace tacos {

namespace {

constexpr std::int64_t kLargestBandwidth = 1'000'000'000'000'000;  // a petabyte per second

}  // namespace

Topology::Topology(TopologySpec spec) : spec_(std::move(spec)) {
  const auto nodes = static_cast<std::int64_t>(spec_.npus) +
                     static_cast<std::int64_t>(spec_.switch_capabilities.size());
  if (spec_.npus < 1)
    invalid("a topology needs at least one NPU, not " + std::to_string(spec_.npus));
  if (nodes > std::numeric_limits<NodeId>::max()) invalid("a topology has at most 2^31 - 1 nodes");
  nodes_ = static_cast<std::int32_t>(nodes);
  check();
}

void Topology::check() const {
  const auto count = spec_.link_src.size();
  if (count > static_cast<std::size_t>(std::numeric_limits<LinkId>::max())) {
    invalid("a topology has at most 2^31 - 1 links");
  }
  if (spec_.link_dst.size() != count || spec_.link_latency_ps.size() != count ||
      spec_.link_bandwidth_Bps.size() != count) {
    invalid("the link columns differ in length");
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto link = [&] {  // built only for a message: there may be millions of links
      return "link " + std::to_string(i) + " (" + std::to_string(spec_.link_src[i]) + " -> " +
             std::to_string(spec_.link_dst[i]) + ")";
    };
    for (const NodeId node : {spec_.link_src[i], spec_.link_dst[i]}) {
      if (node < 0 || node >= nodes_) {
        invalid(link() + " names node " + std::to_string(node) + ", but the nodes are 0 to " +
                std::to_string(nodes_ - 1));
      }
    }
    if (spec_.link_src[i] == spec_.link_dst[i]) invalid(link() + " joins a node to itself");
    const Time latency = spec_.link_latency_ps[i];
    if (latency < 0 || latency > kLongestTime) {
      invalid(link() + " has latency " + std::to_string(latency) + " ps; it must be 0 to 40 hours");
    }
    const auto bandwidth = spec_.link_bandwidth_Bps[i];
    if (bandwidth <= 0 || bandwidth > kLargestBandwidth) {
      invalid(link() + " has bandwidth " + std::to_string(bandwidth) +
              " B/s; it must be positive and at most 10^15");
    }
  }
  for (const auto capability : spec_.switch_capabilities) {
    if (capability > (kMulticast | kReduce)) invalid("unknown switch capability bits");
  }
  if (spec_.reduce_bandwidth_Bps < 0) invalid("the reduce bandwidth must not be negative");
  if (!spec_.names.empty()) {
    if (spec_.names.size() != index(nodes_)) {
      invalid(std::to_string(spec_.names.size()) + " names for " + std::to_string(nodes_) +
              " nodes");
    }
    auto sorted = spec_.names;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) invalid("two nodes are named \"" + *twice + "\"");
  }
  std::int64_t product = 1;
  for (const auto& dimension : spec_.dims) {
    if (dimension.size < 1) invalid("a dimension has size " + std::to_string(dimension.size));
    product *= dimension.size;
    if (product > spec_.npus) break;
  }
  if (!spec_.dims.empty() && product != spec_.npus) {
    invalid("the dimensions do not multiply to " + std::to_string(spec_.npus) + " NPUs");
  }
}

void Topology::make_adjacency(Adjacency& result, const Column<NodeId>& ends) const {
  result.begin.assign(index(nodes_) + 1, 0);
  for (const NodeId node : ends) ++result.begin[index(node) + 1];
  for (std::size_t i = 1; i < result.begin.size(); ++i) result.begin[i] += result.begin[i - 1];
  result.links.resize(ends.size());
  auto next = result.begin;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    result.links[index(next[index(ends[i])]++)] = static_cast<LinkId>(i);
  }
}

std::vector<std::int32_t> Topology::hops(NodeId from, bool backwards) const {
  std::vector<std::int32_t> distance(index(nodes_), -1);
  std::vector<NodeId> queue{from};
  distance[index(from)] = 0;
  for (std::size_t head = 0; head < queue.size(); ++head) {
    const NodeId node = queue[head];
    for (const LinkId link : backwards ? in_links(node) : out_links(node)) {
      const NodeId next = backwards ? src(link) : dst(link);
      if (distance[index(next)] >= 0) continue;
      distance[index(next)] = distance[index(node)] + 1;
      queue.push_back(next);
    }
  }
  return distance;
}

std::optional<std::pair<NodeId, NodeId>> Topology::unreachable_pair() const {
  const auto forth = hops(0, false), back = hops(0, true);
  for (NodeId npu = 0; npu < npus(); ++npu) {
    if (forth[index(npu)] < 0) return std::pair{NodeId{0}, npu};
    if (back[index(npu)] < 0) return std::pair{npu, NodeId{0}};
  }
  return std::nullopt;
}

std::int32_t Topology::diameter(std::int32_t samples) const {
  const std::int32_t count = std::clamp(samples, 1, npus());
  std::int32_t longest = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const auto from = static_cast<NodeId>(std::int64_t{i} * npus() / count);
    const auto distance = hops(from, false);
    for (NodeId npu = 0; npu < npus(); ++npu) {
      if (distance[index(npu)] < 0) return -1;
      longest = std::max(longest, distance[index(npu)]);
    }
  }
  return longest;
}

Topology Topology::reversed() const {
  TopologySpec spec = spec_;
  std::swap(spec.link_src, spec.link_dst);
  std::vector<std::uint8_t> capabilities;
  capabilities.reserve(spec_.switch_capabilities.size());
  for (const auto bits : spec_.switch_capabilities) {
    capabilities.push_back(static_cast<std::uint8_t>(((bits & kMulticast) != 0 ? kReduce : 0) |
                                                     ((bits & kReduce) != 0 ? kMulticast : 0)));
  }
  spec.switch_capabilities = std::move(capabilities);
  return Topology(std::move(spec));
}

std::string Topology::name(NodeId node) const {
  if (!spec_.names.empty()) return spec_.names[index(node)];
  return is_npu(node) ? "npu " + std::to_string(node)
                      : "switch " + std::to_string(node - spec_.npus);
}

std::string Topology::describe(LinkId link) const {
  return "link " + std::to_string(link) + " (" + name(src(link)) + " -> " + name(dst(link)) + ")";
}

bool Topology::operator==(const Topology& other) const {
  const auto& a = spec_;
  const auto& b = other.spec_;
  return a.npus == b.npus && a.switch_capabilities == b.switch_capabilities &&
         a.link_src == b.link_src && a.link_dst == b.link_dst &&
         a.link_latency_ps == b.link_latency_ps && a.link_bandwidth_Bps == b.link_bandwidth_Bps &&
         a.link_model == b.link_model && a.forwarding == b.forwarding &&
         a.reduce_bandwidth_Bps == b.reduce_bandwidth_Bps && a.family == b.family &&
         a.dims == b.dims && a.symmetric == b.symmetric && a.names == b.names;
}

}  // namespace tacos
