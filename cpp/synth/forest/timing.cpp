#include "synth/forest/timing.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "support/index.hpp"
#include "synth/forest/port_matching.hpp"

namespace tacos::forest {

namespace {

using Job = std::int32_t;
using Rank = std::int32_t;  // of a job in the order of urgency, turn, and number

// The most urgent job of a class; the first offers are served first.
struct Offer {
  Time work;
  Rank rank;
  std::int32_t of;
  bool operator<(const Offer& other) const {
    return work != other.work ? work < other.work : rank < other.rank;
  }
};

struct Ranking {
  std::vector<Rank> rank;  // of each job
  std::vector<Job> job;    // of each rank
};

enum class By { tail, way, work };
struct Rule {
  By by;
  bool rearranged = false;
};
// The first rules are the best if there are many hops; the others would take too long then.
constexpr Rule kRules[] = {{By::work, true}, {By::tail, true}, {By::tail}, {By::way}, {By::work}};
constexpr std::size_t kFew = 4, kManyJobs = 50'000;
constexpr Time kNever = std::numeric_limits<Time>::max();
constexpr double kGoodEnough = 1.002;  // times what the busiest resource takes

class Ports {
 public:
  Ports(const Routes& routes, const ForestMoves& moves, std::int64_t bytes,
        std::span<const std::int32_t> resource, Time quantum)
      : moves_(moves), quantum_(quantum), jobs_(moves.route.size()) {
    find_classes(routes, bytes, resource);
    find_children();
    busy_.resize(users_.size());
    for (const RouteId r : moves.route) {
      for (const auto& window : windows(class_[at(r)])) busy_[at(window.link)] += window.busy;
    }
    for (std::size_t c = 0; c < waiting_.size(); ++c) {
      for (const auto& window : windows(static_cast<std::int32_t>(c))) {
        overhang_ = std::max(overhang_, window.offset + window.busy - duration_[c]);
      }
      const auto used = std::span(used_).subspan(window_begin_[c], window_count(c));
      port_.push_back(*std::max_element(
          used.begin(), used.end(), [&](auto a, auto b) { return busy_[at(a)] < busy_[at(b)]; }));
    }
  }

  bool alone() const { return windows_.size() == waiting_.size(); }  // each hop uses one resource
  // Whether no two classes use the same resource: then the work that resources have left does not matter.
  bool separate() const {
    return alone() &&
           std::ranges::all_of(users_, [](const auto& users) { return users.size() <= 1; });
  }
  Time busiest() const { return busy_.empty() ? 0 : *std::max_element(busy_.begin(), busy_.end()); }

  // Starts by one rule. The run ends early, without starts, once it is clear that it takes at least until `limit`.
  Timing run(const Rule& rule, Time limit, const Progress& progress) {
    const Ranking& order = ranking(rule.by != By::way);
    free_.assign(users_.size(), 0);
    left_ = busy_;
    for (auto& jobs : waiting_) jobs = {};
    events_ = {};
    PortMatching matching(users_.size(), window_begin_, used_, port_);
    Timing result;
    result.start.assign(jobs_, 0);
    std::vector<std::int32_t> touched, open;
    std::vector<std::uint8_t> is_touched(waiting_.size(), 0);
    const auto touch = [&](std::int32_t c) {
      if (!waiting_[at(c)].empty() && !std::exchange(is_touched[at(c)], 1)) touched.push_back(c);
    };
    const auto ready = [&](Job job) {
      const auto c = class_[at(moves_.route[at(job)])];
      waiting_[at(c)].push(order.rank[at(job)]);
      touch(c);
    };
    std::vector<std::size_t> pending(jobs_);
    for (std::size_t job = 0; job < jobs_; ++job) {
      pending[job] = moves_.after_of(job).size();
      if (pending[job] == 0) ready(static_cast<Job>(job));
    }
    std::size_t done = 0;
    std::vector<Offer> offers;
    for (Time now = 0;; now = events_.top().time) {
      while (!events_.empty() && events_.top().time <= now) {
        const auto [time, what, number] = events_.top();
        events_.pop();
        if (what == What::arrives) {
          for (const Job next : children(number)) {
            if (--pending[at(next)] == 0) ready(next);
          }
        } else {
          for (const auto c : users_[at(number)]) touch(c);
        }
      }
      offers.clear();
      for (const auto c : touched) {
        is_touched[at(c)] = 0;
        if (fits(c, now)) offers.push_back({work(c, rule.by), waiting_[at(c)].top(), c});
      }
      touched.clear();
      std::sort(offers.begin(), offers.end());
      open.clear();
      for (const auto& offer : offers) open.push_back(offer.of);
      for (const auto c : matching.choose(open, rule.rearranged)) {
        start(order.job[at(waiting_[at(c)].top())], now, result);
        waiting_[at(c)].pop();
        if (progress && ++done % 4096 == 0) {
          progress(static_cast<double>(done) / static_cast<double>(jobs_));
        }
      }
      if (result.end >= limit) return {{}, limit};
      if (events_.empty()) break;
    }
    return result;
  }

