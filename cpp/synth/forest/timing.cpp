#include "synth/forest/timing.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/forest/port_matching.hpp"
#include "synth/list_schedule.hpp"

namespace tacos::forest {

namespace {

using Task = std::int32_t;
using Position = std::int32_t;  // of a task in the order of urgency, turn, and number

// The most urgent task of a class; the first offers are served first.
struct Offer {
  Time work;
  Position position;
  std::int32_t of;
  bool operator<(const Offer& other) const {
    return work != other.work ? work < other.work : position < other.position;
  }
};

enum class By { tail, way, work };
struct Priority {
  By by;
  bool rearranged = false;
};
// The first priorities are the best if there are many hops; the others would take too long then.
constexpr Priority kPriorities[] = {
    {By::work, true}, {By::tail, true}, {By::tail}, {By::way}, {By::work}};
constexpr std::size_t kFew = 4, kManyTasks = 50'000;
constexpr Time kNever = std::numeric_limits<Time>::max();
constexpr double kGoodEnough = 1.002;  // times what the busiest resource takes

class Ports {
 public:
  Ports(const Routes& routes, const ForestMoves& moves, std::int64_t bytes,
        std::span<const std::int32_t> resource, Time quantum)
      : moves_(moves),
        quantum_(quantum),
        tasks_(moves.route.size()),
        classes_(resource.empty() ? 0 : at(*std::ranges::max_element(resource)) + 1) {
    find_classes(routes, bytes, resource);
    find_children();
    busy_.resize(classes_.resources());
    for (const auto c : class_) {
      for (const auto& window : windows_of(c)) busy_[at(window.link)] += window.busy;
    }
    for (std::size_t c = 0; c < classes_.count(); ++c) {
      for (const auto& window : windows_of(static_cast<std::int32_t>(c))) {
        overhang_ = std::max(overhang_, window.offset + window.busy - duration_[c]);
      }
      const auto used = std::span(used_).subspan(window_begin_[c], window_count(c));
      port_.push_back(*std::max_element(
          used.begin(), used.end(), [&](auto a, auto b) { return busy_[at(a)] < busy_[at(b)]; }));
    }
  }

  // Whether each hop uses one resource.
  bool alone() const { return windows_.size() == classes_.count(); }
  // Whether no two classes use the same resource: then the work that resources have left does not matter.
  bool separate() const { return alone() && classes_.separate(); }
  Time busiest() const { return busy_.empty() ? 0 : *std::max_element(busy_.begin(), busy_.end()); }

  // Starts by one priority. The run ends early, without starts, once it is clear that it takes at least until `limit`.
  Timing run(const Priority& priority, Time limit, const Progress& progress) {
    const auto& order = by_urgency(priority.by != By::way);
    priority_ = priority;
    limit_ = limit;
    progress_ = &progress;
    left_ = busy_;
    end_ = 0;
    done_ = 0;
    matching_.emplace(classes_.resources(), window_begin_, used_, port_);
    ListTasks tasks{class_, order, {}, quantum_};
    for (std::size_t task = 0; task < tasks_; ++task) {
      tasks.waits.push_back(static_cast<std::int32_t>(moves_.after_of(task).size()));
    }
    auto start = ListSchedule(classes_, std::move(tasks), *this, progress).run();
    if (end_ >= limit) return {{}, limit};
    return {std::move(start), end_};
  }

  // --- what a list schedule asks

  std::span<const Routes::Window> windows(Task task) const { return windows_of(class_[at(task)]); }

  template <typename Visit>
  void follow(Task task, const Visit& visit) const {
    for (const Task next : children(task)) visit(next, duration_[at(class_[at(task)])]);
  }

  std::span<const std::int32_t> choose(std::span<const ListOffer> fitting) {
    offers_.clear();
    for (const auto& [position, c] : fitting) offers_.push_back({work(c), position, c});
    std::sort(offers_.begin(), offers_.end());
    open_.clear();
    for (const auto& offer : offers_) open_.push_back(offer.of);
    progress_->spend(static_cast<double>(offers_.size()) * work::kTry);
    return matching_->choose(open_, priority_.rearranged);
  }

  void started(Task task, Time now) {
    const auto c = class_[at(task)];
    for (const auto& window : windows_of(c)) {
      // The resource begins no earlier with what is left, and the last of it does not arrive before it ends.
      end_ = std::max(end_, now + window.offset + left_[at(window.link)] - overhang_);
      left_[at(window.link)] -= window.busy;
    }
    end_ = std::max(end_, now + duration_[at(c)]);
    if (*progress_ && ++done_ % 4096 == 0) {
      (*progress_)(static_cast<double>(done_) / static_cast<double>(tasks_));
    }
  }

  bool goes_on() const { return end_ < limit_; }

 private:
  std::size_t window_count(std::size_t c) const { return window_begin_[c + 1] - window_begin_[c]; }
  std::span<const Routes::Window> windows_of(std::int32_t c) const {
    return std::span(windows_).subspan(window_begin_[at(c)], window_count(at(c)));
  }
  std::span<const Task> children(Task task) const {
    const auto begin = at(child_begin_[at(task)]);
    return std::span(children_).subspan(begin, at(child_begin_[at(task) + 1]) - begin);
  }

  // The more its resources still have to do, the earlier it is served.
  Time work(std::int32_t c) const {
    Time result = 0;
    if (priority_.by != By::work) return 0;
    for (const auto& window : windows_of(c)) result -= left_[at(window.link)];
    return result;
  }

