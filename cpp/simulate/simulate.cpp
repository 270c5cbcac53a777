#include "simulate/simulate.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "simulate/jitter_rounds.hpp"
#include "simulate/order_sweep.hpp"
#include "simulate/replayed.hpp"
#include "simulate/shared.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "timing/service.hpp"

namespace tacos::simulation {

namespace {

using Window = Routes::Window;

// Two transfers on one link.
struct Conflict {
  std::uint32_t first, second;
  LinkId link;
  Time time;

  [[noreturn]] void refuse(const Topology& topology) const {
    throw InfeasibleError("transfers " + std::to_string(first) + " and " + std::to_string(second) +
                          " both use " + topology.describe(link) + " at " + time_text(time));
  }
};

// A schedule as the user of the event loop.
class Replay : public Replayed {
 public:
  Replay(const Schedule& schedule, const Routes& routes, const Options& options,
         std::span<Task> tasks, const Progress& progress)
      : Replayed(schedule, routes, options, tasks, progress),
        counted_(turns_.trees() || options.timing == Timing::order) {
    number_legs();
    if (options.timing == Timing::order) order_links();
    if (!options.record) return;
    std::size_t intervals = 0, arrivals = 0;
    for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
      const auto rows = at(stored().lane_begin[at(lane) + 1] - stored().lane_begin[at(lane)]);
      intervals += rows * routes.links(lane).size();
      arrivals += rows * routes.destinations(lane).size();
    }
    result_.reserve(intervals, arrivals);
  }

  std::size_t legs() const { return tasks_.size() + more_waits_.size(); }
  // Call it before the run, if links are occupied in the order of starts.
  void look_for_conflicts() { taken_.resize(at(routes_.topology().links())); }
  const std::optional<Conflict>& conflict() const { return conflict_; }
  // Called by the event loop.
  std::span<const Item> gang(Item) const { return {}; }
  bool in_time(std::span<const Item>, std::span<const Time>, std::span<Time>) const { return true; }

  template <typename Ready>
  void begin(Ready&& ready) const {
    for (Item item = 0; item < tasks_.size(); ++item) {
      if (tasks_[item].waits == 0) ready(item, 0);
    }
  }

  Time not_before(Item item, Leg leg) const {
    const Time own = options_.timing == Timing::schedule ? own_start(item, leg) : 0;
    return leg > 0 ? own : std::max(own, delays_.sources_ready(route(item)));
  }

  Time leaves(Item item, const Window& window, Time start) const {
    const Time clean = start + window.offset + window.busy;
    return delays_.slow_links() ? clean + delay(item, window, start) : clean;
  }

  Time arrives(Item item, Leg leg, std::size_t end, Time start, Time duration) const {
    const Time time = start + duration + delay_at_end(item, leg, end);
    return delays_.slow_links() ? time + delay_on_the_way(item, leg, end, start) : time;
  }

  // Prefetches the scattered data of later arrivals.
  void prefetch(std::span<const service::Arrival> arrivals, std::size_t i) const {
    if (i + 24 < arrivals.size()) fetch_ahead(&tasks_[arrivals[i + 24].item]);
    if (i + 16 < arrivals.size()) turns_.prefetch_turn(arrivals[i + 16].item);
    if (i + 10 < arrivals.size()) turns_.prefetch_readers(arrivals[i + 10].item);
    if (counted_ && i + 5 < arrivals.size()) turns_.prefetch_many(arrivals[i + 5].item);
  }

  void prefetch_start(Item item, bool again) const {
    if (again) {
      turns_.prefetch_read(item);
    } else {
      fetch_ahead(&tasks_[item]);
    }
  }

  void waits(Item item, Leg, Item before) {
    if (options_.record) cause_[item] = before;
  }

  template <typename Ready>
  void on_start(Item item, Leg leg, Time now, std::span<const Window> windows, Ready&& ready) {
    if (options_.timing == Timing::schedule && now != own_start(item, leg)) {
      throw InfeasibleError("transfer " + std::to_string(tasks_[item].transfer) +
                            " cannot start at " + time_text(own_start(item, leg)) +
                            ", as its schedule says: its data arrive at " + time_text(now));
    }
    for (const auto& window : windows)
      take_link(item, now + window.offset, leaves(item, window, now), window.link);
    if (options_.record) {
      for (const auto& window : windows) {
        result_.add_interval(window.link, now + window.offset, leaves(item, window, now),
                             static_cast<std::int32_t>(tasks_[item].transfer));
      }
    }
    if (options_.timing == Timing::order) {
      for (const auto& window : windows) {
        auto& cursor = cursor_[at(window.link)];
        const auto end = queue_begin_[at(window.link) + 1];
        if (++cursor == end) continue;
        // Needed when this link is free the next time.
        if (cursor + 8 < end) fetch_ahead(&queue_[cursor + 8]);
        if (cursor + 1 < end) fetch_ahead(&tasks_[queue_[cursor + 1].first]);
        release(queue_[cursor].first, queue_[cursor].second, item, ready);
      }
    }
    if (leg > 0) return;
    turns_.read(
        item, [&](Item reader) { release(reader, 0, item, ready); },
        [&](Item writer, std::size_t end) { arrived(writer, end, now); });
  }

