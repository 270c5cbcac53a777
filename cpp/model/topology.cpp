#include "model/topology.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace tacos {

namespace {

constexpr std::int64_t kLargestBandwidth = 1'000'000'000'000'000;  // a petabyte per second

// The capabilities of a switch whose links are turned around.
std::uint8_t exchanged(std::uint8_t bits) {
  return static_cast<std::uint8_t>(((bits & kMulticast) != 0 ? kReduce : 0) |
                                   ((bits & kReduce) != 0 ? kMulticast : 0));
}

}  // namespace

Topology::Topology(TopologySpec spec) : spec_(std::move(spec)) {
  const auto nodes = static_cast<std::int64_t>(spec_.npus) +
                     static_cast<std::int64_t>(spec_.switch_capabilities.size());
  if (spec_.npus < 1)
    invalid("a topology needs at least one NPU, not " + std::to_string(spec_.npus));
  if (nodes > std::numeric_limits<NodeId>::max()) invalid("a topology has at most 2^31 - 1 nodes");
  nodes_ = static_cast<std::int32_t>(nodes);
  check();
  if (spec_.faults == nullptr) return;
  if (spec_.faults->link.empty() && spec_.faults->dropped.empty()) {
    spec_.faults = nullptr;
  } else {
    check_faults(*spec_.faults);
    static_cast<void>(healthy());  // whose constructor checks the rest
  }
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
  for (const auto bits : spec_.switch_capabilities) capabilities.push_back(exchanged(bits));
  spec.switch_capabilities = std::move(capabilities);
  if (spec_.faults != nullptr) {
    auto faults = *spec_.faults;
    std::swap(faults.src, faults.dst);
    for (auto& bits : faults.capabilities) bits = exchanged(bits);
    spec.faults = std::make_shared<Faults>(std::move(faults));
  }
  return Topology(std::move(spec));
}

Topology Topology::healthy() const {
  if (spec_.faults == nullptr) return *this;
  const Faults& faults = *spec_.faults;
  TopologySpec spec = spec_;
  spec.faults = nullptr;
  spec.npus = faults.npus;
  spec.dims = faults.dims;
  spec.symmetric = faults.symmetric;

  // The number in the healthy network of every node that is left.
  const auto all = index(nodes_) + faults.dropped.size();
  std::vector<NodeId> number;
  std::vector<std::string> names;
  std::vector<std::uint8_t> capabilities;
  std::size_t gone = 0;
  for (std::size_t node = 0; node < all; ++node) {
    const bool here = gone == faults.dropped.size() || index(faults.dropped[gone]) != node;
    const bool is_switch = node >= index(faults.npus);
    const auto present = number.size();
    if (here) number.push_back(static_cast<NodeId>(node));
    if (!spec_.names.empty()) names.push_back(here ? spec_.names[present] : faults.names[gone]);
    if (is_switch) {
      const auto lost = faults.dropped.size() - faults.capabilities.size();
      capabilities.push_back(here ? spec_.switch_capabilities[present - index(spec_.npus)]
                                  : faults.capabilities[gone - lost]);
    }
    if (!here) ++gone;
  }
  spec.names = std::move(names);
  spec.switch_capabilities = std::move(capabilities);

  std::vector<NodeId> src, dst;
  std::vector<Time> latency;
  std::vector<std::int64_t> bandwidth;
  std::size_t at = 0;
  LinkId present = 0;
  const auto add = [&](NodeId from, NodeId to, Time wait, std::int64_t speed) {
    src.push_back(from), dst.push_back(to), latency.push_back(wait), bandwidth.push_back(speed);
  };
  while (present < links() || at < faults.link.size()) {
    if (at < faults.link.size() && index(faults.link[at]) == src.size()) {
      add(faults.src[at], faults.dst[at], faults.latency_ps[at], faults.bandwidth_Bps[at]);
      if (faults.dead[at] == 0) ++present;
      ++at;
    } else {
      add(number[index(this->src(present))], number[index(this->dst(present))],
          this->latency(present), this->bandwidth(present));
      ++present;
    }
  }
  spec.link_src = std::move(src);
  spec.link_dst = std::move(dst);
  spec.link_latency_ps = std::move(latency);
  spec.link_bandwidth_Bps = std::move(bandwidth);
  return Topology(std::move(spec));
}

void Topology::check_faults(const Faults& faults) const {
  const auto rows = faults.link.size(), dropped = faults.dropped.size();
  if (faults.dead.size() != rows || faults.src.size() != rows || faults.dst.size() != rows ||
      faults.latency_ps.size() != rows || faults.bandwidth_Bps.size() != rows) {
    invalid("the columns of faults differ in length");
  }
  std::size_t dead = 0;
  for (const auto flag : faults.dead) dead += flag != 0;
  const auto all_links = index(links()) + dead, all_nodes = index(nodes_) + dropped;
  if (all_links > static_cast<std::size_t>(std::numeric_limits<LinkId>::max()) ||
      all_nodes > static_cast<std::size_t>(std::numeric_limits<NodeId>::max())) {
    invalid("the healthy network has at most 2^31 - 1 nodes and 2^31 - 1 links");
  }
  const auto ascending = [](const auto& ids, std::size_t count, const char* what) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || index(ids[i]) >= count || (i > 0 && ids[i] <= ids[i - 1])) {
        invalid(std::string("faults name ") + what + " " + std::to_string(ids[i]) +
                "; they must ascend and be 0 to " +
                std::to_string(static_cast<std::int64_t>(count) - 1));
      }
    }
  };
  ascending(faults.link, all_links, "link");
  ascending(faults.dropped, all_nodes, "node");
  std::size_t lost = 0;  // NPUs
  for (const NodeId node : faults.dropped) lost += node < faults.npus;
  if (faults.npus != spec_.npus + static_cast<std::int32_t>(lost)) {
    invalid("the healthy network has " + std::to_string(faults.npus) + " NPUs, but " +
            std::to_string(spec_.npus) + " are left and " + std::to_string(lost) + " dropped");
  }
  if (faults.capabilities.size() != dropped - lost) {
    invalid(std::to_string(faults.capabilities.size()) + " capabilities for " +
            std::to_string(dropped - lost) + " dropped switches");
  }
  if (faults.names.size() != (spec_.names.empty() ? 0 : dropped)) {
    invalid(std::to_string(faults.names.size()) + " names for " + std::to_string(dropped) +
            " dropped nodes");
  }
  // A slow link must be the same link in both networks, and a link of a dropped node must be dead.
  const auto number = [&](NodeId present) {
    NodeId node = present;
    for (const NodeId gone : faults.dropped) node += gone <= node;
    return node;
  };
  std::size_t before = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    if (faults.dead[i] != 0) {
      ++before;
      continue;
    }
    const auto present = static_cast<LinkId>(index(faults.link[i]) - before);
    if (number(src(present)) != faults.src[i] || number(dst(present)) != faults.dst[i]) {
      invalid("faults name link " + std::to_string(faults.link[i]) + " with other ends than " +
              describe(present));
    }
  }
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
         a.link_model == b.link_model && a.forwarding == b.forwarding && a.routing == b.routing &&
         a.reduce_bandwidth_Bps == b.reduce_bandwidth_Bps && a.family == b.family &&
         a.dims == b.dims && a.symmetric == b.symmetric && a.names == b.names &&
         (a.faults == nullptr) == (b.faults == nullptr) &&
         (a.faults == nullptr || *a.faults == *b.faults);
}

}  // namespace tacos