 private:
  enum class What : std::uint8_t { arrives, is_free };
  struct Event {
    Time time;
    What what;
    std::int32_t number;  // of a job, or of a resource
    bool operator>(const Event& other) const { return time > other.time; }
  };

  std::size_t window_count(std::size_t c) const { return window_begin_[c + 1] - window_begin_[c]; }
  std::span<const Routes::Window> windows(std::int32_t c) const {
    return std::span(windows_).subspan(window_begin_[at(c)], window_count(at(c)));
  }
  std::span<const Job> children(Job job) const {
    const auto begin = at(child_begin_[at(job)]);
    return std::span(children_).subspan(begin, at(child_begin_[at(job) + 1]) - begin);
  }

  bool fits(std::int32_t c, Time now) const {
    return std::ranges::all_of(windows(c), [&](const Routes::Window& window) {
      return free_[at(window.link)] <= now + window.offset;
    });
  }

  // The more its resources still have to do, the earlier it is served.
  Time work(std::int32_t c, By by) const {
    Time result = 0;
    if (by != By::work) return 0;
    for (const auto& window : windows(c)) result -= left_[at(window.link)];
    return result;
  }

  void wake(Time time, What what, std::int32_t number) {
    if (quantum_ > 1) time = (time + quantum_ - 1) / quantum_ * quantum_;
    events_.push({time, what, number});
  }

  void start(Job job, Time now, Timing& result) {
    const auto c = class_[at(moves_.route[at(job)])];
    for (const auto& window : windows(c)) {
      // The resource begins no earlier with what is left, and the last of it does not arrive before it ends.
      result.end = std::max(result.end, now + window.offset + left_[at(window.link)] - overhang_);
      const Time free = now + window.offset + window.busy;
      free_[at(window.link)] = free;
      left_[at(window.link)] -= window.busy;
      // The later a route reaches the link, the earlier it may start.
      for (const Time offset : offsets_[at(window.link)]) {
        if (free - offset > now) wake(free - offset, What::is_free, window.link);
      }
    }
    result.start[at(job)] = now;
    const Time arrival = now + duration_[at(c)];
    result.end = std::max(result.end, arrival);
    if (!children(job).empty()) wake(arrival, What::arrives, job);
  }

  void find_classes(const Routes& routes, std::int64_t bytes,
                    std::span<const std::int32_t> resource) {
    const auto resources =
        resource.empty() ? 0 : at(*std::max_element(resource.begin(), resource.end())) + 1;
    using Key = std::vector<std::tuple<LinkId, Time, Time>>;
    std::map<std::pair<Time, Key>, std::int32_t> known;
    std::vector<Routes::Window> taken;
    users_.resize(resources);
    offsets_.resize(resources);
    window_begin_.push_back(0);
    for (RouteId r = 0; r < routes.count(); ++r) {
      taken.clear();
      routes.windows(r, 0, bytes, taken);
      Time duration = 0;
      for (std::size_t end = 0; end < routes.destinations(r).size(); ++end) {
        duration = std::max(duration, routes.leg_time(r, 0, bytes, end));
      }
      Key key;
      for (auto& window : taken) {
        window.link = resource[at(window.link)];
        // Room for rounding on either side, so that times can also be mirrored.
        if (quantum_ > 1) window.busy += 2 * quantum_;
        key.emplace_back(window.link, window.offset, window.busy);
      }
      const auto number = static_cast<std::int32_t>(duration_.size());
      const auto [found, added] = known.try_emplace({duration, std::move(key)}, number);
      class_.push_back(found->second);
      if (!added) continue;
      duration_.push_back(duration);
      for (const auto& window : taken) {
        windows_.push_back(window);
        used_.push_back(window.link);
        auto& users = users_[at(window.link)];
        if (users.empty() || users.back() != number) users.push_back(number);
        offsets_[at(window.link)].push_back(window.offset);
      }
      window_begin_.push_back(windows_.size());
    }
    for (auto& offsets : offsets_) {
      std::sort(offsets.begin(), offsets.end());
      offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
    }
    waiting_.resize(duration_.size());
  }

