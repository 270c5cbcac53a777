#include "timing/retime_sweep.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "support/large.hpp"
#include "support/work.hpp"
#include "timing/cells.hpp"
#include "timing/crossings.hpp"
#include "timing/listed_links.hpp"
#include "timing/quantum.hpp"

namespace tacos {

namespace {

// The rows of an order in turn, and the totals that a sweep needs to know beforehand.
class List {
 public:
  List(const Collective& collective, const Routes& routes, const Order& order,
       std::optional<std::span<const std::uint32_t>> rows, const Progress& progress)
      : collective_(collective), routes_(routes), order_(order), rows_(rows) {
    for (RouteId r = 0; r < routes.count(); ++r) {
      paths_ = paths_ && routes.unicast(r);
    }
    lanes_.resize(at(routes.count()) * 4);
    ends_.assign(at(collective.chunks()), 0);
    known_bytes_.assign(at(routes.count()) * 2, -1);
    for (std::size_t i = 0; i < size(); ++i) {
      if (progress && (i & 0xffff) == 0) progress(0);
      count((*this)[i]);
    }
    known_bytes_ = {};
    std::size_t first = 0, first_start = 0;
    for (std::size_t key = 0; key < lanes_.size(); ++key) {
      auto& lane = lanes_[key];
      lane.next = first;
      lane.next_start = first_start;
      first += lane.rows;
      first_start += lane.rows * at(routes.legs(static_cast<RouteId>(key / 4)));
    }
    legs_ = first_start;
  }

  struct Row {
    RouteId route;
    ChunkId chunk;
    std::int64_t bytes;
    std::int32_t step;
    bool reduces, reads_acc;
    std::size_t lane() const { return at(route) * 4 + (reduces ? 2 : 0) + (reads_acc ? 1 : 0); }
  };
  std::size_t size() const { return rows_ ? rows_->size() : order_.route.size(); }
  Row operator[](std::size_t i) const {
    const auto row = rows_ ? (*rows_)[i] : i;
    const ChunkId chunk = order_.chunk[row];
    return {order_.route[row],
            chunk,
            collective_.bytes(chunk),
            order_.step[row],
            order_.op[row] == static_cast<std::uint8_t>(Op::reduce),
            order_.reads[row] == static_cast<std::uint8_t>(Reads::acc)};
  }

  // Positions of a lane's next transfer in the result. The starts of successive legs are `rows` entries apart.
  struct Lane {
    std::size_t next = 0, next_start = 0, rows = 0;
  };
  const Collective& collective() const { return collective_; }
  const Routes& routes() const { return routes_; }
  const std::vector<Lane>& lanes() const { return lanes_; }
  const std::vector<std::uint32_t>& ends() const { return ends_; }  // per chunk
  std::size_t legs() const { return legs_; }
  bool sums() const { return sums_; }  // whether any transfer reduces
  // Common divisor of all durations, and so of all starts.
  Time unit() const { return std::max<Time>(unit_, 1); }
  Time longest() const { return longest_; }  // duration

  // Time to add up the chunk at the destination of a transfer.
  Time sum_time(const Row& row) const {
    const auto rate = routes_.topology().spec().reduce_bandwidth_Bps;
    return rate > 0 && row.reduces ? transmission_time(row.bytes, rate) : 0;
  }

 private:
  void count(const Row& row) {
    ++lanes_[row.lane()].rows;
    sums_ = sums_ || row.reduces;
    ends_[row.chunk] += paths_ ? 2
                               : static_cast<std::uint32_t>(routes_.sources(row.route).size() +
                                                            routes_.destinations(row.route).size());
    auto& known = known_bytes_[at(row.route) * 2 + (row.reduces ? 1 : 0)];
    if (std::exchange(known, row.bytes) == row.bytes) return;
    include(sum_time(row));
    for (std::int32_t leg = 0; leg < routes_.legs(row.route); ++leg) {
      windows_.clear();
      routes_.windows(row.route, leg, row.bytes, windows_);
      for (const auto& window : windows_) {
        include(window.offset);
        include(window.busy);
      }
      const bool last = leg + 1 == routes_.legs(row.route);
      const auto ends = last ? routes_.destinations(row.route).size() : 1;
      for (std::size_t end = 0; end < ends; ++end) {
        include(routes_.leg_time(row.route, leg, row.bytes, end));
      }
    }
  }
  void include(Time duration) {
    longest_ = std::max(longest_, duration);
    if (unit_ != 1) unit_ = std::gcd(unit_, duration);
  }

