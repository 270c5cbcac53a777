// Members that pass messages on: while leaders send their sums to receivers, other members of a box may forward them.
//
// A member that has sent its own sum may be overwritten by a message, which it sends on. So a message must arrive after the
// member has last read its sum, and two messages through one member follow each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "graph/best_first.hpp"
#include "synth/timed_hops.hpp"

namespace tacos {

class Relays {
 public:
  Relays(TimedHops& hops, NodeId nodes)
      : hops_(hops),
        last_read_(at(nodes), -1),
        role_(at(nodes)),
        near_(at(nodes)),
        fastest_(nodes) {}

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

  // Begins to send from leaders to receivers, which do not pass messages on.
  void meet(std::span<const NodeId> leaders, std::span<const NodeId> receivers) {
    std::fill(role_.begin(), role_.end(), Role::member);
    for (const NodeId npu : receivers) role_[at(npu)] = Role::receiver;
    for (const NodeId npu : leaders) role_[at(npu)] = Role::leader;
    held_.clear();
  }
  bool is_leader(NodeId npu) const { return role_[at(npu)] == Role::leader; }

  // Finds the hops of a message that arrives first from `moment` on: one hop, or several direct links over members that
  // have sent their own sums and are neither leaders nor receivers. Each of these overwrites its sum with the message, and
  // can send it again until the next message overwrites it.
  bool find_way(NodeId from, NodeId to, Time moment, std::vector<std::pair<RouteId, Time>>& way) {
    way.clear();
    Time first = kNever;
    for (const RouteId hop : hops_.out(from, false)) {
      if (hops_.target(hop) != to) continue;
      const Time start = free_arrival(hop, moment), arrival = start + hops_.flight(hop);
      if (arrival < first) first = arrival, way.assign(1, {hop, start});
    }
    fastest_.clear();
    fastest_.start(from, moment);
    for (const auto& [npu, held] : held_) {
      if (held.from == from) fastest_.start(npu, std::max(moment, held.since));
    }
    while (const auto here = fastest_.next()) {
      const Time time = fastest_.key(*here);
      if (time >= first) break;
      if (*here == to) {
        way.clear();
        for (NodeId back = to; !fastest_.source(back); back = hops_.source(way.back().first)) {
          way.push_back(fastest_.mark(back));
        }
        std::reverse(way.begin(), way.end());
        return true;
      }
      for (const RouteId hop : hops_.out(*here, true)) {
        const NodeId next = hops_.target(hop);
        if (next != to && role_[at(next)] != Role::member) continue;
        const Time soonest = time + hops_.flight(hop);
        if (soonest >= first || !fastest_.accepts(next, soonest)) continue;
        const Time start = free_arrival(hop, time);
        fastest_.offer(next, start + hops_.flight(hop), {hop, start});
      }
    }
    return !way.empty();
  }

  // A member holds the sum of the leader `from` since then, and can send it again.
  void pass_on(NodeId npu, NodeId from, Time since) { held_[npu] = {from, since}; }

  // The time of a message in an empty network: over one hop, or over direct links.
  Time nearness(NodeId from, NodeId to) {
    auto& known = near_[at(from)];
    if (known.empty()) {
      BestFirst<Time, NoMark> search(static_cast<NodeId>(near_.size()));
      search.start(from, 0);
      while (const auto here = search.next()) {
        const Time time = search.key(*here);
        for (const RouteId hop : hops_.out(*here, *here != from)) {
          search.offer(hops_.target(hop), time + hops_.flight(hop), {}, hops_.straight(hop));
        }
      }
      known.assign(near_.size(), kNever);
      for (const NodeId npu : search.reached()) known[at(npu)] = search.key(npu);
    }
    return known[at(to)];
  }

 private:
  static constexpr Time kNever = std::numeric_limits<Time>::max();
  enum class Role : std::uint8_t { member, receiver, leader };
  struct Held {
    NodeId from;
    Time since;
  };

  TimedHops& hops_;
  std::vector<Time> last_read_;
  std::vector<Role> role_;                             // of each node, for the present chunk
  std::map<NodeId, Held> held_;                        // the leader's sum that a member passes on
  std::vector<std::vector<Time>> near_;                // nearness() from each node
  BestFirst<Time, std::pair<RouteId, Time>> fastest_;  // find_way(): the last hop, and its start
};

}  // namespace tacos
