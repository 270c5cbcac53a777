#include "retime.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <utility>

#include "dependencies.hpp"

namespace tacos {

namespace {

using dependencies::at;
using dependencies::Item;
using dependencies::kNone;

// The order's rows that move bytes, sorted by step.
std::vector<Item> sorted_rows(const Collective& collective, const Order& order) {
  const auto count = order.route.size();
  if (count >= kNone) invalid("an order has fewer than 2^32 - 1 transfers");
  if (order.chunk.size() != count || order.step.size() != count || order.op.size() != count ||
      order.reads.size() != count) {
    invalid("the order's columns differ in length");
  }
  std::vector<Item> rows;
  rows.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (order.chunk[i] >= collective.chunks()) {
      invalid("transfer " + std::to_string(i) + " names chunk " + std::to_string(order.chunk[i]) +
              ", but there are " + std::to_string(collective.chunks()));
    }
    if (order.op[i] > 1 || order.reads[i] > 1) {
      invalid("transfer " + std::to_string(i) + " has an unknown op or reads");
    }
    if (collective.bytes(order.chunk[i]) > 0) rows.push_back(static_cast<Item>(i));
  }
  const auto by_step = [&](Item a, Item b) { return order.step[a] < order.step[b]; };
  if (!std::is_sorted(rows.begin(), rows.end(), by_step)) {
    std::stable_sort(rows.begin(), rows.end(), by_step);
  }
  return rows;
}

// A leg that may be able to start.
struct Try {
  Time ready;
  Item item;
  std::uint32_t leg;
  std::uint32_t queue;  // the queue it heads, or kNone
  std::uint32_t call;   // which call of that queue's head this is; only the last one counts

  bool operator>(const Try& other) const {
    return std::tie(ready, item, leg) > std::tie(other.ready, other.item, other.leg);
  }
};

// A leg's arrival; at the end of the last leg `leg` counts the destination from there on.
struct Arrival {
  Item item;
  std::uint32_t leg;
};

// What happens when. Regular networks have many events at one moment, so events are kept in one
// list per moment and only the moments in a heap.
class Agenda {
 public:
  struct Moment {
    Time time = 0;
    std::vector<Arrival> arrivals;
    std::vector<Try> tries;
  };

  void add(Time time, const Arrival& arrival) { at_time(time).arrivals.push_back(arrival); }
  void add(Time time, const Try& attempt) { at_time(time).tries.push_back(attempt); }
  bool empty() const { return order_.empty(); }

  // Removes the earliest moment; what `moment` held before is reused.
  void take(Moment& moment) {
    const auto [time, slot] = order_.top();
    order_.pop();
    slots_.erase(time);
    moment.arrivals.clear();
    moment.tries.clear();
    std::swap(moment, moments_[slot]);
    spare_.push_back(slot);
    last_ = {{{-1, 0}, {-1, 0}}};
  }

 private:
  using Slot = std::uint32_t;

  Moment& at_time(Time time) {
    for (const auto& [known, slot] : last_) {
      if (known == time) return moments_[slot];
    }
    const auto [found, added] = slots_.try_emplace(time, 0);
    if (added) {
      if (spare_.empty()) {
        spare_.push_back(static_cast<Slot>(moments_.size()));
        moments_.emplace_back();
      }
      found->second = spare_.back();
      spare_.pop_back();
      moments_[found->second].time = time;
      order_.emplace(time, found->second);
    }
    last_ = {{{time, found->second}, last_[0]}};
    return moments_[found->second];
  }

