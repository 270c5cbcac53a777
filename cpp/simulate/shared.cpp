#include "simulate/shared.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "simulate/replayed.hpp"
#include "simulate/shared_loop.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"

namespace tacos::simulation {

namespace {

// A schedule as the user of SharedLoop.
class SharedReplay : public Replayed {
 public:
  SharedReplay(const Schedule& schedule, const Routes& routes, const Options& options,
               std::span<Task> tasks, const Progress& progress)
      : Replayed(schedule, routes, options, tasks, progress) {
    find_connections();
  }

  std::span<const RouteId> connections() const { return connections_; }
  std::size_t legs() const {
    std::size_t legs = 0;
    for (const Task& task : tasks_) legs += at(routes_.legs(static_cast<RouteId>(task.lane)));
    return legs;
  }
  // Called by the event loop.
  std::uint32_t connection(Item item) const { return connection_of_[tasks_[item].lane]; }
  template <typename Submit>
  void begin(Submit&& submit) {
    for (std::size_t c = 0; c < connections_.size(); ++c) offer(c, submit);
  }

  template <typename Submit>
  void on_start(Item item, Leg leg, Time now, Submit&& submit) {
    if (leg > 0) return;
    const auto c = connection(item);
    if (next_[c] + 1 < begin_[c + 1]) fetch_ahead(&tasks_[order_[next_[c] + 1]]);
    turns_.read(
        item, [&](Item reader) { release(reader, item, submit); },
        [&](Item writer, std::size_t end) { arrived(writer, end, now); });
  }

  template <typename Submit>
  void on_sent(Item item, Leg leg, Time started, Time now, std::span<const Routes::Window> windows,
               Submit&& submit) {
    const bool blocking = routes_.topology().spec().link_model == LinkModel::blocking;
    for (const auto& window : windows) {
      result_.busy[at(window.link)] += window.busy;
      if (!options_.record) continue;
      const Time hold = blocking ? routes_.topology().latency(window.link) : 0;
      result_.add_interval(window.link, started + window.offset, now + window.offset + hold,
                           static_cast<std::int32_t>(tasks_[item].transfer));
    }
    if (leg > 0) return;
    const auto c = connection(item);
    if (++next_[c] == begin_[c + 1]) return;
    if (options_.record && tasks_[order_[next_[c]]].waits == 0) cause_[order_[next_[c]]] = item;
    offer(c, submit);
  }

  Time delay(Item item, Leg leg, std::size_t end) const { return delay_at_end(item, leg, end); }

  template <typename Submit>
  void on_arrival(Item item, std::size_t end, Time now, Submit&& submit) {
    turns_.write(
        item, end, [&](Item reader) { release(reader, item, submit); },
        [&](Item writer, std::size_t to) { arrived(writer, to, now); });
  }

 private:
  // Lanes over the same links form one connection, with its transfers in the order of their starts.
  void find_connections() {
    std::map<std::pair<RouteKind, std::vector<LinkId>>, std::uint32_t> known;
    for (RouteId lane = 0; lane < routes_.count(); ++lane) {
      const auto links = routes_.links(lane);
      const auto [found, added] =
          known.try_emplace({routes_.kind(lane), {links.begin(), links.end()}},
                            static_cast<std::uint32_t>(connections_.size()));
      if (added) connections_.push_back(lane);
      connection_of_.push_back(found->second);
    }
    begin_.assign(connections_.size() + 1, 0);
    for (Item item = 0; item < tasks_.size(); ++item) ++begin_[connection(item) + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    next_.assign(begin_.begin(), begin_.end() - 1);
    order_.resize(tasks_.size());
    for (Item item = 0; item < tasks_.size(); ++item) order_[next_[connection(item)]++] = item;
    next_.assign(begin_.begin(), begin_.end() - 1);
  }

  // Submits the connection's next transfer if its data have arrived.
  template <typename Submit>
  void offer(std::size_t connection, Submit&& submit) {
    if (next_[connection] == begin_[connection + 1]) return;
    const Item item = order_[next_[connection]];
    if (tasks_[item].waits > 0) return;
    submit(item, delays_.sources_ready(route(item)));
  }

  template <typename Submit>
  void release(Item item, Item by, Submit&& submit) {
    if (--tasks_[item].waits > 0) return;
    const auto c = connection(item);
    if (order_[next_[c]] != item) return;
    if (options_.record) cause_[item] = by;
    offer(c, submit);
  }

  std::vector<RouteId> connections_;
  std::vector<std::uint32_t> connection_of_;  // per lane
  std::vector<std::size_t> begin_, next_;     // per connection, into order_
  std::vector<Item> order_;
};

}  // namespace

Result simulate_shared(const Schedule& schedule, const Routes& routes, const Options& options,
                       const Progress& progress) {
  if (!options.congestion) invalid("timing \"shared\" is about congestion, which must not be off");
  auto tasks = sorted_by_start(schedule);
  SharedReplay replay(schedule, routes, options, tasks, progress);
  const auto legs = replay.legs();
  SharedLoop loop(replay, routes, replay.connections(), options.changes, {tasks.size(), legs, 0},
                  progress);
  if (loop.run() < legs) {
    const Item item = loop.stopped();
    if (item == kNone) replay.refuse_circle();
    for (const LinkId link : routes.links(replay.route(item))) {
      const auto found = options.changes.find(link);
      if (found == options.changes.end()) continue;
      replay.refuse_link(item, link, found->second);
    }
    too_long();
  }
  auto result = replay.take_result();
  sort_intervals(result);
  return result;
}

namespace {

template <typename T>
void permute(LargeVector<T>& column, std::span<const std::uint32_t> order) {
  LargeVector<T> sorted;
  sorted.reserve(column.size());
  for (const auto i : order) sorted.push_back(column[i]);
  column = std::move(sorted);
}

}  // namespace

void sort_intervals(Result& result) {
  if (std::is_sorted(result.begin.begin(), result.begin.end())) return;
  std::vector<std::uint32_t> order(result.begin.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return result.begin[a] < result.begin[b]; });
  permute(result.link, order);
  permute(result.begin, order);
  permute(result.end, order);
  permute(result.transfer, order);
}

}  // namespace tacos::simulation
