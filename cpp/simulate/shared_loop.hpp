// The event loop for messages that share links fairly (fair_share.hpp).
//
// A connection is a route that carries one message at a time. A message is submitted when it may
// start, waits until the messages submitted before it have left, and then sends at the rate that the
// links give. When its last byte has been sent, the connection serves the next message (on blocking
// links only after the longest latency of its links), and the message arrives after the latency of
// the route. A route through nodes that store whole chunks has several legs. Each leg is a separate server, and
// messages pass the legs one after the other.
//
// A tree is one leg: it sends over all its links at one rate, and arrives at each destination after
// that destination's own latency. Under store-and-forward, where a tree repeats the transmission at
// every switch, these repetitions count as latency. So does a spread route, whose links take their shares of the rate.
//
// The user is a class with these members. Submit is a callable `submit(item, time)`: the message may
// start at that time, which may be in the future.
//   std::uint32_t connection(Item), std::int64_t bytes(Item)
//   void begin(Submit)                         submits the messages that may start at once
//   void on_start(Item, leg, now, Submit)
//   void on_sent(Item, leg, Time started, now, windows, Submit)   the last byte is out
//   Time delay(Item, leg, end)                 delay of an arrival beyond the latency
//   void on_arrival(Item, end, now, Submit)    complete at destination number `end`
//   void on_alarm(Item, now, Submit)           at a time set by alarm(); only if the user has a member `alarms`
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "model/routes.hpp"
#include "simulate/fair_share.hpp"
#include "support/index.hpp"
#include "support/progress.hpp"
#include "support/work.hpp"
#include "timing/agenda.hpp"
#include "timing/crossings.hpp"

namespace tacos::simulation {

using service::Item;
using service::kNone;
using service::Leg;

struct SharedOptions {
  std::size_t items = 0;
  std::size_t legs = 0;    // of all messages, for the progress report
  std::int32_t limit = 0;  // messages in flight from, and to, an NPU; 0: any number
};

template <typename User>
class SharedLoop {
 public:
  // `connections` has the route of each connection.
  SharedLoop(User& user, const Routes& routes, std::span<const RouteId> connections,
             const std::unordered_map<LinkId, std::vector<Change>>& changes,
             const SharedOptions& options, const Progress& progress)
      : SharedLoop(user, routes, options, progress, layout(routes, connections), changes) {}

  // Runs until nothing can start any more; returns the number of legs that have been sent.
  std::size_t run() {
    const auto submit = [this](Item item, Time time) { this->submit(item, time); };
    user_.begin(submit);
    std::size_t told = 0, moments = 0;
    for (;;) {
      serve_moment();
      shares_.settle(now_);
      const Time next = std::min(shares_.next(), agenda_.empty() ? kNever : agenda_.next());
      if (next == kNever) break;
      if (next > kLongestSchedule) too_long();
      now_ = next;
      ended_.clear();
      shares_.take(now_, ended_);
      for (const auto place : ended_) sent(place);
      if (!agenda_.empty() && agenda_.next() == now_) handle_events();
      // Count both: one moment may end many messages, or take long for a single one.
      if (++moments > 0xff || sent_ - told > 0xfff) {
        spend(moments, sent_ - told);
        told = sent_;
        moments = 0;
        progress_(static_cast<double>(sent_) / static_cast<double>(options_.legs));
      }
    }
    spend(moments, sent_ - told);
    return sent_;
  }

  // Calls the user's on_alarm(item, time, Submit) at a time, now or later.
  void alarm(Item item, Time time) { agenda_.add(time, service::Arrival{item, kAlarm}); }

  // A message whose links are down forever, or kNone.
  Item stopped() const {
    const auto place = shares_.some_in_flight();
    return place == kNone ? kNone : current_[place];
  }

 private:
  void spend(std::size_t moments, std::size_t sent) {
    progress_.spend(static_cast<double>(moments + 3 * sent) * work::kEvent +
                    static_cast<double>(shares_.take_looked_at()) * work::kStep);
  }

  using Place = FairShare::Place;
  // Events other than arrivals.
  static constexpr Leg kFree = 1u << 31, kReady = 1u << 30, kAlarm = 1u << 29;