  std::vector<Moment> moments_;
  std::vector<Slot> spare_;
  std::unordered_map<Time, Slot> slots_;
  // The two moments used last: arrivals and attempts mostly go to the same two in turn.
  std::array<std::pair<Time, Slot>, 2> last_{{{-1, 0}, {-1, 0}}};
  std::priority_queue<std::pair<Time, Slot>, std::vector<std::pair<Time, Slot>>, std::greater<>>
      order_;
};

// Serves the legs by the rule of retime.hpp.
class Service {
 public:
  Service(const Collective& collective, const Routes& routes, const Order& order,
          std::span<const Item> rows, Time quantum, const Progress& progress)
      : collective_(collective),
        routes_(routes),
        order_(order),
        rows_(rows),
        quantum_(quantum),
        progress_(progress),
        whole_chunks_(routes.topology().spec().forwarding == Forwarding::store_and_forward),
        dependencies_(collective, routes, order, rows, progress),
        free_at_(at(routes.topology().links()), 0) {
    first_start_.reserve(rows.size() + 1);
    std::size_t total = 0;
    for (const Item row : rows) {
      first_start_.push_back(total);
      total += at(routes.legs(order.route[row]));
    }
    first_start_.push_back(total);
    starts_.assign(total, -1);
    first_line_.reserve(at(routes.count()));
    std::size_t lines = 0;
    for (RouteId r = 0; r < routes.count(); ++r) {
      first_line_.push_back(lines);
      lines += at(routes.legs(r));
    }
    line_at_.assign(lines, kNone);
  }

  // Start of every leg of every item, item by item.
  std::vector<Time> run() {
    for (Item item = 0; item < rows_.size(); ++item) {
      if (dependencies_.leader(item) == item && dependencies_.is_free(item)) {
        agenda_.add(0, Try{0, item, 0, kNone, 0});
      }
    }
    Agenda::Moment moment;
    std::size_t handled = 0;
    while (!agenda_.empty()) {
      agenda_.take(moment);
      now_ = moment.time;
      for (const auto& arrival : moment.arrivals) arrive(arrival);
      for (const auto& attempt : late_) moment.tries.push_back(attempt);
      late_.clear();
      std::sort(moment.tries.begin(), moment.tries.end(),
                [](const Try& a, const Try& b) { return b > a; });
      for (std::size_t i = 0; i < moment.tries.size() || !late_.empty();) {
        // What becomes possible while we serve this moment takes its place in the order.
        if (late_.empty() || (i < moment.tries.size() && late_.front() > moment.tries[i])) {
          attempt(moment.tries[i++]);
        } else {
          std::pop_heap(late_.begin(), late_.end(), std::greater<>());
          const Try next = late_.back();
          late_.pop_back();
          attempt(next);
        }
      }
      handled += moment.arrivals.size() + moment.tries.size();
      if (progress_ && handled > 0xffff) {
        handled = 0;
        progress_(static_cast<double>(started_) / static_cast<double>(starts_.size()));
      }
    }
    const auto stuck = std::find(starts_.begin(), starts_.end(), -1);
    if (stuck != starts_.end()) {
      throw InfeasibleError(
          "the order can never run: two transfers of one step exchange a chunk "
          "over a shared link, or wait for each other");
    }
    return std::move(starts_);
  }

 private:
  struct Waiting {
    Time ready;
    Item item;
    std::uint32_t leg;
    bool operator>(const Waiting& other) const {
      return std::pair(ready, item) > std::pair(other.ready, other.item);
    }
  };
  using Line = std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>;
  // Heads of lines that wait for one link, which they reach at one offset.
  struct Queue {
    LinkId link;
    Time offset;
    std::uint32_t calls;
    Line waiting;
  };

  RouteId route(Item item) const { return order_.route[rows_[item]]; }
  std::int64_t bytes(Item item) const { return collective_.bytes(order_.chunk[rows_[item]]); }
  Time round_up(Time time) const { return (time + quantum_ - 1) / quantum_ * quantum_; }

  void ready(Item item, std::uint32_t leg) { try_at(now_, {now_, item, leg, kNone, 0}); }

  void try_at(Time time, const Try& attempt) {
    time = round_up(time);
    if (time > now_) {
      agenda_.add(time, attempt);
      return;
    }
    late_.push_back(attempt);
    std::push_heap(late_.begin(), late_.end(), std::greater<>());
  }

  // The windows of a leg; for the first leg of a gang those of all members.
  void find_windows(Item item, std::uint32_t leg) {
    windows_.clear();
    const auto gang = leg == 0 ? dependencies_.gang(item) : std::span<const Item>();
    if (gang.empty()) {
      routes_.windows(route(item), static_cast<std::int32_t>(leg), bytes(item), windows_);
    }
    for (const Item member : gang) routes_.windows(route(member), 0, bytes(member), windows_);
  }

