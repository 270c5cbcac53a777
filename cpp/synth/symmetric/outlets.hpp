// The links of NPU 0 as outlets (see symmetric.hpp), and the clock that runs them.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "model/routes.hpp"
#include "model/schedule.hpp"
#include "support/progress.hpp"
#include "support/work.hpp"
#include "synth/symmetric/abelian_group.hpp"

namespace tacos::symmetric {

// One link out of NPU 0, alone or through a switch. All times are multiples of one quantum.
struct Outlet {
  std::vector<NodeId> by;       // its moves, ascending: one element, or a switch's offsets
  std::vector<RouteId> routes;  // of each, from NPU 0
  Time period = 0;
  std::vector<Time> legs;  // time of each leg of the routes
  Time time = 0;           // from the start to the arrival of the whole chunk
  std::vector<Shift> forth;
  Shift back;  // inverse of the first move (of a direct link, the only one)
  // Of a port: for each NPU, the lowest NPU of the line that its switch joins; otherwise empty.
  std::vector<NodeId> line;

  bool port() const { return !line.empty(); }
};

class Outlets {
 public:
  Outlets(std::shared_ptr<const Topology> topology, const AbelianGroup& group) {
    std::vector<LinkId> links;
    std::vector<std::int64_t> begin{0};
    const auto add = [&](Outlet& outlet, NodeId by, std::initializer_list<LinkId> route) {
      outlet.by.push_back(by);
      outlet.routes.push_back(static_cast<RouteId>(begin.size() - 1));
      links.insert(links.end(), route);
      begin.push_back(static_cast<std::int64_t>(links.size()));
    };
    std::vector<NodeId> ports;  // switches seen so far, for NPUs with several links into one
    for (const LinkId up : topology->out_links(0)) {
      Outlet outlet{{}, {}, 0, {}, 0, {}, {group, 0}, {}};
      const NodeId next = topology->dst(up);
      if (topology->is_npu(next)) {
        add(outlet, next, {up});
      } else {
        const auto before = std::count(ports.begin(), ports.end(), next);
        ports.push_back(next);
        for (const auto& [npu, down] : downlinks(*topology, next, before)) {
          add(outlet, npu, {up, down});
        }
      }
      if (outlet.by.empty()) continue;
      for (const NodeId by : outlet.by) outlet.forth.emplace_back(group, by);
      outlet.back = Shift(group, group.minus(0, outlet.by[0]));
      if (outlet.by.size() > 1) outlet.line = lines(group.order(), outlet.forth);
      all_.push_back(std::move(outlet));
    }
    std::vector<std::uint8_t> kinds(begin.size() - 1, static_cast<std::uint8_t>(RouteKind::path));
    routes_ = std::make_shared<const Routes>(std::move(topology), std::move(kinds),
                                             std::move(begin), std::move(links));
  }

  // Times for chunks of `bytes`, each rounded up to a multiple of `quantum`.
  void set_times(std::int64_t bytes, Time quantum) {
    std::vector<Routes::Window> windows;
    const auto round_up = [&](Time time) { return (time + quantum - 1) / quantum * quantum; };
    for (auto& outlet : all_) {
      const auto legs = routes_->legs(outlet.routes[0]);
      outlet.legs.assign(at(legs), 0);
      outlet.period = 0;
      for (const RouteId r : outlet.routes) {
        for (std::int32_t leg = 0; leg < legs; ++leg) {
          auto& time = outlet.legs[at(leg)];
          time = std::max(time, round_up(routes_->leg_time(r, leg, bytes)));
          windows.clear();
          routes_->windows(r, leg, bytes, windows);
          for (const auto& window : windows) {
            outlet.period = std::max(outlet.period, round_up(window.busy));
          }
        }
      }
      outlet.time = std::accumulate(outlet.legs.begin(), outlet.legs.end(), Time{0});
    }
  }

  // The largest time that divides all times.
  Time quantum() const {
    Time divisor = 0;
    for (const auto& outlet : all_) {
      divisor = std::gcd(divisor, outlet.period);
      for (const Time leg : outlet.legs) divisor = std::gcd(divisor, leg);
    }
    return std::max<Time>(divisor, 1);
  }

  const std::vector<Outlet>& all() const { return all_; }
  const std::shared_ptr<const Routes>& routes() const { return routes_; }

