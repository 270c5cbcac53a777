// The service rule of service.hpp in rounds, for routes of one link and transfers that need not start together with another.
//
// A round is a span of time no longer than any transfer. A transfer that arrives in a round has started before it, so a round has three
// parts, each a pass over many transfers, whose data are prefetched:
//   1. arrivals, in the order of their times, make transfers ready;
//   2. each link serves its ready transfers in the order (ready time, position in the list); links do not depend on each other;
//   3. the user is told the starts, in the order in which service.hpp would have made them.
// If a start makes another transfer ready at the same moment, the run is given up, and service.hpp must do it. Otherwise the results
// are the same, records included.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "support/fetch_ahead.hpp"
#include "timing/calendar.hpp"
#include "timing/service.hpp"

namespace tacos::service {

// The user is that of service.hpp, and also has
//   bool disturbed()   whether something happened out of order, so that the run cannot be done in rounds
// gang() is never called.
template <typename User>
class RoundService {
 public:
  // No transfer has fewer than `least_bytes`. With `recorded`, the user is told the starts in their order.
  RoundService(User& user, const Routes& routes, const Options& options, std::int64_t least_bytes,
               bool recorded, const Progress& progress)
      : user_(user),
        options_(options),
        recorded_(recorded),
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
      serve_ready();
      for (std::size_t i = 0; i < freed_.size(); ++i) {
        if (i + kAhead < freed_.size()) fetch_ahead(&links_[freed_[i + kAhead]]);
        if (i + kAhead / 2 < freed_.size()) links_[freed_[i + kAhead / 2]].line.prefetch_top();
        end_round(links_[freed_[i]]);
      }
      freed_.clear();
      tell_starts();
      if (out_of_turn_ || user_.disturbed()) return std::nullopt;
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
  struct Link {
    Time free_at = 0;
    Item taken_by = kNone;
    bool called = false;  // whether an event waits for when it is free
    Line line;
  };
  struct Lane {
    Routes::Window window{};  // of a transfer of `bytes`
    std::int64_t bytes = -1;
    Time duration = 0;              // of a transfer of `bytes`
    Item last = kNone;              // the transfer that started last
    std::uint32_t last_moment = 0;  // when it started
  };
  struct Ready {
    Time time;
    Item item;
  };
  struct Start {
    Time time, arrival;
    std::uint64_t key;  // the order of service among those that start at one moment
  };
  static constexpr std::size_t kAhead = 8;

  // The exponent of the largest power of two that no transfer is shorter than.
  static int round_bits(const Routes& routes, std::int64_t least_bytes) {
    Time shortest = kLongestSchedule;
    for (RouteId r = 0; r < routes.count(); ++r) {
      shortest = std::min(shortest, routes.leg_time(r, 0, least_bytes, 0));
    }
    const auto length = static_cast<std::uint64_t>(std::max<Time>(shortest, 1));
    return static_cast<int>(std::bit_width(length)) - 1;
  }

