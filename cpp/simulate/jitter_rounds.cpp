#include "simulate/jitter_rounds.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "simulate/calendar.hpp"
#include "simulate/delays.hpp"
#include "simulate/reader_groups.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"

namespace tacos::simulation {

namespace {

using Number = ReaderGroups::Number;

// The exponent of the largest power of two that no transfer is shorter than; nullopt if some take no time.
std::optional<int> round_bits(const Schedule& schedule, const Routes& routes) {
  const auto& collective = schedule.collective();
  auto least = collective.uniform_bytes();
  if (least <= 0) {
    least = std::numeric_limits<std::int64_t>::max();
    for (const ChunkId chunk : schedule.stored().chunk) {
      least = std::min(least, collective.bytes(chunk));
    }
  }
  Time shortest = kLongestSchedule;
  for (RouteId r = 0; r < routes.count(); ++r) {
    shortest = std::min(shortest, routes.leg_time(r, 0, least, 0));
  }
  if (least <= 0 || shortest <= 0) return std::nullopt;
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(shortest))) - 1;
}

struct Waiting {
  Time ready;
  ReaderGroups::Task task;  // here, since its own place in memory is far when it starts
  Number number;
  bool operator<(const Waiting& other) const {
    return std::tie(ready, task.start, task.transfer) <
           std::tie(other.ready, other.task.start, other.task.transfer);
  }
};

// The transfers that wait for a link. What becomes ready in a round comes after what was ready before it.
class LinkQueue {
 public:
  Time free = 0;        // when the link is free
  bool active = false;  // whether it is to be served in this round
  bool called = false;  // whether an event waits for when it is free

  bool empty() const { return waiting_.empty(); }
  const Waiting& front() const { return waiting_[first_]; }
  void prefetch_front() const { fetch_ahead(waiting_.data() + first_); }
  void prefetch_end() const { fetch_ahead(waiting_.data() + waiting_.size()); }

  // Within a round, in any order; sort() comes before front().
  void push(const Waiting& waiting) { waiting_.push_back(waiting); }
  void sort() {
    const auto fresh = waiting_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    if (waiting_.end() - fresh > kFew) {
      std::sort(fresh, waiting_.end());
    } else {
      for (auto i = fresh; i < waiting_.end(); ++i) {
        for (auto j = i; j > fresh && *j < *(j - 1); --j) std::swap(*j, *(j - 1));
      }
    }
    sorted_ = waiting_.size();
  }
  void pop() {
    if (++first_ == waiting_.size()) {
      waiting_.clear();
      first_ = sorted_ = 0;
    } else if (first_ >= 16 && 2 * first_ >= waiting_.size()) {
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(first_));
      sorted_ -= first_;
      first_ = 0;
    }
  }

 private:
  static constexpr std::ptrdiff_t kFew = 8;  // to sort by insertion (chosen)
  std::vector<Waiting> waiting_;
  std::size_t first_ = 0, sorted_ = 0;  // what leaves next, and the end of what is sorted
};

