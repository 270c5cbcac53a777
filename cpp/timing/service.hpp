// The service rule: when every leg of a list of transfers starts. This is the event loop of the model;
// retime and simulate use it.
//
// A leg is ready when what it waits for has arrived. At every moment the ready legs are tried in the order
// (ready time, position in the list); a leg starts if every link of it is free from the moment the
// chunk's head reaches that link, and takes each for its own window. Nothing is reserved ahead, and no leg
// starts in a gap before a window that is already taken.
//
// Dependencies, durations and records are the responsibility of the user, a class with these
// members (Ready is a callable `ready(item, leg)`, to be called for each leg that need not wait
// any more):
//   RouteId route(Item), ChunkId chunk(Item), std::int64_t bytes(Item)
//   std::span<const Item> gang(Item)         transfers that start together with this one, or none; those
//                                            that share a link start one after the other
//   bool in_time(gang, delays, least)        whether a gang may start with these delays; if not, raises the
//                                            least delays of members that would arrive too early
//   void begin(Ready)                        calls Ready for the legs that are ready at the beginning
//   Time not_before(Item, leg)               when the leg may start at the earliest
//   Time leaves(Item, Window, Time start)    when the link is free again
//   Time arrives(Item, leg, end, Time start, Time duration)
//                                            when the leg's chunk is whole at its end (of the last leg: at
//                                            destination number `end`); by rule it takes `duration`
//   void waits(Item, leg, Item before)       the leg waits for a link that `before` took last
//   void on_start(Item, leg, Time now, windows, Ready)
//   void on_arrival(Item, leg, end, Time now, Ready)
//   void prefetch(arrivals, i)               arrival i is about to be handled, then the ones after it
//   void prefetch_start(Item, bool again)    the transfer will be tried soon, very soon if `again`
//
// Cost: O(n log w) for n legs of which w are under way or waiting at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "model/routes.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "support/progress.hpp"
#include "support/work.hpp"
#include "timing/agenda.hpp"
#include "timing/crossings.hpp"

namespace tacos::service {

struct Options {
  Time quantum = 1;        // starts are multiples of it
  bool congestion = true;  // whether a link in use keeps others waiting
  std::size_t items = 0;   // expected number of transfers; if large, durations are tabulated
  std::size_t legs = 0;    // of all transfers, for the progress report
};

template <typename User>
class Service {
 public:
  Service(User& user, const Routes& routes, const Options& options, const Progress& progress)
      : user_(user),
        routes_(routes),
        options_(options),
        progress_(progress),
        crossings_(routes, options.items),
        whole_chunks_(routes.topology().spec().forwarding == Forwarding::store_and_forward),
        links_(at(routes.topology().links())),
        taken_until_(links_.size(), 0),
        lines_at_(crossings_.legs()) {
    Leg most = 1;
    for (RouteId r = 0; r < routes.count(); ++r)
      most = std::max(most, static_cast<Leg>(routes.legs(r)));
    leg_bits_ = std::bit_width(most - 1);
  }

  // Runs until no leg can start; returns the number of legs that started.
  std::size_t run() {
    const auto ready = [this](Item item, Leg leg) { make_ready(item, leg); };
    now_ = -1;  // so that legs that are ready at 0 belong to the first moment
    user_.begin(ready);
    Agenda::Moment moment;
    std::size_t handled = 0;
    while (!agenda_.empty()) {
      agenda_.take(moment);
      // In moments with many events, prefetching looks ahead within the moment.
      if (moment.arrivals.size() + moment.tries.size() < kAhead) {
        agenda_.look_ahead([this](Item item) { user_.prefetch_start(item, false); });
      }
      now_ = moment.time;
      if (++moment_ == kNone) invalid("the schedule has too many moments to follow");
      fresh_.clear();
      handling_arrivals_ = true;
      for (std::size_t i = 0; i < moment.arrivals.size(); ++i) {
        user_.prefetch(moment.arrivals, i);
        const auto [item, leg] = moment.arrivals[i];
        const auto last = static_cast<Leg>(routes_.legs(user_.route(item))) - 1;
        user_.on_arrival(item, std::min(leg, last), leg - std::min(leg, last), now_, ready);
      }
      handling_arrivals_ = false;
      for (auto& next : moment.tries) {
        if (next.who.moment == kNone) next.who.moment = moment_;
      }
      std::sort(moment.tries.begin(), moment.tries.end());
      sorter_.sort(fresh_);
      serve_moment(moment.tries);
      handled += moment.arrivals.size() + moment.tries.size() + fresh_.size();
      if (progress_ && handled > 0xfff) {
        spend(handled);
        progress_(static_cast<double>(started_) / static_cast<double>(options_.legs));
      }
    }
    spend(handled);
    return started_;
  }