  const Collective& collective_;
  const Routes& routes_;
  const Order& order_;
  const std::optional<std::span<const std::uint32_t>> rows_;
  bool paths_ = true;  // whether no route is a tree
  bool sums_ = false;
  std::vector<Lane> lanes_;  // by route, op and reads
  std::vector<std::uint32_t> ends_;
  std::size_t legs_ = 0;
  Time unit_ = 0, longest_ = 0;
  // While counting only:
  std::vector<std::int64_t> known_bytes_;  // the size included last, per route and op
  std::vector<Routes::Window> windows_;
};

// Flags of a cell: whether the current step reads it or writes it, and whether any step so far copied to it or read it.
// The bits above the flags hold the current step.
enum : std::uint32_t { kRead = 1, kWritten = 2, kCopied = 4, kEverRead = 8, kFlags = 16 };
constexpr std::uint32_t kMostSteps = std::numeric_limits<std::uint32_t>::max() / kFlags;

// State of a chunk at a node after the rows so far. With 32-bit ticks it does not straddle two cache lines: fetching it is most
// of the work.
template <typename Tick>
struct SumCell {
  Tick arrived = 0, started = 0;  // the last arrival of a writer, the last start of a reader
  std::uint32_t flags = 0;        // the step that touched it last, and the flags above
  std::uint32_t unused = 0;

  void has_started(Tick start) { started = std::max(started, start); }
  // When all readers of earlier steps have started, if that is known.
  std::optional<Tick> readers_started() const { return started; }
};
// The same for orders that do not reduce, in which a cell is hardly ever written after it was read.
template <typename Tick>
struct CopyCell {
  Tick arrived = 0;
  std::uint32_t flags = 0;

  void has_started(Tick) { flags |= kEverRead; }
  std::optional<Tick> readers_started() const {
    return (flags & kEverRead) == 0 ? std::optional<Tick>(0) : std::nullopt;
  }
};

enum class Outcome : std::uint8_t { done, late, other_order };

// One sweep. Times are counted in `unit`. Starts are multiples of `quantum`, and are stored divided by it.
template <typename Tick, template <typename> typename Cell>
class Sweep {
 public:
  // The latest start. Durations are at most a quarter of it, so that sums of times do not overflow.
  static constexpr Time kLatest = static_cast<Time>(
      std::min<std::uint64_t>(std::numeric_limits<Tick>::max() / 2, kLongestSchedule / 2));

  Sweep(const List& list, Time unit, Tick quantum, bool write, const Progress& progress)
      : list_(list),
        routes_(list.routes()),
        unit_(unit),
        quantum_(quantum),
        write_(write),
        progress_(progress),
        crossings_(routes_, list.size(), unit),
        hops_(at(routes_.count())),
        links_(routes_.topology().links(), quantum),
        cells_(routes_.topology().nodes(), list.ends()),
        known_(cells_.size()),
        lanes_(list.lanes()) {
    for (RouteId r = 0; r < routes_.count(); ++r) {
      hops_[at(r)] = {.from = routes_.sources(r)[0],
                      .to = routes_.destinations(r)[0],
                      .link = routes_.links(r)[0]};
      simple_ = simple_ && routes_.links(r).size() == 1;
    }
    if (!write) return;
    chunk_.resize(list.size());
    start_.resize(list.legs());
  }

  Outcome run() {
    std::uint32_t step = 1;
    std::size_t spent = 0;
    const auto spend = [&](std::size_t done) {
      progress_.spend(static_cast<double>(done - std::exchange(spent, done)) * work::kHop);
    };
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const auto row = list_[i];
      if (i > 0 && row.step != last_step_ && ++step == kMostSteps) return Outcome::other_order;
      last_step_ = row.step;
      if (i + kAhead < list_.size()) prefetch(list_[i + kAhead]);
      const auto outcome = simple_ ? add_hop(row, step) : add(row, step);
      if (outcome != Outcome::done) {
        spend(i);
        return outcome;
      }
      if (progress_ && (i & 0x3fff) == 0) {
        spend(i);
        progress_(static_cast<double>(i) / static_cast<double>(list_.size()));
      }
    }
    spend(list_.size());
    return Outcome::done;
  }

  Time latest() const { return latest_; }
  Time divisor() const { return divisor_; }  // of all starts; known unless `write`

  Transfers take() {
    std::vector<RouteId> route;
    std::vector<std::uint8_t> op, reads;
    std::vector<std::int64_t> begin{0};
    for (std::size_t key = 0; key < lanes_.size(); ++key) {
      if (lanes_[key].rows == 0) continue;
      route.push_back(static_cast<RouteId>(key / 4));
      op.push_back(static_cast<std::uint8_t>(key / 2 % 2));
      reads.push_back(static_cast<std::uint8_t>(key % 2));
      begin.push_back(begin.back() + static_cast<std::int64_t>(lanes_[key].rows));
    }
    const Time quantum = quantum_ == 1 ? coarsen() : static_cast<Time>(quantum_);
    return {std::move(route),
            std::move(op),
            std::move(reads),
            std::move(begin),
            std::move(chunk_).column(),
            std::move(start_).column(),
            quantum};
  }