  void attempt(const Try& next) {
    const Waiting who{next.ready, next.item, next.leg};
    if (next.queue == kNone) {
      Line* line = line_of(who);
      if (line != nullptr) {
        line->push(who);
        if (line->top().item != who.item) return;  // its turn comes when those before it are gone
      }
      serve(who);
      return;
    }
    auto& queue = queues_[next.queue];
    if (queue.calls != next.call) return;  // somebody else heads the queue now
    queue.waiting.pop();
    const Line* line = line_of(who);
    if (line == nullptr || line->top().item == who.item) serve(who);
    call_head(next.queue);
  }

  // Starts a leg that is first in its line, or lets it wait for the link that frees last.
  void serve(const Waiting& who) {
    find_windows(who.item, who.leg);
    Time earliest = now_;
    const Routes::Window* blocking = nullptr;
    for (const auto& window : windows_) {
      const Time possible = free_at_[at(window.link)] - window.offset;
      if (possible <= earliest) continue;
      earliest = possible;
      blocking = &window;
    }
    if (blocking != nullptr) {
      stand_in_line(who);
      park(who, *blocking);
      return;
    }
    start(who.item, who.leg);
    Line* line = line_of(who);
    if (line == nullptr) return;
    line->pop();
    if (!line->empty()) {
      serve(line->top());
      return;
    }
    std::uint32_t& slot = line_at_[line_id(who)];
    spare_lines_.push_back(slot);
    slot = kNone;
  }

  // Legs over one route have the same links, so only the first of them is worth trying: those
  // behind it stand in line. A gang, which has several routes, stands alone, as does a tree under
  // store-and-forward, which reaches its links the later the larger the chunk is.
  std::size_t line_id(const Waiting& who) const {
    return first_line_[at(route(who.item))] + who.leg;
  }
  bool stands_alone(const Waiting& who) const {
    if (whole_chunks_ && routes_.kind(route(who.item)) != RouteKind::path) return true;
    return who.leg == 0 && !dependencies_.gang(who.item).empty();
  }
  Line* line_of(const Waiting& who) {
    if (stands_alone(who)) return nullptr;
    const std::uint32_t slot = line_at_[line_id(who)];
    return slot == kNone ? nullptr : &lines_[slot];
  }
  void stand_in_line(const Waiting& who) {
    if (stands_alone(who) || line_of(who) != nullptr) return;
    if (spare_lines_.empty()) {
      spare_lines_.push_back(static_cast<std::uint32_t>(lines_.size()));
      lines_.emplace_back();
    }
    line_at_[line_id(who)] = spare_lines_.back();
    lines_[spare_lines_.back()].push(who);
    spare_lines_.pop_back();
  }

  void start(Item item, std::uint32_t leg) {
    for (const auto& window : windows_) {
      Time& free_at = free_at_[at(window.link)];
      // Only members of a gang can meet here: each link was free a moment ago.
      if (free_at > now_ + window.offset) {
        throw InfeasibleError("transfers of one step exchange chunk " +
                              std::to_string(order_.chunk[rows_[item]]) + " over the shared " +
                              routes_.topology().describe(window.link));
      }
      free_at = now_ + window.offset + window.busy;
    }
    const auto gang = leg == 0 ? dependencies_.gang(item) : std::span<const Item>();
    if (gang.empty()) start_one(item, leg);
    for (const Item member : gang) start_one(member, leg);
  }