 private:
  using Window = Routes::Window;
  static constexpr std::uint32_t kStarts = kNone - 1;  // in Try::queue: its links are taken already
  static constexpr int kArrangements = 8;  // to try for a gang, half of them in each order (chosen)
  // Trying legs touches scattered memory, which is prefetched this many items ahead.
  static constexpr std::size_t kAhead = 8;
  struct Link {
    Time free_at = 0;
    Item taken_by = kNone;
  };
  struct Turn {  // of a gang's member
    Time way;    // until its head reaches the last link
    std::size_t member, begin, end;
    auto operator<=>(const Turn&) const = default;
  };

  void spend(std::size_t& handled) const {
    progress_.spend(static_cast<double>(std::exchange(handled, 0)) * work::kEvent);
  }

  Time round_up(Time time) const {
    if (options_.quantum == 1) return time;
    return (time + options_.quantum - 1) / options_.quantum * options_.quantum;
  }

  void make_ready(Item item, Leg leg) {
    const Time earliest = user_.not_before(item, leg);
    if (earliest > now_) {
      agenda_.add(round_up(earliest), Try{{kNone, item, place(item, leg)}, kNone, 0});
    } else if (handling_arrivals_ && round_up(now_) == now_) {
      fresh_.push_back(std::uint64_t{item} << leg_bits_ | leg);
    } else {
      const Waiting who{moment_, item, place(item, leg)};
      // A leg that cannot start now cannot start later in this moment either, so its turn is skipped.
      const bool known = options_.congestion && crossings_.lasting();
      if (!known || !waits_for_link(who)) try_at(now_, {who, kNone, 0});
    }
  }
  Place place(Item item, Leg leg) const { return crossings_.leg_id(user_.route(item), leg); }

  void try_at(Time time, const Try& attempt) {
    time = round_up(time);
    if (time > now_) {
      agenda_.add(time, attempt);
    } else {
      late_.push_back(attempt);
      std::push_heap(late_.begin(), late_.end(), std::greater<>());
    }
  }

  // Tries all legs that may start at this moment, in the order of service: those that had to wait, those that
  // have just become ready, and those that become possible meanwhile.
  void serve_moment(std::span<const Try> tries) {
    std::size_t i = 0, j = 0;
    while (i < tries.size() || j < fresh_.size() || !late_.empty()) {
      // All transfers may be ready in the first moment.
      if (progress_ && ((i + j) & 0xffff) == 0xffff) {
        progress_(static_cast<double>(started_) / static_cast<double>(options_.legs));
      }
      Try next{};
      const Try* first = i < tries.size() ? &tries[i] : nullptr;
      if (j < fresh_.size()) {
        const auto item = item_of(fresh_[j]);
        const auto leg = static_cast<Leg>(fresh_[j] & ((std::uint64_t{1} << leg_bits_) - 1));
        next = {{moment_, item, place(item, leg)}, kNone, 0};
        if (first == nullptr || next < *first) first = &next;
      }
      if (!late_.empty() && (first == nullptr || late_.front() < *first)) {
        std::pop_heap(late_.begin(), late_.end(), std::greater<>());
        next = late_.back();
        late_.pop_back();
      } else if (first == &next) {
        ++j;
        if (j + kAhead < fresh_.size()) user_.prefetch_start(item_of(fresh_[j + kAhead]), false);
        if (j + kAhead / 2 < fresh_.size()) {
          user_.prefetch_start(item_of(fresh_[j + kAhead / 2]), true);
        }
      } else {
        next = tries[i++];
        if (i + kAhead < tries.size()) prefetch_try(tries[i + kAhead]);
        if (i + kAhead / 2 < tries.size()) prefetch_again(tries[i + kAhead / 2]);
      }
      attempt(next);
    }
  }
  void prefetch_try(const Try& next) const {
    user_.prefetch_start(next.who.item, false);
    if (next.queue < queues_.size()) fetch_ahead(&queues_[next.queue]);
    const auto id = lines_at_[next.who.place].id;
    if (id != kNone) fetch_ahead(&lines_[id]);
  }
  void prefetch_again(const Try& next) const {
    user_.prefetch_start(next.who.item, true);
    const auto id = lines_at_[next.who.place].id;
    if (id != kNone) lines_[id].prefetch();
  }
  Item item_of(std::uint64_t fresh) const { return static_cast<Item>(fresh >> leg_bits_); }

