#include "synth/forest/timing.hpp"

#include <algorithm>
#include <queue>
#include <set>
#include <utility>

namespace tacos::forest {

namespace {

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

constexpr std::size_t kLookInto =
    64;  // chunks of a port's queue, for one whose other links are free

using Job = std::int32_t;

class Ports {
 public:
  Ports(const Routes& routes, const ForestMoves& moves, std::int64_t bytes,
        std::span<const std::int32_t> resource, Time quantum)
      : moves_(moves), quantum_(quantum), jobs_(moves.route.size()) {
    const auto resources =
        resource.empty() ? 0 : at(*std::max_element(resource.begin(), resource.end())) + 1;
    for (RouteId r = 0; r < routes.count(); ++r) {
      window_begin_.push_back(windows_.size());
      routes.windows(r, 0, bytes, windows_);
      duration_.push_back(routes.leg_time(r, 0, bytes));
    }
    window_begin_.push_back(windows_.size());
    for (auto& window : windows_) {
      window.link = resource[at(window.link)];
      // Room for rounding on either side, so that times can also be mirrored.
      if (quantum > 1) window.busy += 2 * quantum;
    }
    free_.resize(resources);
    waiting_.resize(resources);
    ports_.resize(resources);
    for (RouteId r = 0; r < routes.count(); ++r) {
      for (const auto& window : windows(r)) ports_[at(window.link)].push_back(port(r));
    }
    for (auto& ports : ports_) {
      std::sort(ports.begin(), ports.end());
      ports.erase(std::unique(ports.begin(), ports.end()), ports.end());
    }
    find_children();
  }

  Timing run(bool by_tail, const Progress& progress) {
    const auto urgency = urgencies(by_tail);
    std::fill(free_.begin(), free_.end(), 0);
    Timing result;
    result.start.assign(jobs_, 0);
    events_ = {};
    std::vector<std::int32_t> touched;
    std::vector<std::uint8_t> is_touched(free_.size(), 0);
    const auto touch = [&](std::int32_t p) {
      if (!std::exchange(is_touched[at(p)], 1)) touched.push_back(p);
    };
    const auto ready = [&](Job job) {
      const auto p = port(moves_.route[at(job)]);
      waiting_[at(p)].emplace(urgency[at(job)], job);
      touch(p);
    };
    for (std::size_t job = 0; job < jobs_; ++job) {
      if (moves_.parent[job] < 0) ready(static_cast<Job>(job));
    }
    std::size_t done = 0;
    std::vector<std::pair<Time, std::int32_t>> heads;
    for (Time now = 0;; now = events_.top().time) {
      while (!events_.empty() && events_.top().time <= now) {
        const auto event = events_.top();
        events_.pop();
        if (event.job >= 0) {
          for (auto i = child_begin_[at(event.job)]; i < child_begin_[at(event.job) + 1]; ++i) {
            ready(children_[at(i)]);
          }
        } else {
          for (const auto p : ports_[at(event.resource)]) touch(p);
        }
      }
      heads.clear();
      for (const auto p : touched) {
        is_touched[at(p)] = 0;
        if (!waiting_[at(p)].empty()) heads.emplace_back(waiting_[at(p)].begin()->first, p);
      }
      touched.clear();
      std::sort(heads.begin(), heads.end());
      for (const auto& [first, p] : heads) {
        auto& queue = waiting_[at(p)];
        std::size_t looked = 0;
        for (auto i = queue.begin(); i != queue.end() && looked < kLookInto; ++looked) {
          if (!fits(moves_.route[at(i->second)], now)) {
            ++i;
            if (free_[at(p)] > now) break;
            continue;
          }
          start(i->second, now, result);
          i = queue.erase(i);
          if (progress && ++done % 4096 == 0) {
            progress(static_cast<double>(done) / static_cast<double>(jobs_));
          }
        }
      }
      if (events_.empty()) break;
    }
    return result;
  }

 private:
  struct Event {
    Time time;
    Job job;  // that arrives, or -1: then a resource is free
    std::int32_t resource;
    bool operator>(const Event& other) const { return time > other.time; }
  };

