// Hops between the members of a collective, and when their links are free: for planners that reserve links ahead of time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/index.hpp"
#include "synth/neighbours.hpp"
#include "synth/reservations.hpp"

namespace tacos {

class TimedHops {
 public:
  // Hops for messages of about `typical_bytes`, each reserved at once.
  TimedHops(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> members,
            std::int64_t typical_bytes, const Progress& progress)
      : routes_(std::make_shared<Routes>(neighbour_routes(topology, typical_bytes, progress))),
        reserved_(topology->links()),
        in_(at(topology->nodes())),
        out_(at(topology->nodes())),
        straight_in_(at(topology->nodes())),
        straight_out_(at(topology->nodes())) {
    std::vector<std::uint8_t> takes_part(at(topology->nodes()));
    for (const NodeId npu : members) takes_part[at(npu)] = 1;
    for (RouteId hop = 0; hop < routes_->count(); ++hop) {
      const NodeId from = routes_->sources(hop)[0], to = routes_->destinations(hop)[0];
      sources_.push_back(from);
      targets_.push_back(to);
      if (routes_->legs(hop) != 1 || !takes_part[at(from)] || !takes_part[at(to)]) continue;
      out_[at(from)].push_back(hop);
      in_[at(to)].push_back(hop);
      if (routes_->links(hop).size() > 1) continue;
      straight_out_[at(from)].push_back(hop);
      straight_in_[at(to)].push_back(hop);
    }
  }

  const std::shared_ptr<const Routes>& routes() const { return routes_; }
  NodeId source(RouteId hop) const { return sources_[at(hop)]; }
  NodeId target(RouteId hop) const { return targets_[at(hop)]; }
  // The hops from or to a member; `straight`: those over one link.
  const std::vector<RouteId>& out(NodeId npu, bool straight) const {
    return (straight ? straight_out_ : out_)[at(npu)];
  }
  const std::vector<RouteId>& in(NodeId npu, bool straight) const {
    return (straight ? straight_in_ : in_)[at(npu)];
  }
  bool straight(RouteId hop) const { return routes_->links(hop).size() == 1; }

  // Makes `bytes` the size of the messages that the functions below are about.
  void set_size(std::int64_t bytes) {
    const auto [found, fresh] = sizes_.try_emplace(bytes);
    size_ = &found->second;
    if (!fresh) return;
    auto& [windows, begin, flight, shortest, longest] = found->second;
    begin.push_back(0);
    for (RouteId hop = 0; hop < routes_->count(); ++hop) {
      const bool whole = routes_->legs(hop) == 1;
      if (whole) routes_->windows(hop, 0, bytes, windows);
      if (whole && straight(hop)) longest = std::max(longest, windows.back().busy);
      begin.push_back(windows.size());
      flight.push_back(whole ? routes_->leg_time(hop, 0, bytes) : std::numeric_limits<Time>::max());
    }
    for (const auto& window : windows)
      shortest = std::min(shortest, std::max<Time>(window.busy, 1));
  }
  // From start to arrival.
  Time flight(RouteId hop) const { return size_->flight[at(hop)]; }
  // The shortest time on any link, at least 1, and the longest time on a link between two NPUs.
  Time shortest() const { return size_->shortest; }
  Time longest() const { return size_->longest; }

  void take(RouteId hop, Time start) { reserved_.mark(windows(hop), start, true); }
  void give_back(RouteId hop, Time start) { reserved_.mark(windows(hop), start, false); }

  // The first start from `moment` on at which all links of a hop are free when it reaches them; backwards, the last such
  // start up to `moment`.
  Time free_start(RouteId hop, Time moment, bool backwards) {
    ++looked_at;
    return reserved_.free_start(windows(hop), moment, backwards);
  }

  std::int64_t looked_at = 0;  // calls of free_start()

 private:
  struct Size {
    std::vector<Routes::Window> windows;
    std::vector<std::size_t> begin;  // of each hop
    std::vector<Time> flight;
    Time shortest = std::numeric_limits<Time>::max(), longest = 0;
  };

  std::span<const Routes::Window> windows(RouteId hop) const {
    const auto first = size_->begin[at(hop)];
    return std::span(size_->windows).subspan(first, size_->begin[at(hop) + 1] - first);
  }

  std::shared_ptr<const Routes> routes_;
  std::vector<NodeId> sources_, targets_;  // of each hop
  Reservations reserved_;
  std::vector<std::vector<RouteId>> in_, out_, straight_in_, straight_out_;
  std::map<std::int64_t, Size> sizes_;  // by bytes
  const Size* size_ = nullptr;          // the present one
};

}  // namespace tacos