  void attempt(const Try& next) {
    const Waiting& who = next.who;
    if (next.queue == kStarts) {
      start_one(who);
      return;
    }
    if (!options_.congestion) {
      start(who, find_windows(who));
      return;
    }
    if (next.queue == kNone) {
      if (joins_as_first(who)) serve(who);
      return;
    }
    auto& queue = queues_[next.queue];
    if (queue.calls != next.call) return;  // another item heads the queue now
    queue.pop();
    called_ = next.queue;  // its new head is called once, below
    // A leg that was overtaken in its line is in a queue twice once it heads the line again. It is served
    // only while it heads its line; after its start it is in no line.
    const auto& line = lines_at_[who.place];
    if (stands_alone(who) || (line.id != kNone && line.first == who.item)) serve(who);
    called_ = kNone;
    call_head(next.queue);
  }

  Leg leg_of(const Waiting& who) const {
    return who.place - crossings_.leg_id(user_.route(who.item), 0);
  }
  std::span<const Item> gang_of(const Waiting& who) const {
    const auto gang = user_.gang(who.item);
    return gang.empty() || leg_of(who) > 0 ? std::span<const Item>() : gang;
  }

  // The windows of a leg; for the first leg of a gang those of all members, counted from the start of the
  // first. A member that shares a link with one before it starts when that one has left the link. Members with
  // the shortest way go first, so that others reach a shared link after them without waiting. If a sum would
  // arrive before another member has started, its member starts later; if that does not help, members with the
  // longest way go first.
  std::span<const Window> find_windows(const Waiting& who) {
    const auto gang = gang_of(who);
    if (gang.empty()) return crossing(who).windows;
    gang_windows_.clear();
    turns_.clear();
    for (std::size_t i = 0; i < gang.size(); ++i) {
      const auto begin = gang_windows_.size();
      routes_.windows(user_.route(gang[i]), 0, user_.bytes(gang[i]), gang_windows_);
      Time way = 0;
      for (auto w = begin; w < gang_windows_.size(); ++w) {
        way = std::max(way, gang_windows_[w].offset);
      }
      turns_.push_back({way, i, begin, gang_windows_.size()});
    }
    for (int attempt = 0; attempt < kArrangements; ++attempt) {
      if (attempt == 0 || attempt == kArrangements / 2) least_.assign(gang.size(), 0);
      if (attempt == kArrangements / 2) {
        for (Turn& turn : turns_) turn.way = -turn.way;
      }
      arrange();
      in_time_ = user_.in_time(gang, delays_, least_);
      if (in_time_) break;
      if (attempt + 1 < kArrangements) {
        for (const Turn& turn : turns_) {
          for (Window& window : windows_of(turn)) window.offset -= delays_[turn.member];
        }
      }
    }
    return gang_windows_;
  }
  std::span<Window> windows_of(const Turn& turn) {
    return std::span(gang_windows_).subspan(turn.begin, turn.end - turn.begin);
  }
  // Lets the members of a gang start one after the other where they share links, none before its least delay.
  void arrange() {
    std::sort(turns_.begin(), turns_.end());
    delays_.resize(turns_.size());
    for (const Turn& turn : turns_) {
      Time delay = least_[turn.member];
      for (const Window& window : windows_of(turn)) {
        delay = std::max(delay, taken_until_[at(window.link)] - window.offset);
      }
      delays_[turn.member] = delay = round_up(delay);
      for (Window& window : windows_of(turn)) {
        window.offset += delay;
        taken_until_[at(window.link)] = window.offset + window.busy;
      }
    }
    for (const Window& window : gang_windows_) taken_until_[at(window.link)] = 0;
  }
  Crossings::Crossing crossing(const Waiting& who) {
    return crossings_.of(who.place, user_.bytes(who.item),
                         [&] { return std::pair(user_.route(who.item), leg_of(who)); });
  }