  template <typename Ready>
  void on_arrival(Item item, Leg leg, std::size_t end, Time now, Ready&& ready) {
    if (static_cast<std::int32_t>(leg) + 1 < routes_.legs(route(item))) {
      if (--waits_of(item, leg + 1) == 0) ready(item, leg + 1);
      return;
    }
    turns_.write(
        item, end, [&](Item reader) { release(reader, 0, item, ready); },
        [&](Item writer, std::size_t to) { arrived(writer, to, now); });
  }

 private:
  std::uint32_t& waits_of(Item item, Leg leg) {
    return leg == 0 ? tasks_[item].waits : more_waits_[first_more_[item] + leg - 1];
  }
  Time own_start(Item item, Leg leg) const {
    if (leg == 0) return static_cast<Time>(tasks_[item].start) * stored().quantum;
    return schedule_.start(static_cast<std::int32_t>(tasks_[item].lane), tasks_[item].transfer,
                           static_cast<std::int32_t>(leg));
  }
  template <typename Ready>
  void release(Item item, Leg leg, Item by, Ready&& ready) {
    if (counted_ && --waits_of(item, leg) > 0) return;
    if (options_.record && leg == 0) cause_[item] = by;
    ready(item, leg);
  }

  void take_link(Item item, Time begin, Time end, LinkId link) {
    result_.busy[at(link)] += end - begin;
    if (taken_.empty()) return;
    auto& last = taken_[at(link)];
    if (last.end > begin && !conflict_) {
      conflict_ = {tasks_[last.item].transfer, tasks_[item].transfer, link, begin};
    }
    last = {end, item};
  }

  // How much longer than on an undisturbed link the chunk occupies the link.
  Time delay(Item item, const Window& window, Time start) const {
    const Time found = delays_.on_link(window, start);
    if (found == kNever) refuse_link(item, window.link, options_.changes.at(window.link));
    return found;
  }

  // The longest such delay on the way to one end of a leg; they are known when the leg starts.
  Time delay_on_the_way(Item item, Leg leg, std::size_t end, Time start) const {
    thread_local std::vector<Window> windows;
    windows.clear();
    routes_.windows(route(item), static_cast<std::int32_t>(leg), bytes(item), windows);
    return delays_.on_the_way(what(item), windows, end, start);
  }

  void number_legs() {
    bool single = true;
    for (RouteId r = 0; r < routes_.count(); ++r) single = single && routes_.legs(r) == 1;
    if (single) return;
    first_more_.reserve(tasks_.size());
    for (Item item = 0; item < tasks_.size(); ++item) {
      first_more_.push_back(more_waits_.size());
      // Each waits for the leg before it.
      more_waits_.resize(more_waits_.size() + at(routes_.legs(route(item)) - 1), 1);
    }
  }

  // Sorts the legs of each link by their starts, then by when they reach the link. Each leg waits for the one
  // before it.
  void order_links() {
    std::vector<std::pair<Item, Leg>> legs;
    for (Item item = 0; item < tasks_.size(); ++item) {
      for (std::int32_t leg = 0; leg < routes_.legs(route(item)); ++leg) {
        legs.emplace_back(item, static_cast<Leg>(leg));
      }
    }
    if (legs.size() > tasks_.size()) {
      std::stable_sort(legs.begin(), legs.end(), [&](const auto& a, const auto& b) {
        return own_start(a.first, a.second) < own_start(b.first, b.second);
      });
    }
    queue_begin_.assign(at(routes_.topology().links()) + 1, 0);
    std::vector<std::size_t> lane_begin{0};  // per leg of each lane: offset in lane_links
    std::vector<std::size_t> lane_leg;
    std::vector<Window> windows;
    for (RouteId r = 0; r < routes_.count(); ++r) {
      lane_leg.push_back(lane_begin.size() - 1);
      for (std::int32_t leg = 0; leg < routes_.legs(r); ++leg) {
        routes_.windows(r, leg, 1, windows);
        lane_begin.push_back(windows.size());
      }
    }
    const auto windows_of = [&](const std::pair<Item, Leg>& which) {
      const auto i = lane_leg[at(route(which.first))] + which.second;
      return std::span(windows).subspan(lane_begin[i], lane_begin[i + 1] - lane_begin[i]);
    };
    const auto each_link = [&](const std::pair<Item, Leg>& which, const auto& visit) {
      for (const Window& window : windows_of(which)) visit(at(window.link));
    };
    for (const auto& leg : legs) each_link(leg, [&](std::size_t l) { ++queue_begin_[l + 1]; });
    std::partial_sum(queue_begin_.begin(), queue_begin_.end(), queue_begin_.begin());
    cursor_.assign(queue_begin_.begin(), queue_begin_.end() - 1);
    queue_.resize(queue_begin_.back());
    auto next = cursor_;
    for (const auto& leg : legs) {
      each_link(leg, [&](std::size_t l) { queue_[next[l]++] = leg; });
    }
    for (std::size_t l = 0; l + 1 < queue_begin_.size(); ++l) {
      const auto queue =
          std::span(queue_).subspan(queue_begin_[l], queue_begin_[l + 1] - queue_begin_[l]);
      const auto reaches = [&](const std::pair<Item, Leg>& leg) {
        const auto all = windows_of(leg);
        const auto found =
            std::ranges::find(all, l, [](const Window& window) { return at(window.link); });
        return std::pair(own_start(leg.first, leg.second), found->offset);
      };
      std::ranges::stable_sort(queue, {}, reaches);
      for (std::size_t i = 1; i < queue.size(); ++i) ++waits_of(queue[i].first, queue[i].second);
    }
  }