  void find_classes(const Routes& routes, std::int64_t bytes,
                    std::span<const std::int32_t> resource) {
    using Key = std::vector<std::tuple<LinkId, Time, Time>>;
    std::map<std::pair<Time, Key>, std::int32_t> known;
    std::vector<Routes::Window> taken;
    std::vector<std::int32_t> of_route;
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
      of_route.push_back(found->second);
      if (!added) continue;
      duration_.push_back(duration);
      for (const auto& window : taken) {
        windows_.push_back(window);
        used_.push_back(window.link);
      }
      window_begin_.push_back(windows_.size());
      classes_.add(taken);
    }
    for (const RouteId r : moves_.route) class_.push_back(of_route[at(r)]);
  }

  void find_children() {
    child_begin_.assign(tasks_ + 1, 0);
    for (const Task above : moves_.after) ++child_begin_[at(above) + 1];
    for (std::size_t i = 0; i < tasks_; ++i) child_begin_[i + 1] += child_begin_[i];
    children_.resize(moves_.after.size());
    auto next = child_begin_;
    for (std::size_t task = 0; task < tasks_; ++task) {
      for (const Task above : moves_.after_of(task)) {
        children_[at(next[at(above)]++)] = static_cast<Task>(task);
      }
    }
  }

  // Found once, since several priorities share it.
  const std::vector<Task>& by_urgency(bool by_tail) {
    auto& found = by_urgency_[by_tail];
    if (found.size() == tasks_) return found;
    const auto urgency = urgencies(by_tail);
    std::vector<std::tuple<Time, std::int32_t, Task>> sorted(tasks_);
    for (std::size_t task = 0; task < tasks_; ++task) {
      sorted[task] = {urgency[task], moves_.turn[task], static_cast<Task>(task)};
    }
    std::sort(sorted.begin(), sorted.end());
    for (const auto& entry : sorted) found.push_back(std::get<2>(entry));
    return found;
  }

  std::vector<Time> urgencies(bool by_tail) const {
    std::vector<Time> way(tasks_, 0);
    std::int64_t pieces = 1;
    for (const auto piece : moves_.piece) pieces = std::max<std::int64_t>(pieces, piece + 1);
    const Time period = busiest() / pieces;
    const auto duration = [&](std::size_t task) { return duration_[at(class_[task])]; };
    if (by_tail) {
      for (std::size_t task = tasks_; task-- > 0;) {
        way[task] += duration(task);
        for (const Task above : moves_.after_of(task)) {
          way[at(above)] = std::max(way[at(above)], way[task]);
        }
      }
    } else {
      for (std::size_t task = 0; task < tasks_; ++task) {
        for (const Task above : moves_.after_of(task)) {
          way[task] = std::max(way[task], way[at(above)] + duration(at(above)));
        }
      }
    }
    for (std::size_t task = 0; task < tasks_; ++task) {
      way[task] = moves_.piece[task] * period + (by_tail ? -way[task] : way[task]);
    }
    return way;
  }

  const ForestMoves& moves_;
  Time quantum_;
  std::size_t tasks_;
  Servers classes_;
  std::vector<std::int32_t> class_;      // of each task
  std::vector<Routes::Window> windows_;  // of each class, with resources as links
  std::vector<std::int32_t> used_;       // those resources
  std::vector<std::size_t> window_begin_;
  std::vector<Time> duration_;      // of each class
  Time overhang_ = 0;               // for which a resource may be busy after the arrival
  std::vector<std::int32_t> port_;  // of each class: its resource that is busiest
  std::vector<Task> children_;
  std::vector<std::int64_t> child_begin_;
  std::vector<Time> busy_;           // time of each resource for all tasks
  std::vector<Task> by_urgency_[2];  // all tasks: by the way from the root, by the path below
  // The present run.
  Priority priority_{};
  Time limit_ = 0, end_ = 0;  // the end is not before what its tasks so far leave to be done
  const Progress* progress_ = nullptr;
  std::size_t done_ = 0;
  std::vector<Time> left_;  // time of each resource for the tasks to come
  std::optional<PortMatching> matching_;
  std::vector<Offer> offers_;
  std::vector<std::int32_t> open_;
};

}  // namespace

Timing time_by_urgency(const Routes& routes, const ForestMoves& moves, std::int64_t bytes,
                       std::span<const std::int32_t> resource, Time quantum,
                       const Progress& progress) {
  Ports ports(routes, moves, bytes, resource, quantum);
  Timing best;
  const auto enough = static_cast<Time>(static_cast<double>(ports.busiest()) * kGoodEnough);
  const auto priorities =
      std::span(kPriorities).first(moves.route.size() > kManyTasks ? kFew : std::size(kPriorities));
  for (std::size_t i = 0; i < priorities.size(); ++i) {
    const auto share = [&](std::size_t k) {
      return static_cast<double>(k) / static_cast<double>(priorities.size());
    };
    Priority priority = priorities[i];
    if (ports.alone() && std::exchange(priority.rearranged, false) && priority.by == By::tail)
      continue;
    if (ports.separate() && i > 0 && priority.by != By::way)
      continue;  // the same as the first priority
    const Time limit = i == 0 ? kNever : best.end;
    auto other = ports.run(priority, limit, part_of(progress, share(i), share(i + 1)));
    if (other.end < limit) best = std::move(other);
    if (best.end <= enough) break;
  }
  return best;
}

}  // namespace tacos::forest
