#include "simulate/order_sweep.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "simulate/by_start.hpp"
#include "simulate/delays.hpp"
#include "simulate/in_flight.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "support/large.hpp"
#include "timing/cells.hpp"
#include "timing/crossings.hpp"

namespace tacos::simulation {

namespace {

// A chunk at a node: the turn that is on.
class TurnCell {
 public:
  enum Kind : std::uint64_t { none, reads, sums, copy };

  void hold() { holds_ = 1; }
  bool holds() const { return holds_ != 0; }  // something to read
  bool untouched() const { return kind_ == none; }

  // When an access of some kind may happen, which comes after all before it.
  Time enter(Kind kind) {
    if (kind != kind_ || kind == copy) {
      begin_ = end_;
      kind_ = kind & 3;
    }
    return static_cast<Time>(begin_);
  }
  void happened(Time time) {
    end_ = std::max<std::uint64_t>(end_, static_cast<std::uint64_t>(time)) & kTimes;
  }

 private:
  static constexpr std::uint64_t kTimes = (std::uint64_t{1} << 62) - 1;
  std::uint64_t begin_ : 62 = 0, kind_ : 2 = none;  // when the turn could begin
  std::uint64_t end_ : 62 = 0, holds_ : 1 = 0;      // when what was done in it so far is over
};

class OrderSweep {
 public:
  OrderSweep(const Schedule& schedule, const Routes& routes, const Options& options,
             const Progress& progress)
      : schedule_(schedule),
        routes_(routes),
        options_(options),
        progress_(progress),
        stored_(schedule.stored()),
        delays_(schedule, routes, options),
        delays_ends_(delays_.at_ends()),
        crossings_(routes, at(schedule.stored_transfers())),
        links_(at(routes.topology().links())),
        several_links_(routes.all_links().size() > at(routes.count())),
        cells_(schedule.topology().nodes(), ends_per_chunk(schedule)),
        known_(cells_.size()),
        uniform_bytes_(schedule.collective().uniform_bytes()),
        lanes_(at(schedule.lanes())),
        result_(routes.topology(), schedule.topology().npus()) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const RouteId own = stored_.lane_route[lane];
      const auto here = static_cast<RouteId>(lane);
      lanes_[lane] = {.sources = schedule.routes().sources(own),
                      .ends = schedule.routes().destinations(own),
                      .from = schedule.routes().sources(own)[0],
                      .to = schedule.routes().destinations(own)[0],
                      .leg = crossings_.leg_id(here, 0),
                      .reads = stored_.lane_reads[lane] == static_cast<std::uint8_t>(Reads::acc),
                      .copies = stored_.lane_op[lane] == static_cast<std::uint8_t>(Op::copy),
                      .ready = delays_.sources_ready(here),
                      .lists = {}};
    }
    const auto& collective = schedule.collective();
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
      for (const NodeId node : collective.inputs(chunk)) known_[cells_(chunk, node)].hold();
    }
  }

  // Not a part of its caller: in a function of that size the compiler keeps the calls for each transfer, which take half of the time.
  [[gnu::noinline]] std::optional<Result> run() {
    // Windows that fit the cache, and visit each lane for a few transfers at least.
    ByStart transfers(schedule_, std::max<std::size_t>(std::size_t{1} << 13, 4 * lanes_.size()));
    std::size_t done = 0;
    for (auto rows = transfers.next(); !rows.empty(); rows = transfers.next()) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i + kAhead < rows.size()) prefetch(rows[i + kAhead]);
        const Time own = static_cast<Time>(rows[i].start) * stored_.quantum;
        arrive_until(own);
        if (!send(rows[i], own)) return std::nullopt;
        if (progress_ && (++done & 0xffff) == 0) {
          progress_(static_cast<double>(done) / static_cast<double>(schedule_.transfers()));
        }
      }
    }
    arrive_until(kLatest);
    return std::move(result_);
  }

 private:
  static constexpr std::size_t kAhead = 16;
  static constexpr Time kLatest = kLongestSchedule / 2;
  struct Lane {
    std::span<const NodeId> sources, ends;
    NodeId from = 0, to = 0;  // the first of each
    std::uint32_t leg = 0;
    bool reads = false, copies = false;
    Time ready = 0;  // from when on its sources are there
    std::int64_t bytes = -1;
    // For each end: the scheduled duration of a chunk of `bytes`, and the list of in_flight_ for such transfers.
    std::vector<std::pair<Time, InFlight::List>> lists;
  };
  struct Link {
    Time free = 0, start = 0;  // when it becomes free, and when the last leg started
    // The start of that leg in the schedule, and its offset there: when it reached this link.
    std::pair<Time, Time> reached{};
  };

  // Of every chunk: how many ends its transfers have, and its inputs.
  static std::vector<std::uint32_t> ends_per_chunk(const Schedule& schedule) {
    const auto& stored = schedule.stored();
    const auto& collective = schedule.collective();
    std::vector<std::uint32_t> ends(at(collective.chunks()));
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
      ends[chunk] = static_cast<std::uint32_t>(collective.inputs(chunk).size());
    }
    for (std::size_t lane = 0; lane + 1 < stored.lane_begin.size(); ++lane) {
      const RouteId route = stored.lane_route[lane];
      const auto each = static_cast<std::uint32_t>(schedule.routes().sources(route).size() +
                                                   schedule.routes().destinations(route).size());
      for (auto i = stored.lane_begin[lane]; i < stored.lane_begin[lane + 1]; ++i) {
        ends[stored.chunk[at(i)]] += each;
      }
    }
    return ends;
  }

  void prefetch(const ByStart::Row& row) const {
    const Lane& lane = lanes_[row.lane];
    fetch_ahead(&known_[cells_.guess(row.chunk, lane.from)]);
    fetch_ahead(&known_[cells_.guess(row.chunk, lane.to)]);
  }

  bool send(const ByStart::Row& row, Time own) {
    Lane& lane = lanes_[row.lane];
    const auto bytes =
        uniform_bytes_ > 0 ? uniform_bytes_ : schedule_.collective().bytes(row.chunk);
    if (lane.bytes != bytes) measure(lane, row, bytes);
    Time ready = lane.ready;
    for (const NodeId node : lane.sources) {
      TurnCell& cell = known_[cells_(row.chunk, node)];
      if (!cell.holds() && (!lane.reads || cell.untouched())) return false;
      if (lane.reads) ready = std::max(ready, cell.enter(TurnCell::reads));
    }
    const auto crossing = crossings_.of(
        lane.leg, bytes, [&] { return std::pair(static_cast<RouteId>(row.lane), 0u); });
    const Delays::What what{row.lane, row.transfer, bytes};
    const auto start = take_links(crossing.windows, ready, own);
    if (!start) return false;
    if (lane.reads) {
      for (const NodeId node : lane.sources) known_[cells_(row.chunk, node)].happened(*start);
    }
    for (std::size_t end = 0; end < lane.ends.size(); ++end) {
      Time time = *start + crossing.times[end];
      if (delays_ends_) time += delays_.at_end(what, 0, end);
      if (delays_.slow_links()) time += delays_.on_the_way(what, crossing.windows, end, *start);
      const auto& [duration, list] = lane.lists[end];
      if (std::max(time, own + duration) > kLatest) return false;
      in_flight_.send(list, {own + duration, time, cells_(row.chunk, lane.ends[end]),
                             lane.ends[end], lane.copies, number_});
    }
    ++number_;
    return true;
  }

  void measure(Lane& lane, const ByStart::Row& row, std::int64_t bytes) {
    lane.bytes = bytes;
    lane.lists.clear();
    const auto number = static_cast<std::int32_t>(row.lane);
    const Time own = schedule_.start(number, row.transfer, 0);
    for (std::size_t end = 0; end < lane.ends.size(); ++end) {
      const Time duration = schedule_.arrival(number, row.transfer, end) - own;
      lane.lists.emplace_back(duration, in_flight_.list_of(duration));
    }
  }

  // When a transfer starts that is ready at `ready`; its links are then taken. Nothing if the run fails, or if links have to choose.
  std::optional<Time> take_links(std::span<const Routes::Window> windows, Time ready, Time own) {
    const bool exact = options_.timing == Timing::schedule;
    Time start = exact ? own : ready;
    if (ready > start) return std::nullopt;
    if (options_.congestion) {
      for (const auto& window : windows) {
        Link& link = links_[at(window.link)];
        start = std::max({start, link.start, link.free - window.offset});
        if (!several_links_) continue;
        // Of legs with one start in the schedule, the first to reach a link goes first.
        const std::pair now(own, window.offset);
        if (link.reached > now) return std::nullopt;
        link.reached = now;
      }
    }
    if (start > kLatest || (exact && start > own)) return std::nullopt;
    for (const auto& window : windows) {
      Time busy = window.busy;
      if (delays_.slow_links()) {
        const Time delay = delays_.on_link(window, start);
        if (delay == kNever) return std::nullopt;
        busy += delay;
      }
      Link& link = links_[at(window.link)];
      link.free = start + window.offset + busy;
      link.start = start;
      result_.busy[at(window.link)] += busy;
    }
    return start;
  }

  void arrive_until(Time until) {
    in_flight_.arrive(
        until, [this](const auto& arrival) { arrive(arrival); },
        [this](const auto& arrival) { fetch_ahead(&known_[arrival.cell]); });
  }
  void arrive(const InFlight::Arrival& arrival) {
    TurnCell& cell = known_[arrival.cell];
    const Time turn = cell.enter(arrival.copies ? TurnCell::copy : TurnCell::sums);
    const Time time = std::max(arrival.time, turn);
    cell.happened(time);
    if (!routes_.topology().is_npu(arrival.node)) return;
    auto& finish = result_.finish[at(arrival.node)];
    finish = std::max(finish, time);
  }

  const Schedule& schedule_;
  const Routes& routes_;
  const Options& options_;
  const Progress& progress_;
  const Transfers& stored_;
  const Delays delays_;
  const bool delays_ends_;
  Crossings crossings_;
  std::vector<Link> links_;
  const bool several_links_;  // whether some routes have several links
  Cells cells_;
  LargeVector<TurnCell> known_;       // per cell
  const std::int64_t uniform_bytes_;  // of every chunk, or 0
  std::vector<Lane> lanes_;
  InFlight in_flight_;
  std::uint64_t number_ = 0;
  Result result_;
};

}  // namespace

std::optional<Result> sweep_in_order(const Schedule& schedule, const Routes& routes,
                                     const Options& options, const Progress& progress) {
  // Without congestion, links keep their order without ever being taken.
  const bool in_order = options.timing == Timing::order && options.congestion;
  if (options.record || (!in_order && options.timing != Timing::schedule)) return std::nullopt;
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const RouteId own = schedule.stored().lane_route[at(lane)];
    const bool tree = routes.kind(lane) != RouteKind::path;
    const bool whole = routes.topology().spec().forwarding == Forwarding::store_and_forward;
    if (routes.legs(lane) != 1 || schedule.routes().legs(own) != 1 || (tree && whole)) {
      return std::nullopt;
    }
  }
  return OrderSweep(schedule, routes, options, progress).run();
}

}  // namespace tacos::simulation