  void find_children() {
    child_begin_.assign(jobs_ + 1, 0);
    for (const Job above : moves_.after) ++child_begin_[at(above) + 1];
    for (std::size_t i = 0; i < jobs_; ++i) child_begin_[i + 1] += child_begin_[i];
    children_.resize(moves_.after.size());
    auto next = child_begin_;
    for (std::size_t job = 0; job < jobs_; ++job) {
      for (const Job above : moves_.after_of(job)) {
        children_[at(next[at(above)]++)] = static_cast<Job>(job);
      }
    }
  }

  // Found once, since several rules share it.
  const Ranking& ranking(bool by_tail) {
    Ranking& found = ranking_[by_tail];
    if (found.rank.size() == jobs_) return found;
    const auto urgency = urgencies(by_tail);
    std::vector<std::tuple<Time, std::int32_t, Job>> sorted(jobs_);
    for (std::size_t job = 0; job < jobs_; ++job) {
      sorted[job] = {urgency[job], moves_.turn[job], static_cast<Job>(job)};
    }
    std::sort(sorted.begin(), sorted.end());
    found.rank.resize(jobs_);
    found.job.resize(jobs_);
    for (std::size_t i = 0; i < jobs_; ++i) {
      found.job[i] = std::get<2>(sorted[i]);
      found.rank[at(found.job[i])] = static_cast<Rank>(i);
    }
    return found;
  }

  std::vector<Time> urgencies(bool by_tail) const {
    std::vector<Time> way(jobs_, 0);
    std::int64_t pieces = 1;
    for (const auto piece : moves_.piece) pieces = std::max<std::int64_t>(pieces, piece + 1);
    const Time period = busiest() / pieces;
    const auto duration = [&](std::size_t job) {
      return duration_[at(class_[at(moves_.route[job])])];
    };
    if (by_tail) {
      for (std::size_t job = jobs_; job-- > 0;) {
        way[job] += duration(job);
        for (const Job above : moves_.after_of(job)) {
          way[at(above)] = std::max(way[at(above)], way[job]);
        }
      }
    } else {
      for (std::size_t job = 0; job < jobs_; ++job) {
        for (const Job above : moves_.after_of(job)) {
          way[job] = std::max(way[job], way[at(above)] + duration(at(above)));
        }
      }
    }
    for (std::size_t job = 0; job < jobs_; ++job) {
      way[job] = moves_.piece[job] * period + (by_tail ? -way[job] : way[job]);
    }
    return way;
  }

  using Queue = std::priority_queue<Rank, std::vector<Rank>, std::greater<>>;

  const ForestMoves& moves_;
  Time quantum_;
  std::size_t jobs_;
  std::vector<std::int32_t> class_;      // of each route
  std::vector<Routes::Window> windows_;  // of each class, with resources as links
  std::vector<std::int32_t> used_;       // those resources
  std::vector<std::size_t> window_begin_;
  std::vector<Time> duration_;      // of each class
  Time overhang_ = 0;               // for which a resource may be busy after the arrival
  std::vector<Queue> waiting_;      // of each class
  std::vector<std::int32_t> port_;  // of each class: its resource that is busiest
  std::vector<Job> children_;
  std::vector<std::int64_t> child_begin_;
  std::vector<Time> free_;                        // when each resource becomes free
  std::vector<Time> busy_, left_;                 // busy time of each resource: total, remaining
  std::vector<std::vector<std::int32_t>> users_;  // the classes that use each resource
  std::vector<std::vector<Time>> offsets_;        // at which they reach it, in order
  Ranking ranking_[2];                            // by the way from the root, by the path below
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

Timing time_by_urgency(const Routes& routes, const ForestMoves& moves, std::int64_t bytes,
                       std::span<const std::int32_t> resource, Time quantum,
                       const Progress& progress) {
  Ports ports(routes, moves, bytes, resource, quantum);
  Timing best;
  const auto enough = static_cast<Time>(static_cast<double>(ports.busiest()) * kGoodEnough);
  const auto rules =
      std::span(kRules).first(moves.route.size() > kManyJobs ? kFew : std::size(kRules));
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto share = [&](std::size_t k) {
      return static_cast<double>(k) / static_cast<double>(rules.size());
    };
    Rule rule = rules[i];
    if (ports.alone() && std::exchange(rule.rearranged, false) && rule.by == By::tail) continue;
    if (ports.separate() && i > 0 && rule.by != By::way) continue;  // the same as the first rule
    const Time limit = i == 0 ? kNever : best.end;
    auto other = ports.run(rule, limit, part_of(progress, share(i), share(i + 1)));
    if (other.end < limit) best = std::move(other);
    if (best.end <= enough) break;
  }
  return best;
}

}  // namespace tacos::forest