  // Whether a first leg may have several dependencies; otherwise it waits at most for its one source.
  const bool counted_;
  // If some transfers have several legs: the remaining dependencies of each leg after the first.
  std::vector<std::size_t> first_more_;
  std::vector<std::uint32_t> more_waits_;
  // Timing::order: the legs of each link in order, and the next one.
  std::vector<std::size_t> queue_begin_, cursor_;
  std::vector<std::pair<Item, Leg>> queue_;
  // Timing::schedule without a record: the last user of each link, and the first conflict of two users.
  struct Taken {
    Time end = 0;
    Item item = 0;
  };
  std::vector<Taken> taken_;
  std::optional<Conflict> conflict_;
};

void check_capacity(const Topology& topology, const Result& result) {
  std::vector<std::size_t> last(at(topology.links()), result.link.size());
  for (std::size_t i = 0; i < result.link.size(); ++i) {
    auto& before = last[at(result.link[i])];
    if (before < i && result.end[before] > result.begin[i]) {
      Conflict{static_cast<std::uint32_t>(result.transfer[before]),
               static_cast<std::uint32_t>(result.transfer[i]), result.link[i], result.begin[i]}
          .refuse(topology);
    }
    before = i;
  }
}

}  // namespace

Result simulate(const Schedule& schedule, const Routes& routes, const Options& given,
                const Progress& progress) {
  if (schedule.symmetry()) invalid("an orbit is expanded before it is simulated");
  if (schedule.transfers() > std::numeric_limits<std::int32_t>::max()) {
    invalid("a schedule of " + std::to_string(schedule.transfers()) +
            " transfers is too long to simulate, the most are 2^31 - 1");
  }
  if (given.timing == Timing::shared) return simulate_shared(schedule, routes, given, progress);
  Options options = given;
  // Transfers start at their scheduled times regardless of the links; conflicts are detected afterwards.
  const bool strict = options.timing == Timing::schedule;
  if (options.timing != Timing::first_come) {
    for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
      if (routes.legs(lane) == schedule.routes().legs(schedule.stored().lane_route[at(lane)]))
        continue;
      invalid("on a topology that forwards differently, timing must be \"first-come\"");
    }
  }
  if (options.shortcut.value_or(true)) {
    auto result = sweep_in_order(schedule, routes, options, progress);
    if (!result) result = jitter_in_rounds(schedule, routes, options, progress);
    if (result) return *std::move(result);
    if (options.shortcut) throw InfeasibleError("only the event loop can follow this run");
  }
  // If routes have one link, links are occupied in the order of starts, so comparing with the last user suffices.
  const bool simple = routes.all_links().size() == at(routes.count());
  const bool check = strict && options.congestion;
  options.record = options.record || (check && !simple);
  auto tasks = sorted_by_start(schedule);
  Replay replay(schedule, routes, options, tasks, progress);
  const auto legs = replay.legs();
  if (check && !options.record) replay.look_for_conflicts();
  const service::Options rule{1, options.congestion && !strict, tasks.size(), legs};
  if (service::Service(replay, routes, rule, progress).run() < legs) replay.refuse_circle();
  auto result = replay.take_result();
  if (replay.conflict()) replay.conflict()->refuse(routes.topology());
  sort_intervals(result);
  if (check && options.record) check_capacity(routes.topology(), result);
  return result;
}

}  // namespace tacos::simulation