  std::span<const Routes::Window> windows(RouteId r) const {
    return std::span(windows_).subspan(window_begin_[at(r)],
                                       window_begin_[at(r) + 1] - window_begin_[at(r)]);
  }
  std::int32_t port(RouteId r) const { return windows_[window_begin_[at(r)]].link; }

  bool fits(RouteId r, Time now) const {
    return std::ranges::all_of(windows(r), [&](const Routes::Window& window) {
      return free_[at(window.link)] <= now + window.offset;
    });
  }

  void wake(Time time, Job job, std::int32_t resource) {
    events_.push({(time + quantum_ - 1) / quantum_ * quantum_, job, resource});
  }

  void start(Job job, Time now, Timing& result) {
    const RouteId r = moves_.route[at(job)];
    for (const auto& window : windows(r)) {
      free_[at(window.link)] = now + window.offset + window.busy;
      // A route that reaches the link as late, or at once.
      wake(now + window.busy, -1, window.link);
      if (window.offset > 0) wake(now + window.offset + window.busy, -1, window.link);
    }
    result.start[at(job)] = now;
    const Time arrival = now + duration_[at(r)];
    result.end = std::max(result.end, arrival);
    if (child_begin_[at(job)] < child_begin_[at(job) + 1]) wake(arrival, job, 0);
  }

  void find_children() {
    child_begin_.assign(jobs_ + 1, 0);
    for (const Job above : moves_.parent) {
      if (above >= 0) ++child_begin_[at(above) + 1];
    }
    for (std::size_t i = 0; i < jobs_; ++i) child_begin_[i + 1] += child_begin_[i];
    children_.resize(at(child_begin_.back()));
    auto next = child_begin_;
    for (std::size_t job = 0; job < jobs_; ++job) {
      const Job above = moves_.parent[job];
      if (above >= 0) children_[at(next[at(above)]++)] = static_cast<Job>(job);
    }
  }

  std::vector<Time> urgencies(bool by_tail) const {
    std::vector<Time> busy(free_.size(), 0), way(jobs_, 0);
    std::int64_t pieces = 1;
    for (std::size_t job = 0; job < jobs_; ++job) {
      for (const auto& window : windows(moves_.route[job])) busy[at(window.link)] += window.busy;
      pieces = std::max<std::int64_t>(pieces, moves_.piece[job] + 1);
    }
    const Time period = busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end()) / pieces;
    if (by_tail) {
      for (std::size_t job = jobs_; job-- > 0;) {
        way[job] += duration_[at(moves_.route[job])];
        if (moves_.parent[job] < 0) continue;
        auto& above = way[at(moves_.parent[job])];
        above = std::max(above, way[job]);
      }
    } else {
      for (std::size_t job = 0; job < jobs_; ++job) {
        if (moves_.parent[job] < 0) continue;
        const auto above = at(moves_.parent[job]);
        way[job] = way[above] + duration_[at(moves_.route[above])];
      }
    }
    for (std::size_t job = 0; job < jobs_; ++job) {
      way[job] = moves_.piece[job] * period + (by_tail ? -way[job] : way[job]);
    }
    return way;
  }

  const ForestMoves& moves_;
  Time quantum_;
  std::size_t jobs_;
  std::vector<Routes::Window> windows_;  // of each route, with resources as links
  std::vector<std::size_t> window_begin_;
  std::vector<Time> duration_;  // of each route
  std::vector<Job> children_;
  std::vector<std::int64_t> child_begin_;
  std::vector<Time> free_;                               // when each resource is
  std::vector<std::set<std::pair<Time, Job>>> waiting_;  // at each port, by urgency
  std::vector<std::vector<std::int32_t>> ports_;         // from which routes use each resource
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

Timing time_by_urgency(const Routes& routes, const ForestMoves& moves, std::int64_t bytes,
                       std::span<const std::int32_t> resource, Time quantum,
                       const Progress& progress) {
  Ports ports(routes, moves, bytes, resource, quantum);
  auto first = ports.run(true, part_of(progress, 0.0, 0.5));
  auto second = ports.run(false, part_of(progress, 0.5, 1.0));
  return second.end < first.end ? second : first;
}

}  // namespace tacos::forest
