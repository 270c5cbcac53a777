// How disturbances and summing delay the transfers of a run, by the rules of simulate.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/schedule.hpp"
#include "simulate/simulate.hpp"
#include "simulate/speeds.hpp"
#include "support/index.hpp"

namespace tacos::simulation {

class Delays {
 public:
  // The caller keeps all arguments alive; routes are those of the schedule's lanes.
  Delays(const Schedule& schedule, const Routes& routes, const Options& options)
      : schedule_(schedule), routes_(routes), options_(options) {}

  struct What {
    std::uint32_t lane, transfer;
    std::int64_t bytes;
    RouteId route() const { return static_cast<RouteId>(lane); }
  };

  // When all NPUs that send over a route have started.
  Time sources_ready(RouteId route) const {
    Time ready = 0;
    if (options_.late.empty()) return ready;
    for (const NodeId node : routes_.sources(route)) {
      if (routes_.topology().is_npu(node)) ready = std::max(ready, options_.late[at(node)]);
    }
    return ready;
  }

  // Whether at_end() may be more than nothing.
  bool at_ends() const {
    return options_.jitter > 0 || routes_.topology().spec().reduce_bandwidth_Bps > 0;
  }
  // What jitter and summing add to the time at which a leg arrives at one of its ends.
  Time at_end(const What& what, std::uint32_t leg, std::size_t end) const {
    Time time = 0;
    if (options_.jitter > 0) {
      time = drawn(options_.seed, {what.transfer, leg, end}, options_.jitter);
    }
    const auto rate = routes_.topology().spec().reduce_bandwidth_Bps;
    const RouteId route = what.route();
    if (rate > 0 && static_cast<std::int32_t>(leg) + 1 == routes_.legs(route) &&
        schedule_.stored().lane_op[what.lane] == static_cast<std::uint8_t>(Op::reduce)) {
      const NodeId node = routes_.destinations(route)[end];
      const Time clean = transmission_time(what.bytes, rate);
      const bool slow = !options_.reduce_slowdown.empty() && routes_.topology().is_npu(node);
      time += slow ? slowed(clean, options_.reduce_slowdown[at(node)]) : clean;
    }
    return time;
  }

  // How much longer than on an undisturbed link a leg that starts at `start` occupies the link; kNever if it never ends.
  Time on_link(const Routes::Window& window, Time start) const {
    const auto found = options_.changes.find(window.link);
    if (found == options_.changes.end()) return 0;
    const Time begin = start + window.offset;
    const auto& topology = routes_.topology();
    const bool blocking = topology.spec().link_model == LinkModel::blocking;
    const Time work = window.busy - (blocking ? topology.latency(window.link) : 0);
    const auto end = finish(found->second, begin, work);
    return end ? *end - begin - work : kNever;
  }

  // The longest such delay on the way to one end of a leg with these windows.
  Time on_the_way(const What& what, std::span<const Routes::Window> windows, std::size_t end,
                  Time start) const {
    Time longest = 0;
    if (routes_.kind(what.route()) != RouteKind::multicast) {
      for (const auto& window : windows) longest = std::max(longest, on_link(window, start));
      return longest;
    }
    // A tree lists each link after the one that feeds it, so one backward pass follows the branch.
    NodeId node = routes_.destinations(what.route())[end];
    for (std::size_t i = windows.size(); i-- > 0;) {
      if (routes_.topology().dst(windows[i].link) != node) continue;
      longest = std::max(longest, on_link(windows[i], start));
      node = routes_.topology().src(windows[i].link);
    }
    return longest;
  }

  bool slow_links() const { return !options_.changes.empty(); }

 private:
  const Schedule& schedule_;
  const Routes& routes_;
  const Options& options_;
};

}  // namespace tacos::simulation
