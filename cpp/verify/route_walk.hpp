// How a chunk crosses a route, computed independently by the verifier: links are walked from the topology,
// and times are computed from latencies and bandwidths. Shares no arithmetic with Routes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "model/routes.hpp"
#include "model/topology.hpp"
#include "support/index.hpp"

namespace tacos::verification {

// A route, walked link by link from the topology.
struct Walk {
  struct Crossing {
    LinkId link;
    std::int32_t leg;
    std::int32_t before;  // the crossing that feeds it within the leg, -1: none
  };
  RouteKind kind;
  std::vector<Crossing> crossings;  // each stands after those that feed it
  std::vector<NodeId> sources, destinations;
  std::vector<std::int32_t> last_crossing;  // to each destination
  std::int32_t legs = 1;
  // Of a spread route: the paths over each crossing, and all of them.
  std::vector<std::int64_t> paths;
  std::int64_t all_paths = 1;

  // The bytes of a chunk that pass a crossing.
  std::int64_t bytes(std::size_t crossing, std::int64_t size) const {
    if (paths.empty()) return size;
    const auto over = static_cast<__int128>(size) * paths[crossing];
    return static_cast<std::int64_t>(over / all_paths + (over % all_paths > 0 ? 1 : 0));
  }
};

// Counts the paths of a spread route, from its source forwards and from its destination backwards.
inline void count_paths(const Topology& topology, const std::vector<LinkId>& links, Walk& walk) {
  std::map<NodeId, std::int64_t> to, from;
  to[topology.src(links.front())] = 1;
  for (const LinkId link : links) to[topology.dst(link)] += to[topology.src(link)];
  from[topology.dst(links.back())] = 1;
  for (auto link = links.rbegin(); link != links.rend(); ++link) {
    from[topology.src(*link)] += from[topology.dst(*link)];
  }
  for (const LinkId link : links) {
    walk.paths.push_back(to[topology.src(link)] * from[topology.dst(link)]);
  }
  walk.all_paths = to[topology.dst(links.back())];
}

inline Walk walk(const Topology& topology, const Routes& routes, RouteId r) {
  Walk result{routes.kind(r), {}, {}, {}, {}, 1, {}, 1};
  const auto links = routes.links(r);
  const bool whole_chunks = topology.spec().forwarding == Forwarding::store_and_forward;
  std::set<NodeId> left, entered;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const NodeId from = topology.src(links[i]);
    std::int32_t before = -1;
    for (std::size_t j = i; j-- > 0 && before < 0;) {
      if (topology.dst(links[j]) == from) before = static_cast<std::int32_t>(j);
    }
    if (result.kind == RouteKind::path && i > 0 && (topology.is_npu(from) || whole_chunks)) {
      ++result.legs;
      before = -1;
    }
    result.crossings.push_back({links[i], result.legs - 1, before});
    if (result.kind == RouteKind::path) continue;
    left.insert(from);
    entered.insert(topology.dst(links[i]));
  }
  // A path may pass a node twice, so its ends are read off directly.
  if (result.kind == RouteKind::path) {
    result.sources = {topology.src(links.front())};
    result.destinations = {topology.dst(links.back())};
    result.last_crossing = {static_cast<std::int32_t>(links.size()) - 1};
    return result;
  }
  if (result.kind == RouteKind::spread) {
    result.sources = {topology.src(links.front())};
    result.destinations = {topology.dst(links.back())};
    result.last_crossing = {static_cast<std::int32_t>(links.size()) - 1};
    count_paths(topology, {links.begin(), links.end()}, result);
    return result;
  }
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (!entered.contains(topology.src(links[i])) &&
        std::find(result.sources.begin(), result.sources.end(), topology.src(links[i])) ==
            result.sources.end()) {
      result.sources.push_back(topology.src(links[i]));
    }
    if (!left.contains(topology.dst(links[i])) &&
        std::find(result.destinations.begin(), result.destinations.end(), topology.dst(links[i])) ==
            result.destinations.end()) {
      result.destinations.push_back(topology.dst(links[i]));
      result.last_crossing.push_back(static_cast<std::int32_t>(i));
    }
  }
  return result;
}

// When a chunk of given size passes a route: per step the moment its head enters the link and the
// time the link is taken, per destination the arrival; all from the start of the step's leg.
struct RouteTimes {
  std::int64_t bytes = -1;
  std::vector<Time> enter, busy;
  std::vector<Time> arrive;   // per destination, from the start of the last leg
  std::vector<Time> leg_end;  // per leg, from the start of the leg

  // Only `enter` and `busy` of one step; a path may be long, and its steps are asked for one by
  // one.
  void compute_step(const Topology& topology, const Walk& route, std::size_t step,
                    std::int64_t size) {
    if (route.kind != RouteKind::path) return compute(topology, route, size);
    if (bytes == size) return;
    bytes = size;
    enter.resize(route.crossings.size());
    busy.resize(route.crossings.size());
    enter[step] = 0;
    for (auto i = route.crossings[step].before; i >= 0; i = route.crossings[at(i)].before) {
      enter[step] += topology.latency(route.crossings[at(i)].link);
    }
    const LinkId link = route.crossings[step].link;
    const bool blocking = topology.spec().link_model == LinkModel::blocking;
    busy[step] =
        transmission_time(size, topology.bandwidth(link)) + (blocking ? topology.latency(link) : 0);
  }

  void compute(const Topology& topology, const Walk& route, std::int64_t size) {
    if (bytes == size) return;
    bytes = size;
    const bool whole_chunks = topology.spec().forwarding == Forwarding::store_and_forward;
    const bool blocking = topology.spec().link_model == LinkModel::blocking;
    const auto count = route.crossings.size();
    enter.assign(count, 0);
    busy.assign(count, 0);
    // The tail passes a link no earlier than the slowest transmission so far allows.
    std::vector<Time> head(count), slowest(count);
    leg_end.assign(at(route.legs), 0);
    for (std::size_t i = 0; i < count; ++i) {
      const LinkId link = route.crossings[i].link;
      const Time send = transmission_time(route.bytes(i, size), topology.bandwidth(link));
      Time slow = send;
      const auto follow = [&](std::size_t before) {
        enter[i] = std::max(enter[i], head[before] + (whole_chunks ? slowest[before] : 0));
        if (!whole_chunks) slow = std::max(slow, slowest[before]);
      };
      if (route.kind == RouteKind::reduce || route.kind == RouteKind::spread) {
        for (std::size_t j = 0; j < i; ++j) {
          if (topology.dst(route.crossings[j].link) == topology.src(link)) follow(j);
        }
      } else if (route.crossings[i].before >= 0) {
        follow(at(route.crossings[i].before));
      }
      head[i] = enter[i] + topology.latency(link);
      slowest[i] = slow;
      busy[i] = send + (blocking ? topology.latency(link) : 0);
      // Only what arrives at the end counts, which may be more than the last link of a spread route.
      if (route.kind == RouteKind::spread && topology.dst(link) != route.destinations[0]) continue;
      Time& end = leg_end[at(route.crossings[i].leg)];
      end = std::max(end, head[i] + slow);
    }
    arrive.clear();
    for (const auto last : route.last_crossing)
      arrive.push_back(head[at(last)] + slowest[at(last)]);
    // Several inputs may join at the very end.
    if (route.kind == RouteKind::reduce || route.kind == RouteKind::spread)
      arrive.assign(1, leg_end[0]);
  }
};

}  // namespace tacos::verification