  // Sorts arrivals by time, those of one moment in the order in which they were added. Moves links that become free to freed_.
  void sort_events() {
    const auto earlier = [](const Entry& a, const Entry& b) { return a.time < b.time; };
    std::erase_if(events_, [this](const Entry& entry) {
      if (entry.event.kind != Kind::link_free) return false;
      freed_.push_back(entry.event.what);
      return true;
    });
    if (!std::is_sorted(events_.begin(), events_.end(), earlier)) {
      std::stable_sort(events_.begin(), events_.end(), earlier);
    }
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
        ready_.push_back({now_, entry.event.what});
        continue;
      }
      user_.prefetch(arrivals_, i++);
      user_.on_arrival(entry.event.what, 0, 0, now_, [this](Item item, Leg) { make_ready(item); });
    }
  }
  void make_ready(Item item) {
    const Time earliest = user_.not_before(item, 0);
    if (earliest <= now_) {
      ready_.push_back({now_, item});
    } else if (earliest < end_) {
      ready_.push_back({earliest, item});
    } else {
      calendar_.add(earliest, {item, Kind::ready});
    }
  }

  // Sorts by time and item; mostly the times are in order already.
  void sort_ready() {
    const auto earlier = [](const Ready& a, const Ready& b) { return a.time < b.time; };
    if (!std::is_sorted(ready_.begin(), ready_.end(), earlier)) {
      std::stable_sort(ready_.begin(), ready_.end(), earlier);
    }
    for (std::size_t begin = 0, end = 0; begin < ready_.size(); begin = end) {
      while (end < ready_.size() && ready_[end].time == ready_[begin].time) ++end;
      if (end - begin == 1) continue;
      items_.clear();
      for (auto i = begin; i < end; ++i) items_.push_back(ready_[i].item);
      sorter_.sort(items_);
      for (auto i = begin; i < end; ++i) ready_[i].item = static_cast<Item>(items_[i - begin]);
    }
  }

  void serve_ready() {
    sort_ready();
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      if (i + 2 * kAhead < ready_.size()) user_.prefetch_start(ready_[i + 2 * kAhead].item, false);
      if (i + kAhead < ready_.size()) fetch_ahead(&link_of(ready_[i + kAhead].item));
      if (i + kAhead / 2 < ready_.size()) link_of(ready_[i + kAhead / 2].item).line.prefetch_end();
      const auto [time, item] = ready_[i];
      if (i == 0 || time != ready_[i - 1].time) next_moment();
      Lane& lane = lanes_[at(user_.route(item))];
      Link& link = links_[at(lane.window.link)];
      serve_line(link, time, moment_ - 1);
      if (options_.congestion && link.free_at > time) {
        user_.waits(item, 0, link.taken_by);
        link.line.push(key(item));
        call(link);
      } else {
        start(link, lane, key(item), time);
      }
    }
    ready_.clear();
  }
  const Link& link_of(Item item) const {
    return links_[at(lanes_[at(user_.route(item))].window.link)];
  }
  void next_moment() {
    if (++moment_ == kNone) invalid("the schedule has too many moments to follow");
  }
  std::uint64_t key(Item item) const { return std::uint64_t{moment_} << 32 | item; }

  // Starts the transfers that a link can serve by `until`. `before` is the number of the last moment before `until`.
  void serve_line(Link& link, Time until, std::uint32_t before) {
    while (!link.line.empty() && link.free_at <= until) {
      const auto key = link.line.top();
      link.line.pop();
      const auto item = static_cast<Item>(key);
      Lane& lane = lanes_[at(user_.route(item))];
      // The first waiting transfer of a lane waits for the one that had the link when it came, recorded then; the others wait
      // for the one before them in the lane.
      if (lane.last != kNone && lane.last_moment >= key >> 32) user_.waits(item, 0, lane.last);
      const auto moment = link.free_at < until ? before : moment_;
      start(link, lane, key, link.free_at);
      lane.last_moment = moment;
      if (!link.line.empty()) user_.prefetch_start(static_cast<Item>(link.line.top()), false);
    }
  }
  void end_round(Link& link) {
    serve_line(link, end_ - 1, moment_);
    link.called = false;
    if (!link.line.empty()) call(link);
  }
  void call(Link& link) {
    if (std::exchange(link.called, true)) return;
    const auto id = static_cast<std::uint32_t>(&link - links_.data());
    if (link.free_at < end_) {
      freed_.push_back(id);
    } else {
      calendar_.add(link.free_at, {id, Kind::link_free});
    }
  }

  void start(Link& link, Lane& lane, std::uint64_t key, Time time) {
    const auto item = static_cast<Item>(key);
    if (const auto bytes = user_.bytes(item); bytes != lane.bytes) measure(lane, bytes);
    link.free_at = std::max(link.free_at, user_.leaves(item, lane.window, time));
    link.taken_by = item;
    lane.last = item;
    lane.last_moment = moment_;
    const Time arrival = user_.arrives(item, 0, 0, time, lane.duration);
    if (arrival > kLongestSchedule) too_long();
    starts_.push_back({time, arrival, key});
  }
  void measure(Lane& lane, std::int64_t bytes) {
    const auto route = static_cast<RouteId>(&lane - lanes_.data());
    windows_.clear();
    routes_.windows(route, 0, bytes, windows_);
    lane.window = windows_[0];
    lane.bytes = bytes;
    lane.duration = routes_.leg_time(route, 0, bytes, 0);
  }

  void tell_starts() {
    const auto earlier = [](const Start& a, const Start& b) {
      return a.time != b.time ? a.time < b.time : a.key < b.key;
    };
    if (recorded_ && !std::is_sorted(starts_.begin(), starts_.end(), earlier)) {
      std::sort(starts_.begin(), starts_.end(), earlier);
    }
    for (std::size_t i = 0; i < starts_.size(); ++i) {
      if (i + kAhead < starts_.size()) {
        user_.prefetch_start(static_cast<Item>(starts_[i + kAhead].key), true);
      }
      const auto item = static_cast<Item>(starts_[i].key);
      calendar_.add(starts_[i].arrival, {item, Kind::arrival});
      Lane& lane = lanes_[at(user_.route(item))];
      if (const auto bytes = user_.bytes(item); bytes != lane.bytes) measure(lane, bytes);
      user_.on_start(item, 0, starts_[i].time, {&lane.window, 1},
                     [this](Item, Leg) { out_of_turn_ = true; });
    }
    started_ += starts_.size();
    starts_.clear();
  }

  User& user_;
  const Options options_;
  const bool recorded_;
  const Progress& progress_;
  const Routes& routes_;
  std::vector<Routes::Window> windows_;
  std::vector<Link> links_;
  std::vector<Lane> lanes_;  // per route
  Calendar<Event> calendar_;
  Time now_ = 0, end_ = 0;  // time of the current event, end of the round
  std::uint32_t moment_ = 0;
  std::size_t started_ = 0;
  bool out_of_turn_ = false;  // whether a start made something ready
  // Of the current round:
  std::vector<Entry> events_;
  std::vector<Arrival> arrivals_;
  std::vector<Ready> ready_;
  std::vector<std::uint32_t> freed_;  // links that become free in it and have waiting transfers
  std::vector<Start> starts_;
  std::vector<std::uint64_t> items_;  // to be sorted
  Sorter sorter_;
};

}  // namespace tacos::service
