// Members that pass messages on: while hubs send their sums to receivers, other members of a box may forward them.
//
// A member that has sent its own sum may be overwritten by a message, which it sends on. So a message must arrive after the
// member has last read its sum, and two messages through one member follow each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "synth/timed_hops.hpp"

namespace tacos {

class Relays {
 public:
  Relays(TimedHops& hops, NodeId nodes)
      : hops_(hops),
        last_read_(at(nodes), -1),
        role_(at(nodes)),
        reached_(at(nodes)),
        near_(at(nodes)) {}

  // Begins a chunk, in which no member has sent its sum yet.
  void begin(std::span<const NodeId> members) {
    for (const NodeId npu : members) last_read_[at(npu)] = -1;
  }
  // A member sends its sum at `start`, or keeps it until then.
  void read(NodeId npu, Time start) { last_read_[at(npu)] = std::max(last_read_[at(npu)], start); }
  // When a member last sent its sum; -1: not yet.
  Time last_read(NodeId npu) const { return last_read_[at(npu)]; }

  // The first start from `moment` on with which a message arrives after its target has sent its present sum.
  Time free_arrival(RouteId hop, Time moment) {
    const Time flight = hops_.flight(hop);
    return hops_.free_start(hop, std::max(moment, last_read_[at(hops_.target(hop))] + 1 - flight),
                            false);
  }

  // Begins to send from hubs to receivers, which do not pass messages on.
  void meet(std::span<const NodeId> hubs, std::span<const NodeId> receivers) {
    std::fill(role_.begin(), role_.end(), Role::member);
    for (const NodeId npu : receivers) role_[at(npu)] = Role::receiver;
    for (const NodeId npu : hubs) role_[at(npu)] = Role::hub;
    held_.clear();
  }
  bool is_hub(NodeId npu) const { return role_[at(npu)] == Role::hub; }

  // Finds the hops of a message that arrives first from `moment` on: one hop, or several direct links over members that
  // have sent their own sums and are neither hubs nor receivers. Each of these overwrites its sum with the message, and
  // can send it again until the next message overwrites it.
  bool find_way(NodeId from, NodeId to, Time moment, std::vector<std::pair<RouteId, Time>>& way) {
    way.clear();
    Time first = kNever;
    for (const RouteId hop : hops_.out(from, false)) {
      if (hops_.target(hop) != to) continue;
      const Time start = free_arrival(hop, moment), arrival = start + hops_.flight(hop);
      if (arrival < first) first = arrival, way.assign(1, {hop, start});
    }
    using Place = std::pair<Time, NodeId>;
    std::priority_queue<Place, std::vector<Place>, std::greater<>> queue;
    ++search_;
    const auto begin_at = [&](NodeId npu, Time time) {
      reached_[at(npu)] = {search_, time, kNone, 0};
      queue.emplace(time, npu);
    };
    begin_at(from, moment);
    for (const auto& [npu, held] : held_) {
      if (held.from == from) begin_at(npu, std::max(moment, held.since));
    }
    while (!queue.empty()) {
      const auto [time, here] = queue.top();
      queue.pop();
      if (time > reached_[at(here)].time || time >= first) continue;
      if (here == to) {
        way.clear();
        for (const Reached* back = &reached_[at(to)]; back->hop != kNone;
             back = &reached_[at(hops_.source(back->hop))]) {
          way.emplace_back(back->hop, back->start);
        }
        std::reverse(way.begin(), way.end());
        return true;
      }
      for (const RouteId hop : hops_.out(here, true)) {
        const NodeId next = hops_.target(hop);
        if (next != to && role_[at(next)] != Role::member) continue;
        if (time + hops_.flight(hop) >= first) continue;
        auto& known = reached_[at(next)];
        const bool seen = known.search == search_;
        if (seen && (known.hop == kNone || time + hops_.flight(hop) >= known.time)) continue;
        const Time start = free_arrival(hop, time), arrival = start + hops_.flight(hop);
        if (seen && arrival >= known.time) continue;
        known = {search_, arrival, hop, start};
        queue.emplace(arrival, next);
      }
    }
    return !way.empty();
  }

  // A member holds the sum of the hub `from` since then, and can send it again.
  void pass_on(NodeId npu, NodeId from, Time since) { held_[npu] = {from, since}; }

  // The time of a message in an empty network: over one hop, or over direct links.
  Time nearness(NodeId from, NodeId to) {
    auto& known = near_[at(from)];
    if (known.empty()) {
      known.assign(near_.size(), kNever);
      using Place = std::pair<Time, NodeId>;
      std::priority_queue<Place, std::vector<Place>, std::greater<>> queue;
      known[at(from)] = 0;
      queue.emplace(0, from);
      while (!queue.empty()) {
        const auto [time, here] = queue.top();
        queue.pop();
        if (time > known[at(here)]) continue;
        for (const RouteId hop : hops_.out(here, here != from)) {
          const Time then = time + hops_.flight(hop);
          if (then >= known[at(hops_.target(hop))]) continue;
          known[at(hops_.target(hop))] = then;
          if (hops_.straight(hop)) queue.emplace(then, hops_.target(hop));
        }
      }
    }
    return known[at(to)];
  }

 private:
  static constexpr Time kNever = std::numeric_limits<Time>::max();
  static constexpr RouteId kNone = -1;
  enum class Role : std::uint8_t { member, receiver, hub };
  struct Held {
    NodeId from;
    Time since;
  };
  struct Reached {
    std::int64_t search = 0;  // the one that reached it
    Time time = 0;
    RouteId hop = kNone;  // the last one; none if the message is there already
    Time start = 0;
  };

  TimedHops& hops_;
  std::vector<Time> last_read_;
  std::vector<Role> role_;  // of each node, for the present chunk
  std::int64_t search_ = 0;
  std::vector<Reached> reached_;         // of each node, by find_way()
  std::map<NodeId, Held> held_;          // the hub's sum that a member passes on
  std::vector<std::vector<Time>> near_;  // nearness() from each node
};

}  // namespace tacos
