#include "synth/neighbours.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "graph/best_first.hpp"
#include "model/port_routes.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos {

namespace {

// The fastest paths from one NPU through switches only, by latency plus slowest transmission.
class Quickest {
 public:
  Quickest(const Topology& topology, std::int64_t bytes)
      : topology_(topology),
        bytes_(bytes),
        search_(topology.nodes()),
        into_(at(topology.nodes())) {}

  // Appends the path to every NPU behind a switch, in order of the NPUs.
  template <typename Add>
  void from(NodeId source, Add&& add) {
    search_.clear();
    search_.start(source, {0, 0});
    while (const auto node = search_.next()) {
      const auto hops = search_.key(*node).second + 1;
      const Way way = search_.mark(*node);
      for (const LinkId link : topology_.out_links(*node)) {
        const NodeId next = topology_.dst(link);
        if (next == source || (*node == source && topology_.is_npu(next))) continue;
        const Time latency = way.latency + topology_.latency(link);
        const Time slowest =
            std::max(way.slowest, transmission_time(bytes_, topology_.bandwidth(link)));
        // The shortest of equally fast paths, so that links without latency do not form cycles.
        const std::pair arrival{latency + slowest, hops};
        if (search_.offer(next, arrival, {latency, slowest}, !topology_.is_npu(next))) {
          into_[at(next)].clear();
        } else if (arrival != search_.key(next)) {
          continue;
        }
        into_[at(next)].push_back(link);
      }
    }
    std::vector<NodeId> npus;
    for (const NodeId node : search_.reached()) {
      if (topology_.is_npu(node) && node != source) npus.push_back(node);
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
      add(npu, search_.key(npu).first, path);
    }
  }

  // The work since the last call: offers of links.
  std::size_t take_offers() { return search_.take_offers(); }

 private:
  struct Way {
    Time latency = 0, slowest = 0;
  };

  const Topology& topology_;
  std::int64_t bytes_;
  BestFirst<std::pair<Time, std::int32_t>, Way> search_;  // by time, then hops
  std::vector<std::vector<LinkId>> into_;  // the links over which the quickest paths arrive
};

}  // namespace

Routes neighbour_routes(std::shared_ptr<const Topology> topology, std::int64_t typical_bytes,
                        const Progress& progress) {
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  std::vector<std::uint8_t> kinds;
  Quickest quickest(*topology, typical_bytes);
  PortRoutes ports(*topology);
  const auto end_route = [&](RouteKind kind) {
    kinds.push_back(static_cast<std::uint8_t>(kind));
    begin.push_back(static_cast<std::int64_t>(links.size()));
  };
  std::vector<Time> direct(at(topology->npus()), std::numeric_limits<Time>::max());
  for (NodeId npu = 0; npu < topology->npus(); ++npu) {
    if (progress) progress(0.0);
    progress.spend(static_cast<double>(quickest.take_offers()) * work::kVisit);
    for (const LinkId link : topology->out_links(npu)) {
      const NodeId next = topology->dst(link);
      if (!topology->is_npu(next)) continue;
      links.push_back(link);
      end_route(RouteKind::path);
      const Time time =
          topology->latency(link) + transmission_time(typical_bytes, topology->bandwidth(link));
      direct[at(next)] = std::min(direct[at(next)], time);
    }
    quickest.from(npu, [&](NodeId to, Time time, const std::vector<LinkId>& path) {
      if (time / 2 > direct[at(to)]) return;  // a direct link is more than twice as fast
      const auto first = links.size();
      links.insert(links.end(), path.begin(), path.end());
      end_route(ports.replace(links, first));
    });
    for (const LinkId link : topology->out_links(npu)) {
      if (topology->is_npu(topology->dst(link))) {
        direct[at(topology->dst(link))] = std::numeric_limits<Time>::max();
      }
    }
  }
  return Routes(std::move(topology), std::move(kinds), std::move(begin), std::move(links));
}

}  // namespace tacos