  void start_one(Item item, std::uint32_t leg) {
    starts_[first_start_[item] + leg] = now_;
    ++started_;
    const RouteId r = route(item);
    const bool last = static_cast<std::int32_t>(leg) + 1 == routes_.legs(r);
    const auto ends = last ? static_cast<std::uint32_t>(routes_.destinations(r).size()) : 1;
    for (std::uint32_t end = 0; end < ends; ++end) {
      Time time = now_ + routes_.leg_time(r, static_cast<std::int32_t>(leg), bytes(item), end);
      const auto rate = routes_.topology().spec().reduce_bandwidth_Bps;
      if (last && rate > 0 && order_.op[rows_[item]] == static_cast<std::uint8_t>(Op::reduce)) {
        time += transmission_time(bytes(item), rate);
      }
      if (time > kLongestSchedule) invalid("the schedule takes over 26 days");
      agenda_.add(time, Arrival{item, leg + end});
    }
    if (leg == 0) {
      dependencies_.on_start(item, [&](Item released) { ready(released, 0); });
    }
  }

  void arrive(const Arrival& arrival) {
    const auto last_leg = static_cast<std::uint32_t>(routes_.legs(route(arrival.item))) - 1;
    if (arrival.leg < last_leg) {
      ready(arrival.item, arrival.leg + 1);
      return;
    }
    dependencies_.on_arrival(arrival.item, arrival.leg - last_leg,
                             [&](Item released) { ready(released, 0); });
  }

  // The heads that wait for a link are woken one at a time, so that a crowd costs few retries.
  void park(const Waiting& who, const Routes::Window& blocking) {
    const auto [found, added] = queue_at_.try_emplace({blocking.link, blocking.offset},
                                                      static_cast<std::uint32_t>(queues_.size()));
    if (added) queues_.push_back({blocking.link, blocking.offset, 0, {}});
    auto& queue = queues_[found->second];
    queue.waiting.push(who);
    if (queue.waiting.top().item == who.item) call_head(found->second);
  }

  void call_head(std::uint32_t id) {
    auto& queue = queues_[id];
    ++queue.calls;
    if (queue.waiting.empty()) return;
    const auto& head = queue.waiting.top();
    const Time when = std::max(now_, free_at_[at(queue.link)] - queue.offset);
    try_at(when, {head.ready, head.item, head.leg, id, queue.calls});
  }