  // Starts a leg that is first in its line, and then those behind it. A leg that cannot start waits for
  // the link that becomes free last.
  void serve(Waiting who) {
    while (true) {
      const auto windows = find_windows(who);
      if (const Window* blocking = last_taken(windows)) {
        wait(who, *blocking);
        return;
      }
      const bool others = leave_line(who);  // before its start, which may make others join the line
      start(who, windows);
      if (!others) return;
      const auto first = lines_[lines_at_[who.place].id].top();
      who.moment = static_cast<std::uint32_t>(first >> 32);
      who.item = static_cast<Item>(first);
    }
  }

  // Removes the first leg of a line; returns whether others remain.
  bool leave_line(const Waiting& who) {
    Line* line = line_of(who);
    if (line == nullptr) return false;
    auto& here = lines_at_[who.place];
    line->pop();
    if (line->empty()) {
      spare_lines_.push_back(here.id);
      here.id = kNone;
      return false;
    }
    here.first = static_cast<Item>(line->top());
    return true;
  }

  // Adds a leg to the line for its links, if there is one; returns false if others are before it.
  bool joins_as_first(const Waiting& who) {
    Line* line = line_of(who);
    if (line == nullptr) return true;
    if (!line->push(who.key())) return false;
    lines_at_[who.place].first = who.item;
    return true;
  }

  // Lets a leg wait if it cannot start now; returns whether it waits.
  bool waits_for_link(const Waiting& who) {
    const Window* blocking = last_taken(find_windows(who));
    if (blocking == nullptr) return false;
    if (joins_as_first(who)) wait(who, *blocking);
    return true;
  }

  // The window whose link becomes free last, or nullptr if all links are free.
  const Window* last_taken(std::span<const Window> windows) const {
    Time earliest = now_;
    const Window* blocking = nullptr;
    for (const auto& window : windows) {
      const Time possible = links_[at(window.link)].free_at - window.offset;
      if (possible <= earliest) continue;
      earliest = possible;
      blocking = &window;
    }
    return blocking;
  }

  void wait(const Waiting& who, const Window& blocking) {
    user_.waits(who.item, leg_of(who), links_[at(blocking.link)].taken_by);
    stand_in_line(who);
    park(who, blocking);
  }

  // Legs over one route have the same links, so only the first of them is worth trying: those
  // behind it stand in line. A gang stands alone, since it has several routes. So does a tree under
  // store-and-forward, since its offsets depend on the size of the chunk.
  bool stands_alone(const Waiting& who) const {
    if (whole_chunks_ && routes_.kind(user_.route(who.item)) != RouteKind::path) return true;
    return !gang_of(who).empty();
  }
  Line* line_of(const Waiting& who) {
    const auto id = lines_at_[who.place].id;
    return id == kNone || stands_alone(who) ? nullptr : &lines_[id];
  }
  void stand_in_line(const Waiting& who) {
    auto& here = lines_at_[who.place];
    if (here.id != kNone || stands_alone(who)) return;
    if (spare_lines_.empty()) {
      spare_lines_.push_back(static_cast<std::uint32_t>(lines_.size()));
      lines_.emplace_back();
    }
    here.id = spare_lines_.back();
    here.first = who.item;
    lines_[here.id].push(who.key());
    spare_lines_.pop_back();
  }