 private:
  using Known = Cell<Tick>;
  static constexpr std::size_t kAhead = 16;

  // The crossing of a route of one link by a chunk of `bytes`.
  struct Hop {
    std::int64_t bytes = -1;
    Tick time = 0, busy = 0;
    NodeId from = 0, to = 0;
    LinkId link = 0;
  };

  void prefetch(const List::Row& row) const {
    const Hop& hop = hops_[at(row.route)];
    fetch_ahead(&known_[cells_.guess(row.chunk, hop.from)]);
    fetch_ahead(&known_[cells_.guess(row.chunk, hop.to)]);
  }

  // The rules of retime.hpp at one end of a transfer: raise `ready` to the time until which the transfer waits there. Return
  // false if it depends on another transfer of its step.
  static bool read(Known& cell, std::uint32_t step, Tick& ready) {
    enter(cell, step);
    if ((cell.flags & kWritten) != 0) return false;
    ready = std::max(ready, cell.arrived);
    return true;
  }
  static bool write(Known& cell, std::uint32_t step, bool copies, Tick& ready) {
    enter(cell, step);
    const auto started = cell.readers_started();
    if ((cell.flags & kRead) != 0 || !started) return false;
    ready = std::max(ready, *started);
    if (copies || (cell.flags & kCopied) != 0) {
      if ((cell.flags & kWritten) != 0) return false;
      ready = std::max(ready, cell.arrived);
    }
    return true;
  }
  static void enter(Known& cell, std::uint32_t step) {
    if (cell.flags / kFlags != step) {
      cell.flags = step * kFlags | (cell.flags & (kCopied | kEverRead));
    }
  }
  static void has_read(Known& cell, Tick start) {
    cell.has_started(start);
    cell.flags |= kRead;
  }
  static void has_written(Known& cell, bool copies, Tick arrival) {
    cell.arrived = std::max(cell.arrived, arrival);
    cell.flags |= kWritten | (copies ? kCopied : 0u);
  }

  // A transfer over one link, the common case.
  Outcome add_hop(const List::Row& row, std::uint32_t step) {
    Hop& hop = hops_[at(row.route)];
    if (hop.bytes != row.bytes) fill(hop, row);
    Tick ready = 0;
    Known& from = known_[cells_(row.chunk, hop.from)];
    Known& to = known_[cells_(row.chunk, hop.to)];
    if (row.reads_acc && !read(from, step, ready)) return Outcome::other_order;
    if (!write(to, step, !row.reduces, ready)) return Outcome::other_order;
    const auto start = links_.serve(hop.link, hop.busy, ready);
    if (!start) return Outcome::other_order;
    if (static_cast<Time>(*start) > kLatest) return Outcome::late;
    if (row.reads_acc) has_read(from, *start);
    has_written(to, !row.reduces, *start + hop.time + (row.reduces ? sum_ticks(row) : 0));
    auto& lane = lanes_[row.lane()];
    put_start(lane.next_start++, *start);
    if (write_) chunk_[lane.next++] = row.chunk;
    return Outcome::done;
  }
  void fill(Hop& hop, const List::Row& row) {
    const auto crossing = crossings_.of(crossings_.leg_id(row.route, 0), row.bytes,
                                        [&] { return std::pair(row.route, std::uint32_t{0}); });
    hop.bytes = row.bytes;
    hop.time = static_cast<Tick>(crossing.times[0]);
    hop.busy = static_cast<Tick>(crossing.windows[0].busy);
  }

