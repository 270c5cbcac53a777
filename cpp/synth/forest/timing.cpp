#include "synth/forest/timing.hpp"

#include <algorithm>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

namespace tacos::forest {

namespace {

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

constexpr std::size_t kOffers = 8;  // of a port at one moment
constexpr std::size_t kLookInto =
    64;  // chunks of a port's queue, for one whose other links are free

using Job = std::int32_t;
using Rank = std::pair<Time, std::int32_t>;  // urgency and turn
using Offer = std::tuple<Time, Rank, Job>;   // the first are served first

enum class By { tail, way, work };

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
    busy_.resize(resources);
    for (const RouteId r : moves.route) {
      for (const auto& window : windows(r)) busy_[at(window.link)] += window.busy;
    }
  }

  Timing run(By by, const Progress& progress) {
    const auto urgency = urgencies(by != By::way);
    std::fill(free_.begin(), free_.end(), 0);
    left_ = busy_;
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
      waiting_[at(p)].emplace(Rank{urgency[at(job)], moves_.turn[at(job)]}, job);
      touch(p);
    };
    for (std::size_t job = 0; job < jobs_; ++job) {
      if (moves_.parent[job] < 0) ready(static_cast<Job>(job));
    }
    std::size_t done = 0;
    std::vector<Offer> offers;
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
      offers.clear();
      for (const auto p : touched) {
        is_touched[at(p)] = 0;
        if (free_[at(p)] <= now) offer(p, now, by, offers);
      }
      touched.clear();
      std::sort(offers.begin(), offers.end());
      for (const auto& [work, rank, job] : offers) {
        const RouteId r = moves_.route[at(job)];
        if (!fits(r, now)) continue;
        start(job, now, result);
        waiting_[at(port(r))].erase({rank, job});
        if (progress && ++done % 4096 == 0) {
          progress(static_cast<double>(done) / static_cast<double>(jobs_));
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

  // The first of a port's queue that could start now.
  void offer(std::int32_t p, Time now, By by, std::vector<Offer>& offers) const {
    std::size_t looked = 0, found = 0;
    for (auto i = waiting_[at(p)].begin(); i != waiting_[at(p)].end(); ++i) {
      if (++looked > kLookInto || found == kOffers) return;
      const RouteId r = moves_.route[at(i->second)];
      if (!fits(r, now)) continue;
      ++found;
      Time work = 0;
      if (by == By::work) {
        for (const auto& window : windows(r)) work -= left_[at(window.link)];
      }
      offers.emplace_back(work, i->first, i->second);
    }
  }

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
      left_[at(window.link)] -= window.busy;
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
    std::vector<Time> way(jobs_, 0);
    std::int64_t pieces = 1;
    for (const auto piece : moves_.piece) pieces = std::max<std::int64_t>(pieces, piece + 1);
    const Time period = busy_.empty() ? 0 : *std::max_element(busy_.begin(), busy_.end()) / pieces;
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
  std::vector<Time> busy_, left_;                        // how long each is, and still will be
  std::vector<std::set<std::pair<Rank, Job>>> waiting_;  // at each port, by urgency
  std::vector<std::vector<std::int32_t>> ports_;         // from which routes use each resource
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

Timing time_by_urgency(const Routes& routes, const ForestMoves& moves, std::int64_t bytes,
                       std::span<const std::int32_t> resource, Time quantum,
                       const Progress& progress) {
  Ports ports(routes, moves, bytes, resource, quantum);
  Timing best = ports.run(By::tail, part_of(progress, 0.0, 0.33));
  for (const By by : {By::way, By::work}) {
    auto other = ports.run(by, part_of(progress, by == By::way ? 0.33 : 0.67, 1.0));
    if (other.end < best.end) best = std::move(other);
  }
  return best;
}

}  // namespace tacos::forest