 private:
  // The links from a switch to all NPUs except 0; of parallel links to an NPU, number `which`.
  static std::vector<std::pair<NodeId, LinkId>> downlinks(const Topology& topology, NodeId from,
                                                          std::int64_t which) {
    std::vector<std::pair<NodeId, LinkId>> all, chosen;
    for (const LinkId link : topology.out_links(from)) {
      const NodeId npu = topology.dst(link);
      if (npu != 0 && topology.is_npu(npu)) all.emplace_back(npu, link);
    }
    std::sort(all.begin(), all.end());
    std::int64_t nth = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      nth = i > 0 && all[i].first == all[i - 1].first ? nth + 1 : 0;
      if (nth == which) chosen.push_back(all[i]);
    }
    return chosen;
  }

  static std::vector<NodeId> lines(NodeId npus, const std::vector<Shift>& shifts) {
    std::vector<NodeId> line(at(npus), -1);
    for (NodeId v = 0; v < npus; ++v) {
      if (line[at(v)] >= 0) continue;
      line[at(v)] = v;
      for (const auto& shift : shifts) {
        NodeId& other = line[at(shift(v))];
        if (other >= 0) {
          invalid("the symmetric engine needs switches that join whole lines of NPUs");
        }
        other = v;
      }
    }
    return line;
  }

  std::vector<Outlet> all_;
  std::shared_ptr<const Routes> routes_;
};

// Piece `piece` of the chunk for displacement `to` moves on from `from`: to `to` itself in an
// all-gather, somewhere on the way there in an all-to-all.
struct Sent {
  NodeId from, to;
  std::int32_t piece;
  Time start;
};

// What each outlet does, in order of time.
using Log = std::vector<std::vector<Sent>>;

// Runs the outlets over time. At each moment, traffic.arrive() is called for everything that has arrived,
// then traffic.start() for each idle outlet, which records what it sends.
struct Clock {
  const Topology& topology;
  const std::vector<Outlet>& outlets;
  Time delay = 0;          // of every arrival, for reducing
  std::vector<Time> free;  // when each outlet is free again
  Log sent = Log(outlets.size());

  template <typename Traffic>
  void run(Traffic& traffic, Time now, const Progress& progress) {
    std::vector<std::size_t> landed(outlets.size(), 0);
    std::size_t tried = 0;
    while (!traffic.done()) {
      tried += outlets.size();
      if (tried + traffic.looked_at > 0xfff) {
        spend(tried, traffic.looked_at, progress);
        progress(traffic.share());
      }
      Time next = traffic.release(now);
      for (std::size_t m = 0; m < outlets.size(); ++m) {
        const Time takes = outlets[m].time + delay;
        auto& i = landed[m];
        for (; i < sent[m].size() && sent[m][i].start + takes <= now; ++i)
          traffic.arrive(sent[m][i]);
        if (i < sent[m].size()) next = std::min(next, sent[m][i].start + takes);
      }
      traffic.begin(now);
      for (std::size_t m = 0; m < outlets.size(); ++m) {
        if (free[m] <= now && !traffic.done() && traffic.start(m)) {
          free[m] = now + outlets[m].period;
          next = std::min(next, now + outlets[m].time + delay);
        }
        if (free[m] > now) next = std::min(next, free[m]);
      }
      if (next == kNever && !traffic.done()) stuck();
      if (next > kLongestSchedule && !traffic.done()) too_long();
      now = next;
    }
    spend(tried, traffic.looked_at, progress);
    for (const auto& row : sent) progress.spend(static_cast<double>(row.size()) * work::kTransfer);
  }

  // Counts outlets that were tried at a moment, and items that the traffic looked at.
  static void spend(std::size_t& tried, std::size_t& looked_at, const Progress& progress) {
    progress.spend(static_cast<double>(std::exchange(tried, 0)) * work::kTry +
                   static_cast<double>(std::exchange(looked_at, 0)) * work::kStep);
  }

  [[noreturn]] void stuck() const {
    const auto pair = topology.unreachable_pair();
    if (!pair) invalid("the symmetric engine needs NPUs that are joined by links or one switch");
    throw InfeasibleError(topology.name(pair->first) + " cannot reach " +
                          topology.name(pair->second));
  }
};

}  // namespace tacos::symmetric