  struct Layout {
    std::vector<RouteId> route;              // per connection
    std::vector<std::uint32_t> first_place;  // per connection, then the number of places
    std::vector<std::uint32_t> connection;   // per place
    std::vector<std::uint32_t> link_begin;   // per place
    std::vector<LinkId> links;
    std::vector<Routes::Share> shares;         // per link, if any route is spread
    std::vector<std::uint32_t> latency_begin;  // per place
    std::vector<Time> latency;                 // per end of a place
    // Per place: how long it stays occupied after the last byte.
    std::vector<Time> hold;
  };
  static Layout layout(const Routes& routes, std::span<const RouteId> connections) {
    Layout l;
    const auto& topology = routes.topology();
    const bool blocking = topology.spec().link_model == LinkModel::blocking;
    const bool spread = std::any_of(connections.begin(), connections.end(),
                                    [&](RouteId r) { return routes.kind(r) == RouteKind::spread; });
    std::vector<Routes::Window> windows;
    l.route.assign(connections.begin(), connections.end());
    l.link_begin.push_back(0);
    l.latency_begin.push_back(0);
    for (std::uint32_t c = 0; c < connections.size(); ++c) {
      const RouteId r = connections[c];
      l.first_place.push_back(static_cast<std::uint32_t>(l.connection.size()));
      for (std::int32_t leg = 0; leg < routes.legs(r); ++leg) {
        windows.clear();
        routes.windows(r, leg, 0, windows);
        Time hold = 0;
        for (const auto& window : windows) {
          // A spread route is one leg, whose windows are in the order of its links.
          if (spread) l.shares.push_back(routes.share(r, at(&window - windows.data())));
          l.links.push_back(window.link);
          if (blocking) hold = std::max(hold, topology.latency(window.link));
        }
        const bool last = leg + 1 == routes.legs(r);
        const auto ends = last ? routes.destinations(r).size() : 1;
        for (std::size_t end = 0; end < ends; ++end) {
          l.latency.push_back(routes.leg_time(r, leg, 0, end));
        }
        l.hold.push_back(hold);
        l.connection.push_back(c);
        l.link_begin.push_back(static_cast<std::uint32_t>(l.links.size()));
        l.latency_begin.push_back(static_cast<std::uint32_t>(l.latency.size()));
      }
    }
    l.first_place.push_back(static_cast<std::uint32_t>(l.connection.size()));
    return l;
  }

  SharedLoop(User& user, const Routes& routes, const SharedOptions& options,
             const Progress& progress, Layout layout,
             const std::unordered_map<LinkId, std::vector<Change>>& changes)
      : user_(user),
        routes_(routes),
        options_(options),
        progress_(progress),
        layout_(std::move(layout)),
        shares_(routes.topology(), layout_.link_begin, layout_.links, layout_.shares, changes),
        crossings_(routes, options.items),
        stored_(routes.topology().spec().forwarding == Forwarding::store_and_forward),
        blocking_(routes.topology().spec().link_model == LinkModel::blocking),
        current_(layout_.connection.size(), kNone),
        began_(layout_.connection.size(), 0),
        bytes_(layout_.connection.size(), 0),
        queue_(layout_.connection.size(), {kNone, kNone}),
        behind_(options.items, kNone) {
    if (layout_.connection.size() > layout_.route.size()) sizes_.assign(options.items, 0);
    if (options.limit > 0) {
      leaving_.assign(at(routes.topology().npus()), 0);
      coming_.assign(at(routes.topology().npus()), 0);
    }
  }

  void submit(Item item, Time time) {
    if (time > now_) {
      agenda_.add(time, service::Arrival{item, kReady});
    } else {
      fresh_.push_back(item);
    }
  }

  // Handles all consequences of the events of this moment.
  void serve_moment() {
    while (!fresh_.empty() || !empty_.empty() || look_again_ ||
           (!agenda_.empty() && agenda_.next() == now_)) {
      if (!agenda_.empty() && agenda_.next() == now_) handle_events();
      while (!empty_.empty()) {
        const Place place = empty_.back();
        empty_.pop_back();
        sent(place);
      }
      batch_.swap(fresh_);
      fresh_.clear();
      if (!std::is_sorted(batch_.begin(), batch_.end())) std::sort(batch_.begin(), batch_.end());
      for (const Item item : batch_) {
        if (options_.limit > 0) {
          waiting_.emplace(now_, item);
          look_again_ = true;
        } else {
          enter(layout_.first_place[user_.connection(item)], item);
        }
      }
      if (look_again_ && fresh_.empty() && empty_.empty()) admit();
    }
  }

  // Admits messages, ordered by (ready time, position), if both NPUs are below their limits.
  void admit() {
    look_again_ = false;
    for (auto next = waiting_.begin(); next != waiting_.end();) {
      const Item item = next->second;
      if (leaving(item) >= options_.limit || coming(item) >= options_.limit) {
        ++next;
        continue;
      }
      ++leaving(item);
      ++coming(item);
      next = waiting_.erase(next);
      enter(layout_.first_place[user_.connection(item)], item);
    }
  }
  std::int32_t& leaving(Item item) {
    return leaving_[at(routes_.sources(layout_.route[user_.connection(item)])[0])];
  }
  std::int32_t& coming(Item item) {
    return coming_[at(routes_.destinations(layout_.route[user_.connection(item)])[0])];
  }

  void handle_events() {
    agenda_.take(moment_);
    for (const auto& [item, what] : moment_.arrivals) {
      if (what == kReady) {
        fresh_.push_back(item);
      } else if (what == kFree) {
        free(item);
      } else if (what == kAlarm) {
        if constexpr (requires { &User::alarms; }) {
          user_.on_alarm(item, now_, [this](Item next, Time time) { submit(next, time); });
        }
      } else {
        arrived(item, what);
      }
    }
  }

