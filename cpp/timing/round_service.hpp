// The service rule of service.hpp in rounds, for routes of one link and transfers that need not start together with another.
//
// A round is a span of time no longer than any transfer. What arrives in it has started before it, so a round has two parts, each a
// pass over many transfers, whose data are prefetched:
//   1. arrivals, in the order of their times, make transfers ready, which join the queues of their links;
//   2. each link serves its queue in the order (ready time, position in the list); links do not depend on each other.
// If a start makes another transfer ready at the same moment, the run is given up, and service.hpp must do it. Otherwise the starts
// are the same; the user is told them link by link.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "support/fetch_ahead.hpp"
#include "support/radix.hpp"
#include "timing/calendar.hpp"
#include "timing/link_queue.hpp"
#include "timing/service.hpp"

namespace tacos::service {

// The user is that of service.hpp; gang() and waits() are never called.
template <typename User>
class RoundService {
 public:
  // No transfer has fewer than `least_bytes`.
  RoundService(User& user, const Routes& routes, const Options& options, std::int64_t least_bytes,
               const Progress& progress)
      : user_(user),
        options_(options),
        progress_(progress),
        routes_(routes),
        links_(at(routes.topology().links())),
        lanes_(at(routes.count())),
        calendar_(round_bits(routes, least_bytes)) {
    for (RouteId r = 0; r < routes.count(); ++r) lanes_[at(r)].window.link = routes.links(r)[0];
  }

  // Whether runs can be done in rounds.
  static bool suits(const Routes& routes, const Options& options, std::int64_t least_bytes) {
    if (options.quantum != 1 || least_bytes <= 0 || routes.count() == 0) return false;
    for (RouteId r = 0; r < routes.count(); ++r) {
      if (routes.links(r).size() != 1) return false;
    }
    return true;
  }

  // Runs until no transfer can start; returns the number of transfers that started, or nullopt if the run is given up.
  std::optional<std::size_t> run() {
    now_ = -1;  // so that transfers that are ready at 0 belong to the first round
    user_.begin([this](Item item, Leg) { make_ready(item); });
    std::size_t told = 0;
    while (calendar_.take(events_)) {
      end_ = calendar_.end();
      sort_events();
      arrive();
      queue_ready();
      for (std::size_t i = 0; i < active_.size(); ++i) {
        if (i + 2 * kAhead < active_.size()) fetch_ahead(&links_[active_[i + 2 * kAhead]]);
        if (i + kAhead < active_.size()) links_[active_[i + kAhead]].prefetch_front();
        prefetch_start(i + kAhead / 2, false);
        prefetch_start(i + kAhead / 4, true);
        serve(active_[i]);
      }
      active_.clear();
      if (out_of_turn_) return std::nullopt;
      if (progress_ && started_ - told > 0xffff) {
        told = started_;
        progress_(static_cast<double>(started_) / static_cast<double>(options_.legs));
      }
    }
    return started_;
  }

 private:
  enum class Kind : std::uint8_t { arrival, ready, link_free };
  struct Event {
    std::uint32_t what;  // a transfer or a link
    Kind kind;
  };
  using Entry = typename Calendar<Event>::Entry;
  struct Waiting {
    Time ready;
    Item item;
    RouteId route;
    bool operator<(const Waiting& other) const {
      return ready != other.ready ? ready < other.ready : item < other.item;
    }
  };
  using Link = LinkQueue<Waiting>;
  struct Lane {
    Routes::Window window{};  // of a transfer of `bytes`
    std::int64_t bytes = -1;
    Time duration = 0;  // of a transfer of `bytes`
  };
  static constexpr std::size_t kAhead = 16;

  // The exponent of the largest power of two that no transfer is shorter than.
  static int round_bits(const Routes& routes, std::int64_t least_bytes) {
    Time shortest = kLongestSchedule;
    for (RouteId r = 0; r < routes.count(); ++r) {
      shortest = std::min(shortest, routes.leg_time(r, 0, least_bytes, 0));
    }
    const auto length = static_cast<std::uint64_t>(std::max<Time>(shortest, 1));
    return static_cast<int>(std::bit_width(length)) - 1;
  }