  void start(const Waiting& who, std::span<const Window> windows) {
    for (const auto& window : windows) {
      Link& link = links_[at(window.link)];
      link.free_at = std::max(link.free_at, user_.leaves(who.item, window, now_));
      link.taken_by = who.item;
    }
    const auto gang = gang_of(who);
    if (gang.empty()) {
      start_one(who);
      return;
    }
    // Moved out, since a start may ask for the windows of another gang.
    const auto delays = std::exchange(delays_, {});
    if (!in_time_) {
      throw InfeasibleError("transfers of one step exchange chunk " +
                            std::to_string(user_.chunk(who.item)) +
                            " over shared links: one would arrive before another has left");
    }
    for (std::size_t i = 0; i < gang.size(); ++i) {
      const Waiting member{who.moment, gang[i], place(gang[i], 0)};
      if (delays[i] == 0) {
        start_one(member);
      } else {
        agenda_.add(now_ + delays[i], Try{member, kStarts, 0});
      }
    }
  }

  void start_one(const Waiting& who) {
    ++started_;
    const auto found = crossing(who);
    const Leg leg = leg_of(who);
    for (std::size_t end = 0; end < found.times.size(); ++end) {
      const Time time = user_.arrives(who.item, leg, end, now_, found.times[end]);
      if (time > kLongestSchedule) too_long();
      agenda_.add(time, Arrival{who.item, leg + static_cast<Leg>(end)});
    }
    user_.on_start(who.item, leg, now_, found.windows,
                   [this](Item next, Leg next_leg) { make_ready(next, next_leg); });
  }

  // Heads that wait for the same link are retried one at a time, which keeps retries few.
  void park(const Waiting& who, const Window& blocking) {
    auto& known = lines_at_[who.place].queue;
    if (known == kNone || queues_[known].link != blocking.link ||
        queues_[known].offset != blocking.offset) {
      const auto [found, added] = queue_at_.try_emplace({blocking.link, blocking.offset},
                                                        static_cast<std::uint32_t>(queues_.size()));
      if (added) queues_.push_back({blocking.link, 0, blocking.offset});
      known = found->second;
    }
    auto& queue = queues_[known];
    queue.push(who);
    if (known != called_ && queue.head.item == who.item) call_head(known);
  }

  void call_head(std::uint32_t id) {
    auto& queue = queues_[id];
    ++queue.calls;
    if (queue.empty()) return;
    const Time when = std::max(now_, links_[at(queue.link)].free_at - queue.offset);
    try_at(when, {queue.head, id, queue.calls});
  }

  User& user_;
  const Routes& routes_;
  const Options options_;
  const Progress& progress_;
  Crossings crossings_;
  const bool whole_chunks_;
  std::vector<Link> links_;
  std::vector<Window> gang_windows_;
  std::vector<Turn> turns_;        // of the members of the gang in gang_windows_
  std::vector<Time> delays_;       // of these members
  std::vector<Time> least_;        // lower bounds of the delays
  bool in_time_ = true;            // whether each member starts before another one's sum arrives
  std::vector<Time> taken_until_;  // per link; used by arrange() only
  struct LineAt {
    std::uint32_t id = kNone;  // kNone if the line is empty
    Item first = kNone;
    std::uint32_t queue = kNone;  // in which its head waited last
  };
  std::vector<LineAt> lines_at_;  // per leg of a route
  std::vector<Line> lines_;
  std::vector<std::uint32_t> spare_lines_;
  std::vector<Queue> queues_;
  std::map<std::pair<LinkId, Time>, std::uint32_t> queue_at_;
  Agenda agenda_;
  Time now_ = 0;
  std::uint32_t moment_ = 0;
  std::size_t started_ = 0;
  std::uint32_t called_ = kNone;  // the queue whose head is being served
  bool handling_arrivals_ = false;
  std::vector<std::uint64_t> fresh_;  // legs (item, leg) that arrivals of this moment made ready
  int leg_bits_ = 0;
  std::vector<Try> late_;  // a heap: legs that became possible while others started
  Sorter sorter_;
};

}  // namespace tacos::service