class Rounds {
 public:
  Rounds(const Schedule& schedule, const Routes& routes, const Options& options, int round_bits,
         const Progress& progress)
      : schedule_(schedule),
        routes_(routes),
        options_(options),
        progress_(progress),
        delays_(schedule, routes, options),
        delays_ends_(delays_.at_ends()),
        uniform_bytes_(schedule.collective().uniform_bytes()),
        groups_(schedule, progress),
        lanes_(at(schedule.lanes())),
        links_(at(routes.topology().links())),
        calendar_(round_bits),
        result_(routes.topology(), schedule.topology().npus()) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const auto route = static_cast<RouteId>(lane);
      const NodeId node = routes.destinations(route)[0];
      lanes_[lane] = {.link = routes.links(route)[0],
                      .npu = routes.topology().is_npu(node) ? node : -1,
                      .ready = delays_.sources_ready(route)};
    }
  }

  std::optional<Result> run() {
    if (!groups_.complete()) return std::nullopt;
    for (const Number number : groups_.initial()) {
      calendar_.add(lanes_[groups_[number].lane].ready, {kReady, number});
    }
    std::size_t told = 0;
    while (calendar_.take(events_)) {
      end_ = calendar_.end();
      if (!arrive()) return std::nullopt;
      for (std::size_t i = 0; i < active_.size(); ++i) {
        if (i + 2 * kAhead < active_.size()) fetch_ahead(&links_[active_[i + 2 * kAhead]]);
        if (i + kAhead < active_.size()) links_[active_[i + kAhead]].prefetch_front();
        if (i + kAhead / 2 < active_.size()) prefetch_start(links_[active_[i + kAhead / 2]]);
        if (!serve(active_[i])) return std::nullopt;
      }
      active_.clear();
      if (progress_ && started_ - told > 0xffff) {
        told = started_;
        progress_(static_cast<double>(started_) / static_cast<double>(groups_.size()));
      }
    }
    if (started_ < groups_.size()) return std::nullopt;
    return std::move(result_);
  }

 private:
  static constexpr std::size_t kAhead = 16;
  // Instead of the turn of a write: a transfer is ready, or a link is free.
  static constexpr std::uint32_t kReady = ReaderGroups::kFree - 1, kLinkFree = kReady - 1;

  struct Event {
    std::uint32_t write;  // the turn of a write, kReady or kLinkFree
    std::uint32_t what;   // a transfer or a link
  };
  using Entry = Calendar<Event>::Entry;
  struct Lane {
    LinkId link = 0;
    NodeId npu = -1;  // the destination, or -1 if that is a switch
    Time ready = 0;   // from when on its source is there
    // Of a chunk of `bytes`:
    std::int64_t bytes = -1;
    Time time = 0, busy = 0;
  };

  // Lets transfers that become ready in this round join the queues of their links.
  bool arrive() {
    sums_.clear();
    for (std::size_t i = 0; i < events_.size(); ++i) {
      if (i + 3 * kAhead < events_.size()) prefetch(events_[i + 3 * kAhead].event);
      prefetch_readers(events_, i, false);
      const auto& [time, event] = events_[i];
      if (event.write == kReady) {
        join(event.what, time);
      } else if (event.write == kLinkFree) {
        links_[event.what].called = false;
        activate(event.what);
      } else if (groups_.others_write(event.write)) {
        sums_.push_back(events_[i]);
      } else if (!write(event.write, time)) {
        return false;
      }
    }
    std::ranges::sort(sums_, {}, [](const Entry& entry) { return entry.time; });
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      prefetch_readers(sums_, i, true);
      if (!write(sums_[i].event.write, sums_[i].time)) return false;
    }
    return true;
  }
  void prefetch(const Event& event) const {
    if (event.write < kLinkFree) groups_.prefetch_write(event.write);
    if (event.write == kReady) fetch_ahead(&groups_[event.what]);
  }
  // Fetches what the writes after the i-th touch. Most sums of which others are to come make nothing ready.
  void prefetch_readers(const std::vector<Entry>& events, std::size_t i, bool sums) const {
    const auto ahead = [&](std::size_t count, const auto& visit) {
      if (i + count >= events.size()) return;
      const auto turn = events[i + count].event.write;
      if (turn < kLinkFree && (sums || !groups_.others_write(turn))) visit(turn);
    };
    const auto each_link = [&](std::uint32_t turn, const auto& visit) {
      groups_.each_reader(
          turn, [&](Number number) { visit(links_[at(lanes_[groups_[number].lane].link)]); });
    };
    ahead(2 * kAhead, [&](std::uint32_t turn) { groups_.prefetch_readers(turn); });
    ahead(kAhead, [&](std::uint32_t turn) {
      each_link(turn, [](const LinkQueue& link) { fetch_ahead(&link); });
    });
    ahead(kAhead / 2, [&](std::uint32_t turn) {
      each_link(turn, [](const LinkQueue& link) { link.prefetch_end(); });
    });
  }
  // What the start of the next transfer touches.
  void prefetch_start(const LinkQueue& link) const {
    if (!link.empty()) groups_.prefetch_read(link.front().task.reads);
  }
  bool write(std::uint32_t turn, Time time) {
    return groups_.write(turn, [&](Number number) {
      const Time ready = lanes_[groups_[number].lane].ready;
      if (ready < end_) {
        join(number, std::max(ready, time));
      } else {
        calendar_.add(ready, {kReady, number});
      }
    });
  }
  void join(Number number, Time time) {
    const auto& task = groups_[number];
    const auto link = static_cast<std::uint32_t>(lanes_[task.lane].link);
    links_[link].push({time, task, number});
    activate(link);
  }
  void activate(std::uint32_t link) {
    if (!std::exchange(links_[link].active, true)) active_.push_back(link);
  }

  // Starts what a link can serve in this round; returns false if a time is too long.
  bool serve(std::uint32_t id) {
    LinkQueue& link = links_[id];
    link.active = false;
    link.sort();
    while (!link.empty()) {
      const Waiting next = link.front();
      const Time start = options_.congestion ? std::max(link.free, next.ready) : next.ready;
      if (start >= end_) {
        if (!std::exchange(link.called, true)) calendar_.add(start, {kLinkFree, id});
        return true;
      }
      link.pop();
      if (!this->start(link, next, start)) return false;
    }
    return true;
  }

  bool start(LinkQueue& link, const Waiting& who, Time start) {
    const auto& task = who.task;
    Lane& lane = lanes_[task.lane];
    const auto bytes = uniform_bytes_ > 0
                           ? uniform_bytes_
                           : schedule_.collective().bytes(schedule_.stored().chunk[task.transfer]);
    if (lane.bytes != bytes) measure(lane, static_cast<RouteId>(task.lane), bytes);
    link.free = start + lane.busy;
    result_.busy[at(lane.link)] += lane.busy;
    Time arrival = start + lane.time;
    if (delays_ends_) arrival += delays_.at_end({task.lane, task.transfer, bytes}, 0, 0);
    if (arrival > kLongestSchedule) return false;
    if (lane.npu >= 0) {
      auto& finish = result_.finish[at(lane.npu)];
      finish = std::max(finish, arrival);
    }
    if (task.writes != ReaderGroups::kFree) calendar_.add(arrival, {task.writes, who.number});
    groups_.read(task.reads);
    ++started_;
    return true;
  }
  void measure(Lane& lane, RouteId route, std::int64_t bytes) {
    windows_.clear();
    routes_.windows(route, 0, bytes, windows_);
    lane.bytes = bytes;
    lane.busy = windows_[0].busy;
    lane.time = routes_.leg_time(route, 0, bytes, 0);
  }

  const Schedule& schedule_;
  const Routes& routes_;
  const Options& options_;
  const Progress& progress_;
  const Delays delays_;
  const bool delays_ends_;
  const std::int64_t uniform_bytes_;  // of every chunk, or 0
  ReaderGroups groups_;
  std::vector<Lane> lanes_;
  std::vector<LinkQueue> links_;
  Calendar<Event> calendar_;
  Time end_ = 0;  // of the current round
  std::size_t started_ = 0;
  std::vector<Entry> events_, sums_;
  std::vector<std::uint32_t> active_;  // links to serve in this round
  std::vector<Routes::Window> windows_;
  Result result_;
};

}  // namespace

std::optional<Result> jitter_in_rounds(const Schedule& schedule, const Routes& routes,
                                       const Options& options, const Progress& progress) {
  if (options.timing != Timing::first_come || options.jitter == 0 || options.record ||
      !options.changes.empty() || routes.count() == 0) {
    return std::nullopt;
  }
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const RouteId own = schedule.stored().lane_route[at(lane)];
    if (routes.links(lane).size() != 1 || routes.kind(lane) != RouteKind::path ||
        schedule.routes().kind(own) != RouteKind::path || schedule.routes().legs(own) != 1) {
      return std::nullopt;
    }
  }
  const auto bits = round_bits(schedule, routes);
  if (!bits) return std::nullopt;
  return Rounds(schedule, routes, options, *bits, progress).run();
}

}  // namespace tacos::simulation
