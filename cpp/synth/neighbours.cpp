#include "synth/neighbours.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "support/index.hpp"

namespace tacos {

namespace {

// The fastest paths from one NPU through switches only, by latency plus slowest transmission.
class Quickest {
 public:
  Quickest(const Topology& topology, std::int64_t bytes) : topology_(topology), bytes_(bytes) {
    const auto nodes = at(topology.nodes());
    time_.resize(nodes);
    hops_.resize(nodes);
    into_.resize(nodes);
  }

  // Appends the path to every NPU behind a switch, in order of the NPUs.
  template <typename Add>
  void from(NodeId source, Add&& add) {
    struct Entry {
      Time time, latency, slowest;
      std::int32_t hops;
      NodeId node;
      bool operator>(const Entry& other) const {
        return std::tie(time, hops, node) > std::tie(other.time, other.hops, other.node);
      }
    };
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    for (const NodeId node : seen_) {
      time_[at(node)] = kUnseen;
      into_[at(node)].clear();
    }
    if (seen_.empty()) std::fill(time_.begin(), time_.end(), kUnseen);
    seen_.clear();
    const auto expand = [&](NodeId node, Time latency, Time slowest, std::int32_t hops) {
      for (const LinkId link : topology_.out_links(node)) {
        const NodeId next = topology_.dst(link);
        if (next == source || (node == source && topology_.is_npu(next))) continue;
        const Time later = latency + topology_.latency(link);
        const Time slower = std::max(slowest, transmission_time(bytes_, topology_.bandwidth(link)));
        const Time time = later + slower;
        // The shortest of equally fast paths, so that links without latency do not form cycles.
        const std::pair arrival{time, hops}, known{time_[at(next)], hops_[at(next)]};
        if (arrival > known) continue;
        if (time_[at(next)] == kUnseen) seen_.push_back(next);
        if (arrival < known) {
          time_[at(next)] = time;
          hops_[at(next)] = hops;
          into_[at(next)].clear();
          if (!topology_.is_npu(next)) queue.push({time, later, slower, hops, next});
        }
        into_[at(next)].push_back(link);
      }
    };
    expand(source, 0, 0, 1);
    while (!queue.empty()) {
      const Entry entry = queue.top();
      queue.pop();
      if (entry.time == time_[at(entry.node)] && entry.hops == hops_[at(entry.node)]) {
        expand(entry.node, entry.latency, entry.slowest, entry.hops + 1);
      }
    }
    std::vector<NodeId> npus;
    for (const NodeId node : seen_) {
      if (topology_.is_npu(node)) npus.push_back(node);
    }
    std::sort(npus.begin(), npus.end());
    std::vector<LinkId> path;
    for (const NodeId npu : npus) {
      path.clear();
      for (NodeId node = npu; node != source; node = topology_.src(path.back())) {
        const auto& choices = into_[at(node)];
        path.push_back(choices[at(source + npu) % choices.size()]);
      }
      std::reverse(path.begin(), path.end());
      add(npu, time_[at(npu)], path);
    }
  }

 private:
  static constexpr Time kUnseen = std::numeric_limits<Time>::max();

  const Topology& topology_;
  std::int64_t bytes_;
  std::vector<Time> time_;
  std::vector<std::int32_t> hops_;
  std::vector<std::vector<LinkId>> into_;  // the links over which the quickest paths arrive
  std::vector<NodeId> seen_;
};

}  // namespace

Routes neighbour_routes(std::shared_ptr<const Topology> topology, std::int64_t typical_bytes,
                        const Progress& progress) {
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  Quickest quickest(*topology, typical_bytes);
  std::vector<Time> direct(at(topology->npus()), std::numeric_limits<Time>::max());
  for (NodeId npu = 0; npu < topology->npus(); ++npu) {
    if (progress) progress(0.0);
    for (const LinkId link : topology->out_links(npu)) {
      const NodeId next = topology->dst(link);
      if (!topology->is_npu(next)) continue;
      links.push_back(link);
      begin.push_back(static_cast<std::int64_t>(links.size()));
      const Time time =
          topology->latency(link) + transmission_time(typical_bytes, topology->bandwidth(link));
      direct[at(next)] = std::min(direct[at(next)], time);
    }
    quickest.from(npu, [&](NodeId to, Time time, const std::vector<LinkId>& path) {
      if (time / 2 > direct[at(to)]) return;  // a direct link is more than twice as fast
      links.insert(links.end(), path.begin(), path.end());
      begin.push_back(static_cast<std::int64_t>(links.size()));
    });
    for (const LinkId link : topology->out_links(npu)) {
      if (topology->is_npu(topology->dst(link))) {
        direct[at(topology->dst(link))] = std::numeric_limits<Time>::max();
      }
    }
  }
  std::vector<std::uint8_t> kinds(begin.size() - 1, static_cast<std::uint8_t>(RouteKind::path));
  return Routes(std::move(topology), std::move(kinds), std::move(begin), std::move(links));
}

}  // namespace tacos
