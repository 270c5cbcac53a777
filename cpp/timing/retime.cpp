#include "timing/retime.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "support/fetch_ahead.hpp"
#include "support/work.hpp"
#include "timing/crossings.hpp"
#include "timing/dependencies.hpp"
#include "timing/quantum.hpp"
#include "timing/retime_sweep.hpp"
#include "timing/service.hpp"

namespace tacos {

namespace {

using dependencies::Item;
using dependencies::kNone;
using service::Leg;

void check(const Collective& collective, const Routes& routes, const Order& order) {
  const auto count = order.route.size();
  if (count >= kNone) invalid("too many transfers; an order has fewer than 2^32 - 1");
  if (order.chunk.size() != count || order.step.size() != count || order.op.size() != count ||
      order.reads.size() != count) {
    invalid("the order's columns differ in length");
  }
  for (const RouteId route : order.route) {
    if (route < 0 || route >= routes.count()) {
      invalid("a transfer names route " + std::to_string(route) + ", but there are " +
              std::to_string(routes.count()));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (order.chunk[i] >= collective.chunks()) {
      invalid("transfer " + std::to_string(i) + " names chunk " + std::to_string(order.chunk[i]) +
              ", but there are " + std::to_string(collective.chunks()));
    }
    if (order.op[i] > 1 || order.reads[i] > 1) {
      invalid("transfer " + std::to_string(i) + " has an unknown op or reads");
    }
  }
}

std::vector<Item> all_rows(const Order& order) {
  std::vector<Item> rows(order.route.size());
  std::iota(rows.begin(), rows.end(), Item{0});
  return rows;
}

// The rows of the order that move bytes, sorted by step; nullopt if these are all rows in their order.
std::optional<std::vector<Item>> sorted_rows(const Collective& collective, const Order& order) {
  const bool empty_ones = collective.uniform_bytes() == 0;
  const auto& step = order.step;
  const bool sorted = std::is_sorted(step.begin(), step.end());
  if (sorted && !empty_ones) return std::nullopt;
  std::vector<Item> rows = all_rows(order);
  if (empty_ones) {
    std::erase_if(rows, [&](Item row) { return collective.bytes(order.chunk[row]) == 0; });
  }
  if (sorted || rows.empty()) return rows;
  const auto [least, most] = std::minmax_element(step.begin(), step.end());
  const auto range = static_cast<std::int64_t>(*most) - *least;
  if (range > 4 * static_cast<std::int64_t>(rows.size())) {
    std::ranges::stable_sort(rows, {}, [&](Item row) { return step[row]; });
    return rows;
  }
  // There are mostly few steps, so a counting sort is cheaper.
  std::vector<Item> next(at(range) + 2, 0), result(rows.size());
  const auto number = [&](Item row) { return at(step[row] - static_cast<std::int64_t>(*least)); };
  for (const Item row : rows) ++next[number(row) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (const Item row : rows) result[next[number(row)]++] = row;
  return result;
}

// An order as the event loop sees it: dependencies by step, durations, and the starts that it finds.
class Ordered {
 public:
  Ordered(const Collective& collective, const Routes& routes, const Order& order,
          std::span<const Item> rows, const Progress& progress)
      : collective_(collective),
        routes_(routes),
        dependencies_(collective, routes, order, rows, progress),
        starts_(dependencies_.legs(), -1) {}

  std::size_t legs() const { return dependencies_.legs(); }
  // Of every leg of every item, item by item.
  std::vector<Time> take_starts() { return std::move(starts_); }

  RouteId route(Item item) const { return dependencies_.move(item).route; }
  ChunkId chunk(Item item) const { return dependencies_.move(item).chunk; }
  std::int64_t bytes(Item item) const {
    return uniform_bytes_ > 0 ? uniform_bytes_ : collective_.bytes(chunk(item));
  }
  std::span<const Item> gang(Item item) const { return dependencies_.gang(item); }
  // Whether each member starts before another one's arrival changes what it reads.
  bool in_time(std::span<const Item> gang, std::span<const Time> delays,
               std::span<Time> least) const {
    if (std::ranges::none_of(delays, [](Time delay) { return delay > 0; })) return true;
    std::unordered_map<std::uint32_t, Time> last_read;  // per cell
    for (std::size_t i = 0; i < gang.size(); ++i) {
      if (!dependencies_.move(gang[i]).reads_acc) continue;
      for (const auto cell : dependencies_.source_cells(gang[i])) {
        auto& last = last_read[cell];
        last = std::max(last, delays[i]);
      }
    }
    bool result = true;
    for (std::size_t i = 0; i < gang.size(); ++i) {
      const auto cells = dependencies_.destination_cells(gang[i]);
      for (std::size_t end = 0; end < cells.size(); ++end) {
        const auto found = last_read.find(cells[end]);
        if (found == last_read.end()) continue;
        const Time needed = found->second + 1 - whole_time(gang[i], end);
        if (delays[i] >= needed) continue;
        least[i] = std::max(least[i], needed);
        result = false;
      }
    }
    return result;
  }

  template <typename Ready>
  void begin(Ready&& ready) const {
    for (Item item = 0; item < dependencies_.size(); ++item) {
      if (dependencies_.is_free(item)) ready(item, 0);
    }
  }
  Time not_before(Item, Leg) const { return 0; }
  Time leaves(Item, const Routes::Window& window, Time start) const {
    return start + window.offset + window.busy;
  }
  Time arrives(Item item, Leg leg, std::size_t, Time start, Time duration) const {
    if (reduce_Bps_ > 0 && dependencies_.move(item).reduces && is_last(item, leg)) {
      duration += transmission_time(bytes(item), reduce_Bps_);
    }
    return start + duration;
  }
  void waits(Item, Leg, Item) const {}
  void prefetch(std::span<const service::Arrival> arrivals, std::size_t i) const {
    if (i + 24 < arrivals.size()) dependencies_.prefetch_move(arrivals[i + 24].item);
    if (i + 17 < arrivals.size()) dependencies_.prefetch_destination(arrivals[i + 17].item);
    if (i + 11 < arrivals.size()) dependencies_.prefetch_wait(arrivals[i + 11].item);
    if (i + 5 < arrivals.size()) dependencies_.prefetch_waiting(arrivals[i + 5].item);
  }
  void prefetch_start(Item item, bool again) const {
    if (again) {
      dependencies_.prefetch_source(item);
      fetch_ahead(&starts_[dependencies_.move(item).first_start]);
    } else {
      dependencies_.prefetch_move(item);
    }
  }
  template <typename Ready>
  void on_start(Item item, Leg leg, Time now, std::span<const Routes::Window>, Ready&& ready) {
    starts_[dependencies_.move(item).first_start + leg] = now;
    if (leg > 0) return;
    dependencies_.on_start(item, [&](Item released) { ready(released, 0); });
  }
  template <typename Ready>
  void on_arrival(Item item, Leg leg, std::size_t end, Time, Ready&& ready) {
    if (!is_last(item, leg)) {
      ready(item, leg + 1);
    } else {
      dependencies_.on_arrival(item, end, [&](Item released) { ready(released, 0); });
    }
  }

 private:
  bool is_last(Item item, Leg leg) const {
    return static_cast<std::int32_t>(leg) + 1 == routes_.legs(route(item));
  }
  // From the start of a transfer to its arrival at an end, if no leg has to wait.
  Time whole_time(Item item, std::size_t end) const {
    Time time = 0;
    for (std::int32_t leg = 0; leg < routes_.legs(route(item)); ++leg) {
      const bool last = is_last(item, static_cast<Leg>(leg));
      time = arrives(item, static_cast<Leg>(leg), end, time,
                     routes_.leg_time(route(item), leg, bytes(item), last ? end : 0));
    }
    return time;
  }

  const Collective& collective_;
  const Routes& routes_;
  const std::int64_t uniform_bytes_ = collective_.uniform_bytes();
  const std::int64_t reduce_Bps_ = routes_.topology().spec().reduce_bandwidth_Bps;
  dependencies::Dependencies dependencies_;
  std::vector<Time> starts_;
};

// Start of every leg of every item, item by item.
std::vector<Time> earliest_starts(const Collective& collective, const Routes& routes,
                                  const Order& order, std::span<const Item> rows, Time quantum,
                                  const Progress& progress) {
  progress.reserve(static_cast<double>(rows.size()) * work::kTransfer);
  Ordered ordered(collective, routes, order, rows, progress);
  const auto legs = ordered.legs();
  progress(0);
  service::Service loop(ordered, routes, {quantum, true, rows.size(), legs}, progress);
  progress(0);
  if (loop.run() < legs) {
    throw InfeasibleError("the order can never run: two transfers wait for each other");
  }
  return ordered.take_starts();
}

Transfers pack(const Routes& routes, const Order& order, std::span<const Item> rows,
               std::span<const Time> starts, Time quantum, const Progress& progress = {}) {
  std::vector<std::size_t> first_start;
  first_start.reserve(rows.size());
  std::size_t total = 0;
  for (const Item row : rows) {
    first_start.push_back(total);
    total += at(routes.legs(order.route[row]));
  }
  const auto lane_key = [&](Item item) {
    const Item row = rows[item];
    return at(order.route[row]) * 4 + at(order.op[row]) * 2 + order.reads[row];
  };
  std::vector<std::int64_t> begin(at(routes.count()) * 4 + 1, 0);
  for (Item item = 0; item < rows.size(); ++item) ++begin[lane_key(item) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<Item> sorted(rows.size());
  {
    auto next = begin;
    for (Item item = 0; item < rows.size(); ++item) sorted[at(next[lane_key(item)]++)] = item;
  }
  std::vector<RouteId> lane_route;
  std::vector<std::uint8_t> lane_op, lane_reads;
  std::vector<std::int64_t> lane_begin{0};
  std::vector<ChunkId> chunk;
  std::vector<std::uint32_t> start;
  chunk.reserve(rows.size());
  start.reserve(total);
  for (std::size_t key = 0; key + 1 < begin.size(); ++key) {
    const auto lane = std::span(sorted).subspan(at(begin[key]), at(begin[key + 1] - begin[key]));
    if (lane.empty()) continue;
    if (progress && (begin[key] >> 16) != (begin[key + 1] >> 16)) progress(1);
    const auto by_start = [&](Item a, Item b) {
      return starts[first_start[a]] < starts[first_start[b]];
    };
    if (!std::is_sorted(lane.begin(), lane.end(), by_start)) {
      std::stable_sort(lane.begin(), lane.end(), by_start);
    }
    const auto route = static_cast<RouteId>(key / 4);
    lane_route.push_back(route);
    lane_op.push_back(static_cast<std::uint8_t>(key / 2 % 2));
    lane_reads.push_back(static_cast<std::uint8_t>(key % 2));
    lane_begin.push_back(begin[key + 1]);
    for (const Item item : lane) chunk.push_back(order.chunk[rows[item]]);
    for (std::int32_t leg = 0; leg < routes.legs(route); ++leg) {
      for (const Item item : lane) {
        start.push_back(static_cast<std::uint32_t>(starts[first_start[item] + at(leg)] / quantum));
      }
    }
  }
  return {std::move(lane_route),
          std::move(lane_op),
          std::move(lane_reads),
          std::move(lane_begin),
          std::move(chunk),
          std::move(start),
          quantum};
}

// Rounds the starts of one-leg transfers up to multiples of the quantum, in their order, each as early as its
// links and what it reads allow. Arrivals are given if they do not follow from the starts. Returns nullopt if a
// transfer would then read another value than before.
std::optional<std::vector<Time>> rounded_up(const Collective& collective, const Routes& routes,
                                            const Order& order, std::span<const Time> starts,
                                            Time quantum, std::span<const Time> arrivals = {}) {
  constexpr std::uint32_t kStarts = std::numeric_limits<std::uint32_t>::max();
  constexpr std::size_t kDense =
      4;  // values per event up to which a table of all values is used (chosen)
  struct Event {
    Time time;
    Item row;
    std::uint32_t end;  // the destination it arrives at, or kStarts; arrivals go first
  };
  const auto rate = routes.topology().spec().reduce_bandwidth_Bps;
  Crossings crossings(routes, starts.size());
  const auto crossing = [&](Item row) {
    const RouteId route = order.route[row];
    return crossings.of(crossings.leg_id(route, 0), collective.bytes(order.chunk[row]),
                        [&] { return std::pair(route, std::uint32_t{0}); });
  };
  const auto takes = [&](Item row, std::size_t end) {
    const bool adds = rate > 0 && order.op[row] == static_cast<std::uint8_t>(Op::reduce);
    return crossing(row).times[end] +
           (adds ? transmission_time(collective.bytes(order.chunk[row]), rate) : 0);
  };
  std::vector<Event> events;
  events.reserve(2 * starts.size());
  for (Item row = 0; row < starts.size(); ++row) {
    events.push_back({starts[row], row, kStarts});
    const auto ends = routes.destinations(order.route[row]).size();
    for (std::uint32_t end = 0; end < ends; ++end) {
      events.push_back(
          {arrivals.empty() ? starts[row] + takes(row, end) : arrivals[row], row, end});
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.time, a.end, a.row) < std::tie(b.time, b.end, b.row);
  });
  struct Value {
    Time read = -1, written = 0;  // last
    bool copied = false;
  };
  const auto nodes = at(routes.topology().nodes());
  const bool dense = nodes * at(collective.chunks()) <= kDense * events.size();
  std::vector<Value> all(dense ? nodes * at(collective.chunks()) : 0);
  std::unordered_map<std::uint64_t, Value> some;
  const auto value = [&](NodeId node, ChunkId chunk) -> Value& {
    const auto key = at(chunk) * nodes + at(node);
    return dense ? all[key] : some[key];
  };
  std::vector<Time> free_at(at(routes.topology().links()), 0), result(starts.size());
  for (const auto& [time, row, end] : events) {
    const RouteId route = order.route[row];
    const ChunkId chunk = order.chunk[row];
    if (end != kStarts) {
      auto& there = value(routes.destinations(route)[end], chunk);
      const Time arrival = result[row] + takes(row, end);
      there.copied |= order.op[row] == static_cast<std::uint8_t>(Op::copy);
      if (arrival <= there.read || (there.copied && arrival < there.written)) return std::nullopt;
      there.written = std::max(there.written, arrival);
      continue;
    }
    const bool reads_acc = order.reads[row] == static_cast<std::uint8_t>(Reads::acc);
    Time start = time;
    if (reads_acc) {
      for (const NodeId source : routes.sources(route)) {
        start = std::max(start, value(source, chunk).written);
      }
    }
    const auto windows = crossing(row).windows;
    for (const auto& window : windows) {
      start = std::max(start, free_at[at(window.link)] - window.offset);
    }
    if (quantum > 1) start = (start + quantum - 1) / quantum * quantum;
    for (const auto& window : windows) {
      free_at[at(window.link)] = start + window.offset + window.busy;
    }
    if (reads_acc) {
      for (const NodeId source : routes.sources(route)) {
        auto& here = value(source, chunk);
        here.read = std::max(here.read, start);
      }
    }
    result[row] = start;
  }
  return result;
}

}  // namespace

Schedule retime(std::shared_ptr<const Collective> collective, std::shared_ptr<const Routes> routes,
                const Order& order, std::string provenance, const Progress& progress,
                std::optional<bool> sweep) {
  if (!collective->resolved()) invalid("retiming needs a collective with a number of chunks");
  check(*collective, *routes, order);
  progress(0);
  auto listed = sorted_rows(*collective, order);
  progress(0);
  if (sweep.value_or(true)) {
    if (auto transfers = retime_in_one_sweep(*collective, *routes, order, listed, progress)) {
      return Schedule(std::move(collective), std::move(routes), std::move(*transfers), std::nullopt,
                      std::move(provenance));
    }
    if (sweep) throw InfeasibleError("the links do not serve the transfers as they are listed");
  }
  const auto rows = listed ? *std::move(listed) : all_rows(order);
  progress(0);
  auto starts = earliest_starts(*collective, *routes, order, rows, 1, progress);
  Time quantum = common_quantum(starts);
  const auto latest = [&] {
    return starts.empty() ? 0 : *std::max_element(starts.begin(), starts.end());
  };
  while (latest() / quantum > kLargestStart) {
    quantum = rounding_quantum(latest());
    starts = earliest_starts(*collective, *routes, order, rows, quantum, progress);
  }
  progress(1);
  auto transfers = pack(*routes, order, rows, starts, quantum, progress);
  progress(1);
  return Schedule(std::move(collective), std::move(routes), std::move(transfers), std::nullopt,
                  std::move(provenance));
}

std::optional<Schedule> at_starts(const std::shared_ptr<const Collective>& collective,
                                  const std::shared_ptr<const Routes>& routes, const Order& order,
                                  std::span<const Time> starts, const std::string& provenance) {
  const Time latest = starts.empty() ? 0 : *std::max_element(starts.begin(), starts.end());
  const auto rows = all_rows(order);
  Time quantum = common_quantum(starts);
  std::optional<std::vector<Time>> rounded;
  if (latest / quantum > kLargestStart) {
    quantum = rounding_quantum(latest);
    rounded = rounded_up(*collective, *routes, order, starts, quantum);
    if (!rounded || *std::max_element(rounded->begin(), rounded->end()) / quantum > kLargestStart) {
      return std::nullopt;
    }
    starts = *rounded;
  }
  return Schedule(collective, routes, pack(*routes, order, rows, starts, quantum), std::nullopt,
                  provenance);
}

std::optional<Schedule> not_before(const std::shared_ptr<const Collective>& collective,
                                   const std::shared_ptr<const Routes>& routes, const Order& order,
                                   std::span<const Time> starts, std::span<const Time> arrivals,
                                   const std::string& provenance) {
  const auto later = rounded_up(*collective, *routes, order, starts, 1, arrivals);
  return later ? at_starts(collective, routes, order, *later, provenance) : std::nullopt;
}

Schedule with_starts(std::shared_ptr<const Collective> collective,
                     std::shared_ptr<const Routes> routes, const Order& order,
                     std::span<const Time> starts, std::string provenance,
                     const Progress& progress) {
  progress.reserve(2 * static_cast<double>(starts.size()) * work::kTransfer);
  auto found = at_starts(collective, routes, order, starts, provenance);
  if (found) return std::move(*found);
  return retime(std::move(collective), std::move(routes), order, std::move(provenance), progress);
}

}  // namespace tacos
