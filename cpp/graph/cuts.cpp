#include "graph/cuts.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "graph/best_first.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

constexpr std::int64_t kLargestFlow = std::int64_t{1} << 60;

// The links, then an arc from the super-source to every node.
MaxFlow network(const Topology& topology, bool reversed) {
  const auto& src = reversed ? topology.spec().link_dst : topology.spec().link_src;
  const auto& dst = reversed ? topology.spec().link_src : topology.spec().link_dst;
  std::vector<NodeId> from(src.begin(), src.end()), to(dst.begin(), dst.end());
  for (NodeId node = 0; node < topology.nodes(); ++node) {
    from.push_back(topology.nodes());
    to.push_back(node);
  }
  return MaxFlow(topology.nodes() + 1, from, to);
}

}  // namespace

CutSearch::CutSearch(const Topology& topology, bool reversed)
    : links_(at(topology.links())),
      nodes_(at(topology.nodes())),
      bandwidth_(topology.spec().link_bandwidth_Bps.begin(),
                 topology.spec().link_bandwidth_Bps.end()),
      flow_(network(topology, reversed)) {
  std::int64_t unit = 0;
  for (const auto bandwidth : bandwidth_) unit = std::gcd(unit, bandwidth);
  unit_Bps_ = std::max<std::int64_t>(unit, 1);
  for (auto& bandwidth : bandwidth_) bandwidth /= unit_Bps_;
}

std::optional<NodeSet> CutSearch::above(const SinkDemand& demand, Ratio time) {
  // In `time` a link carries its bandwidth · time.bytes / time.bandwidth_Bps bytes. Multiplying everything by
  // time.bandwidth_Bps makes all amounts whole numbers.
  std::int64_t unit = std::gcd(time.bytes, demand.bytes);
  for (const auto& supply : demand.supplies) unit = std::gcd(unit, supply.bytes);
  unit = std::max<std::int64_t>(unit, 1);
  std::int64_t per_link = time.bytes / unit, per_unit = time.bandwidth_Bps / unit_Bps_;
  const bool divides = time.bandwidth_Bps % unit_Bps_ == 0;
  if (divides) {
    const auto common = std::max<std::int64_t>(std::gcd(per_link, per_unit), 1);
    per_link /= common;
    per_unit /= common;
  }
  const bool exact =
      divides && static_cast<__int128>(demand.bytes / unit) * per_unit <= kLargestFlow;
  const long double scale =
      exact ? 0 : static_cast<long double>(kLargestFlow) / static_cast<long double>(demand.bytes);
  const auto amount = [&](std::int64_t bytes) {
    return exact ? bytes / unit * per_unit
                 : static_cast<std::int64_t>(static_cast<long double>(bytes) * scale);
  };
  const auto total = amount(demand.bytes);
  const auto seconds =
      static_cast<long double>(time.bytes) / static_cast<long double>(time.bandwidth_Bps);
  slack_ = exact ? 0 : static_cast<std::int64_t>(links_ + nodes_) + (kLargestFlow >> 40);
  for (std::size_t i = 0; i < links_; ++i) {
    if (exact) {
      const auto capacity = static_cast<__int128>(bandwidth_[i]) * per_link;
      flow_.set_capacity(i, capacity < total ? static_cast<std::int64_t>(capacity) : total);
    } else {
      const auto bytes = static_cast<long double>(bandwidth_[i]) *
                         static_cast<long double>(unit_Bps_) * seconds * scale;
      flow_.set_capacity(
          i, bytes < static_cast<long double>(total) ? static_cast<std::int64_t>(bytes) : total);
    }
  }
  for (std::size_t node = 0; node < nodes_; ++node) flow_.set_capacity(links_ + node, 0);
  for (const auto& supply : demand.supplies) {
    flow_.set_capacity(links_ + at(supply.node), std::min(amount(supply.bytes), total));
  }
  if (flow_.run(static_cast<NodeId>(nodes_), demand.sink, total) >= total - slack_) {
    return std::nullopt;
  }
  auto inside = flow_.source_side();
  inside.pop_back();
  return inside;
}

NodeSet CutSearch::tight() const {
  auto inside = flow_.sink_side(slack_);
  inside.pop_back();
  return inside;
}

std::vector<NodeId> twins(const Topology& topology) {
  using Neighbours = std::vector<std::tuple<NodeId, std::int64_t, Time>>;
  std::map<Neighbours, NodeId> first;
  std::vector<NodeId> result(at(topology.nodes()));
  for (NodeId node = 0; node < topology.nodes(); ++node) {
    Neighbours out, in;
    for (const auto link : topology.out_links(node)) {
      out.emplace_back(topology.dst(link), topology.bandwidth(link), topology.latency(link));
    }
    for (const auto link : topology.in_links(node)) {
      in.emplace_back(topology.src(link), topology.bandwidth(link), topology.latency(link));
    }
    std::sort(out.begin(), out.end());
    std::sort(in.begin(), in.end());
    // An NPU is never the twin of a switch.
    out.emplace_back(topology.is_npu(node) ? -1 : -2, 0, 0);
    out.insert(out.end(), in.begin(), in.end());
    result[at(node)] = first.emplace(std::move(out), node).first->second;
  }
  return result;
}

std::vector<std::int64_t> distances(const Topology& topology, std::span<const NodeId> from,
                                    std::span<const std::int64_t> cost, bool reversed) {
  BestFirst<std::int64_t, NoMark> search(topology.nodes());
  for (const NodeId node : from) search.start(node, 0);
  while (const auto node = search.next()) {
    const auto far = search.key(*node);
    for (const auto link : reversed ? topology.in_links(*node) : topology.out_links(*node)) {
      search.offer(reversed ? topology.src(link) : topology.dst(link),
                   std::min(far + cost[at(link)], kLongestSchedule));
    }
  }
  std::vector<std::int64_t> distance(at(topology.nodes()), -1);
  for (const NodeId node : search.reached()) distance[at(node)] = search.key(node);
  return distance;
}

}  // namespace tacos