  const Collective& collective_;
  const Routes& routes_;
  const Order& order_;
  std::span<const Item> rows_;
  const Time quantum_;
  const Progress& progress_;
  const bool whole_chunks_;
  dependencies::Dependencies dependencies_;
  std::vector<Time> free_at_;  // per link
  std::vector<std::size_t> first_start_;
  std::vector<Time> starts_;
  std::vector<Routes::Window> windows_;
  std::vector<std::size_t> first_line_;  // per route, into line_at_
  std::vector<std::uint32_t> line_at_;   // per leg of a route: its line, if anybody stands in it
  std::deque<Line> lines_;
  std::vector<std::uint32_t> spare_lines_;
  std::vector<Queue> queues_;
  std::map<std::pair<LinkId, Time>, std::uint32_t> queue_at_;
  Agenda agenda_;
  Time now_ = 0;
  std::size_t started_ = 0;
  std::vector<Try> late_;  // a heap: legs that became possible at this very moment
};

// The largest quantum that divides all starts.
Time common_quantum(std::span<const Time> starts) {
  Time divisor = 0;
  for (const Time start : starts) {
    if (divisor == 1) break;
    divisor = std::gcd(divisor, start);
  }
  return std::max<Time>(divisor, 1);
}

constexpr Time kLargestStart = std::numeric_limits<std::uint32_t>::max();

Transfers pack(const Routes& routes, const Order& order, std::span<const Item> rows,
               std::span<const Time> starts, Time quantum) {
  std::vector<std::size_t> first_start;
  first_start.reserve(rows.size());
  std::size_t total = 0;
  for (const Item row : rows) {
    first_start.push_back(total);
    total += at(routes.legs(order.route[row]));
  }
  const auto lane_key = [&](Item item) {
    const Item row = rows[item];
    return at(order.route[row]) * 4 + order.op[row] * 2u + order.reads[row];
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

// Starts of one-leg transfers as multiples of the quantum: each as early as its links and what it reads
// allow, in the order of the given starts and not before them.
std::vector<Time> rounded_up(const Collective& collective, const Routes& routes, const Order& order,
                             std::span<const Time> starts, Time quantum) {
  std::vector<Item> by_start(starts.size());
  std::iota(by_start.begin(), by_start.end(), Item{0});
  std::stable_sort(by_start.begin(), by_start.end(),
                   [&](Item a, Item b) { return starts[a] < starts[b]; });
  std::vector<Time> free_at(at(routes.topology().links()), 0), result(starts.size());
  std::unordered_map<std::uint64_t, Time> written;  // node and chunk -> last arrival
  const auto cell = [](NodeId node, ChunkId chunk) {
    return static_cast<std::uint64_t>(node) << 32 | chunk;
  };
  std::vector<Routes::Window> windows;
  for (const Item row : by_start) {
    const RouteId route = order.route[row];
    const ChunkId chunk = order.chunk[row];
    const auto bytes = collective.bytes(chunk);
    Time start = starts[row];
    for (const NodeId source : routes.sources(route)) {
      const auto found = written.find(cell(source, chunk));
      if (found != written.end()) start = std::max(start, found->second);
    }
    windows.clear();
    routes.windows(route, 0, bytes, windows);
    for (const auto& window : windows) {
      start = std::max(start, free_at[at(window.link)] - window.offset);
    }
    start = (start + quantum - 1) / quantum * quantum;
    for (const auto& window : windows) {
      free_at[at(window.link)] = start + window.offset + window.busy;
    }
    const auto destinations = routes.destinations(route);
    for (std::size_t end = 0; end < destinations.size(); ++end) {
      Time& arrival = written[cell(destinations[end], chunk)];
      arrival = std::max(arrival, start + routes.leg_time(route, 0, bytes, end));
    }
    result[row] = start;
  }
  return result;
}

}  // namespace

Schedule retime(std::shared_ptr<const Collective> collective, std::shared_ptr<const Routes> routes,
                const Order& order, std::string provenance, const Progress& progress) {
  if (!collective->resolved()) invalid("retiming needs a collective with a number of chunks");
  for (const RouteId route : order.route) {
    if (route < 0 || route >= routes->count()) {
      invalid("a transfer names route " + std::to_string(route) + ", but there are " +
              std::to_string(routes->count()));
    }
  }
  const auto rows = sorted_rows(*collective, order);
  auto starts = Service(*collective, *routes, order, rows, 1, progress).run();
  Time quantum = common_quantum(starts);
  const auto latest = [&] {
    return starts.empty() ? 0 : *std::max_element(starts.begin(), starts.end());
  };
  while (latest() / quantum > kLargestStart) {
    // Rounding every start up to a multiple of q makes a chain of k transfers at most k·q longer.
    quantum = latest() / kLargestStart + latest() / kLargestStart / 64 + 1;
    starts = Service(*collective, *routes, order, rows, quantum, progress).run();
  }
  auto transfers = pack(*routes, order, rows, starts, quantum);
  return Schedule(std::move(collective), std::move(routes), std::move(transfers), std::nullopt,
                  std::move(provenance));
}

Schedule with_starts(std::shared_ptr<const Collective> collective,
                     std::shared_ptr<const Routes> routes, const Order& order,
                     std::span<const Time> starts, std::string provenance,
                     const Progress& progress) {
  const Time latest = starts.empty() ? 0 : *std::max_element(starts.begin(), starts.end());
  std::vector<Item> rows(starts.size());
  std::iota(rows.begin(), rows.end(), Item{0});
  Time quantum = common_quantum(starts);
  std::vector<Time> rounded;
  if (latest / quantum > kLargestStart) {
    quantum = latest / kLargestStart + latest / kLargestStart / 64 + 1;
    rounded = rounded_up(*collective, *routes, order, starts, quantum);
    if (*std::max_element(rounded.begin(), rounded.end()) / quantum > kLargestStart) {
      return retime(std::move(collective), std::move(routes), order, std::move(provenance),
                    progress);
    }
    starts = rounded;
  }
  auto transfers = pack(*routes, order, rows, starts, quantum);
  return Schedule(std::move(collective), std::move(routes), std::move(transfers), std::nullopt,
                  std::move(provenance));
}

}  // namespace tacos