  void arrived(Item item, Leg what) {
    const auto connection = user_.connection(item);
    const auto first = layout_.first_place[connection];
    const Leg last = layout_.first_place[connection + 1] - first - 1;
    if (what < last) {
      enter(first + what + 1, item);
    } else {
      user_.on_arrival(item, what - last, now_,
                       [this](Item next, Time time) { submit(next, time); });
    }
  }

  void enter(Place place, Item item) {
    if (current_[place] == kNone) {
      begin(place, item);
      return;
    }
    auto& [first, last] = queue_[place];
    if (first == kNone) {
      first = item;
    } else {
      behind_[last] = item;
    }
    last = item;
  }

  void free(Place place) {
    current_[place] = kNone;
    auto& first = queue_[place].first;
    if (first == kNone) return;
    const Item item = first;
    first = behind_[item];
    behind_[item] = kNone;
    begin(place, item);
  }

  void begin(Place place, Item item) {
    current_[place] = item;
    began_[place] = now_;
    const auto first = layout_.first_place[layout_.connection[place]];
    const auto bytes = place == first ? user_.bytes(item) : sizes_[item];
    if (place == first && !sizes_.empty()) sizes_[item] = bytes;
    bytes_[place] = bytes;
    if (bytes == 0) {
      empty_.push_back(place);
    } else {
      shares_.start(place, bytes, now_);
    }
    user_.on_start(item, place - first, now_, [this](Item next, Time time) { submit(next, time); });
  }

  void sent(Place place) {
    ++sent_;
    const Item item = current_[place];
    const auto bytes = bytes_[place];
    const auto connection = layout_.connection[place];
    const RouteId r = layout_.route[connection];
    const Leg leg = place - layout_.first_place[connection];
    const bool tree = stored_ && routes_.kind(r) != RouteKind::path;
    // Only trees need the times; and most legs are one link, which needs no table.
    Crossings::Crossing found;
    Routes::Window only{};
    const auto first_link = layout_.link_begin[place];
    if (layout_.link_begin[place + 1] - first_link == 1 && !tree) {
      const LinkId link = layout_.links[first_link];
      only = {link, 0, routes_.topology().busy_time(link, bytes)};
      found.windows = {&only, 1};
    } else {
      found = crossings_.of(crossings_.leg_id(r, leg), bytes, [&] { return std::pair(r, leg); });
    }
    Time slowest = 0;
    for (const auto& window : found.windows) {
      if (!tree) break;
      const auto latency = blocking_ ? routes_.topology().latency(window.link) : 0;
      slowest = std::max(slowest, window.busy - latency);
    }
    const auto* latency = &layout_.latency[layout_.latency_begin[place]];
    const auto ends = layout_.latency_begin[place + 1] - layout_.latency_begin[place];
    for (std::size_t end = 0; end < ends; ++end) {
      Time takes = latency[end];
      if (tree) takes = std::max(takes, found.times[end] - slowest);
      const Time time = now_ + takes + user_.delay(item, leg, end);
      if (time > kLongestSchedule) too_long();
      agenda_.add(time, service::Arrival{item, leg + static_cast<Leg>(end)});
    }
    if (options_.limit > 0) {
      look_again_ = true;
      if (leg == 0) --leaving(item);
      if (place + 1 == layout_.first_place[connection + 1]) --coming(item);
    }
    if (layout_.hold[place] > 0) {
      agenda_.add(now_ + layout_.hold[place], service::Arrival{place, kFree});
    }
    user_.on_sent(item, leg, began_[place], now_, found.windows,
                  [this](Item next, Time time) { submit(next, time); });
    if (layout_.hold[place] == 0) free(place);
  }

  User& user_;
  const Routes& routes_;
  const SharedOptions options_;
  const Progress& progress_;
  const Layout layout_;
  FairShare shares_;
  Crossings crossings_;
  const bool stored_, blocking_;
  service::Agenda agenda_;
  service::Agenda::Moment moment_;
  Time now_ = 0;
  std::size_t sent_ = 0;
  std::vector<Item> current_;  // per place: the message that it carries
  std::vector<Time> began_;
  std::vector<std::int64_t> bytes_;
  std::vector<std::int64_t> sizes_;  // per item, where messages have several legs: looked up once
  std::vector<std::pair<Item, Item>> queue_;  // per place: first and last waiting message
  std::vector<Item> behind_;                  // per item: the item that waits behind it
  std::vector<Item> fresh_, batch_;           // messages that may start now
  std::vector<Place> empty_;                  // places that carry a message without bytes
  std::vector<Place> ended_;
  // With a limit: messages in flight from and to each NPU, and those that wait.
  std::vector<std::int32_t> leaving_, coming_;
  std::set<std::pair<Time, Item>> waiting_;
  bool look_again_ = false;
};

}  // namespace tacos::simulation