  // Any transfer.
  Outcome add(const List::Row& row, std::uint32_t step) {
    const auto sources = routes_.sources(row.route), ends = routes_.destinations(row.route);
    Tick ready = 0;
    bool apart = true;
    if (row.reads_acc) {
      for (const NodeId node : sources) apart = apart && read(cell(row, node), step, ready);
    }
    for (const NodeId node : ends) {
      apart = apart && write(cell(row, node), step, !row.reduces, ready);
    }
    if (!apart) return Outcome::other_order;
    auto& lane = lanes_[row.lane()];
    const auto legs = static_cast<std::uint32_t>(routes_.legs(row.route));
    for (std::uint32_t leg = 0; leg < legs; ++leg) {
      const auto id = crossings_.leg_id(row.route, leg);
      const auto crossing = crossings_.of(id, row.bytes, [&] { return std::pair(row.route, leg); });
      const auto start = links_.serve(crossing.windows, sharing(row.route, id), ready);
      if (!start) return Outcome::other_order;
      if (static_cast<Time>(*start) > kLatest) return Outcome::late;
      put_start(lane.next_start + leg * lane.rows, *start);
      ready = *start + static_cast<Tick>(crossing.times[0]);
      if (leg == 0 && row.reads_acc) {
        for (const NodeId node : sources) has_read(cell(row, node), *start);
      }
      if (leg + 1 < legs) continue;
      const Tick sum = row.reduces ? sum_ticks(row) : 0;
      for (std::size_t end = 0; end < ends.size(); ++end) {
        has_written(cell(row, ends[end]), !row.reduces,
                    *start + static_cast<Tick>(crossing.times[end]) + sum);
      }
    }
    ++lane.next_start;
    if (write_) chunk_[lane.next++] = row.chunk;
    return Outcome::done;
  }
  Known& cell(const List::Row& row, NodeId node) { return known_[cells_(row.chunk, node)]; }
  // A tree under store-and-forward reaches its links at offsets that depend on the size of the chunk.
  std::uint32_t sharing(RouteId route, std::uint32_t leg_id) const {
    const bool whole = routes_.topology().spec().forwarding == Forwarding::store_and_forward;
    if (whole && routes_.kind(route) != RouteKind::path) return ListedLinks<Tick>::kAlone;
    return leg_id + 1;
  }

  Tick sum_ticks(const List::Row& row) {
    if (sum_bytes_ != row.bytes) {
      sum_bytes_ = row.bytes;
      sum_ticks_ = static_cast<Tick>(list_.sum_time(row) / unit_);
    }
    return sum_ticks_;
  }

  void put_start(std::size_t place, Tick start) {
    latest_ = std::max(latest_, static_cast<Time>(start));
    if (write_) {
      start_[place] = static_cast<std::uint32_t>(quantum_ == 1 ? start : start / quantum_);
    } else if (divisor_ != 1) {
      divisor_ = std::gcd(divisor_, static_cast<Time>(start));
    }
  }

  // Converts the starts to the largest quantum that divides them, and returns it.
  Time coarsen() {
    const auto starts = std::span(start_.begin(), list_.legs());
    if (latest_ == 0) return 1;
    const auto ticks = common_quantum(starts);
    if (ticks > 1) {
      for (auto& start : starts) start /= static_cast<std::uint32_t>(ticks);
    }
    return ticks * unit_;
  }

  const List& list_;
  const Routes& routes_;
  const Time unit_;
  const Tick quantum_;
  const bool write_;
  const Progress& progress_;
  Crossings crossings_;
  std::vector<Hop> hops_;  // per route
  bool simple_ = true;     // whether all routes are one link
  ListedLinks<Tick> links_;
  Cells cells_;
  LargeVector<Known> known_;  // per cell
  std::vector<List::Lane> lanes_;
  std::int32_t last_step_ = 0;
  std::int64_t sum_bytes_ = -1;
  Tick sum_ticks_ = 0;
  Time latest_ = 0, divisor_ = 0;
  Unfilled<std::uint32_t> chunk_, start_;
};

template <template <typename> typename Cell>
std::optional<Transfers> sweep_with(const List& list, const Progress& progress) {
  using Short = Sweep<std::uint32_t, Cell>;
  if (list.longest() / list.unit() <= Short::kLatest / 4) {
    Short sweep(list, list.unit(), 1, true, progress);
    const auto outcome = sweep.run();
    if (outcome == Outcome::done) return sweep.take();
    if (outcome == Outcome::other_order) return std::nullopt;
  }
  // A long schedule, or one whose durations have no common unit: a first sweep finds the latest start and the quantum.
  using Long = Sweep<std::uint64_t, Cell>;
  Time latest = 0, quantum = 1;
  {
    Long sweep(list, 1, 1, false, progress);
    if (sweep.run() != Outcome::done) return std::nullopt;
    latest = sweep.latest();
    quantum = std::max<Time>(sweep.divisor(), 1);
  }
  while (true) {
    if (latest / quantum > kLargestStart) quantum = rounding_quantum(latest);
    Long sweep(list, 1, static_cast<std::uint64_t>(quantum), true, progress);
    if (sweep.run() != Outcome::done) return std::nullopt;
    latest = sweep.latest();
    if (latest / quantum <= kLargestStart) return sweep.take();
  }
}

}  // namespace

std::optional<Transfers> retime_in_one_sweep(const Collective& collective, const Routes& routes,
                                             const Order& order,
                                             std::optional<std::span<const std::uint32_t>> rows,
                                             const Progress& progress) {
  const List list(collective, routes, order, rows, progress);
  return list.sums() ? sweep_with<SumCell>(list, progress) : sweep_with<CopyCell>(list, progress);
}

}  // namespace tacos