  // Sorts arrivals by time, those of one moment in the order in which they were added. Links that become free are served.
  void sort_events() {
    std::erase_if(events_, [this](const Entry& entry) {
      if (entry.event.kind != Kind::link_free) return false;
      links_[entry.event.what].called = false;
      activate(entry.event.what);
      return true;
    });
    radix_sort(events_, spare_events_,
               [](const Entry& entry) { return static_cast<std::uint64_t>(entry.time); });
  }

  void arrive() {
    arrivals_.clear();
    for (const Entry& entry : events_) {
      if (entry.event.kind == Kind::arrival) arrivals_.push_back({entry.event.what, 0});
    }
    std::size_t i = 0;
    for (const Entry& entry : events_) {
      now_ = entry.time;
      if (entry.event.kind == Kind::ready) {
        join(entry.event.what, now_);
        continue;
      }
      user_.prefetch(arrivals_, i++);
      user_.on_arrival(entry.event.what, 0, 0, now_, [this](Item item, Leg) { make_ready(item); });
    }
  }
  void make_ready(Item item) {
    const Time earliest = std::max(now_, user_.not_before(item, 0));
    if (earliest < end_) {
      join(item, earliest);
    } else {
      calendar_.add(earliest, {item, Kind::ready});
    }
  }
  void join(Item item, Time ready) { ready_.push_back({ready, item, user_.route(item)}); }
  // Lets what became ready join the queues of its links.
  void queue_ready() {
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      if (i + kAhead < ready_.size()) fetch_ahead(&links_[link_of(ready_[i + kAhead])]);
      if (i + kAhead / 2 < ready_.size()) {
        links_[link_of(ready_[i + kAhead / 2])].prefetch_end();
      }
      const auto link = link_of(ready_[i]);
      links_[link].push(ready_[i]);
      activate(link);
    }
    ready_.clear();
  }
  std::uint32_t link_of(const Waiting& who) const {
    return static_cast<std::uint32_t>(lanes_[at(who.route)].window.link);
  }
  void activate(std::uint32_t link) {
    if (!std::exchange(links_[link].active, true)) active_.push_back(link);
  }

  void prefetch_start(std::size_t i, bool again) const {
    if (i >= active_.size() || links_[active_[i]].empty()) return;
    user_.prefetch_start(links_[active_[i]].front().item, again);
  }
  // Starts what a link can serve in this round.
  void serve(std::uint32_t id) {
    Link& link = links_[id];
    link.active = false;
    link.sort();
    while (!link.empty()) {
      const Waiting next = link.front();
      const Time time = options_.congestion ? std::max(link.free, next.ready) : next.ready;
      if (time >= end_) {
        if (!std::exchange(link.called, true)) calendar_.add(time, {id, Kind::link_free});
        return;
      }
      link.pop();
      start(link, next, time);
    }
  }
  void start(Link& link, const Waiting& who, Time time) {
    Lane& lane = lanes_[at(who.route)];
    if (const auto bytes = user_.bytes(who.item); bytes != lane.bytes) measure(lane, bytes);
    link.free = std::max(link.free, user_.leaves(who.item, lane.window, time));
    const Time arrival = user_.arrives(who.item, 0, 0, time, lane.duration);
    if (arrival > kLongestSchedule) too_long();
    calendar_.add(arrival, {who.item, Kind::arrival});
    user_.on_start(who.item, 0, time, {&lane.window, 1},
                   [this](Item, Leg) { out_of_turn_ = true; });
    ++started_;
  }
  void measure(Lane& lane, std::int64_t bytes) {
    const auto route = static_cast<RouteId>(&lane - lanes_.data());
    windows_.clear();
    routes_.windows(route, 0, bytes, windows_);
    lane.window = windows_[0];
    lane.bytes = bytes;
    lane.duration = routes_.leg_time(route, 0, bytes, 0);
  }

  User& user_;
  const Options options_;
  const Progress& progress_;
  const Routes& routes_;
  std::vector<Routes::Window> windows_;
  std::vector<Link> links_;
  std::vector<Lane> lanes_;  // per route
  Calendar<Event> calendar_;
  Time now_ = 0, end_ = 0;  // time of the current event, end of the round
  std::size_t started_ = 0;
  bool out_of_turn_ = false;  // whether a start made something ready
  // Of the current round:
  std::vector<Entry> events_, spare_events_;
  std::vector<Arrival> arrivals_;
  std::vector<Waiting> ready_;
  std::vector<std::uint32_t> active_;  // links to serve
};

}  // namespace tacos::service
