#include "simulate/in_turn.hpp"

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
#include "timing/listed_links.hpp"

namespace tacos::simulation {

namespace {

using Links = ListedLinks<std::uint64_t>;

// A chunk at a node: the turn that is on.
class Cell {
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

class Run {
 public:
  Run(const Schedule& schedule, const Routes& routes, const Options& options,
      const Progress& progress)
      : schedule_(schedule),
        routes_(routes),
        options_(options),
        progress_(progress),
        stored_(schedule.stored()),
        delays_(schedule, routes, options),
        crossings_(routes, at(schedule.stored_transfers())),
        links_(routes.topology().links()),
        cells_(schedule.topology().nodes(), ends_per_chunk(schedule)),
        known_(cells_.size()),
        lanes_(at(schedule.lanes())) {
    result_.finish.assign(at(schedule.topology().npus()), 0);
    result_.busy.assign(at(routes.topology().links()), 0);
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const RouteId own = stored_.lane_route[lane];
      lanes_[lane] = {.sources = schedule.routes().sources(own),
                      .ends = schedule.routes().destinations(own),
                      .reads = stored_.lane_reads[lane] == static_cast<std::uint8_t>(Reads::acc),
                      .copies = stored_.lane_op[lane] == static_cast<std::uint8_t>(Op::copy),
                      .ready = delays_.sources_ready(static_cast<RouteId>(lane)),
                      .lists = {}};
    }
    if (routes.all_links().size() > at(routes.count())) {
      reached_.resize(at(routes.topology().links()));
    }
    const auto& collective = schedule.collective();
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
      for (const NodeId node : collective.inputs(chunk)) known_[cells_(chunk, node)].hold();
    }
  }

  std::optional<Result> run() {
    ByStart transfers(schedule_);
    std::size_t done = 0;
    for (auto rows = transfers.next(); !rows.empty(); rows = transfers.next()) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i + kAhead < rows.size()) prefetch(rows[i + kAhead]);
        const Time own = static_cast<Time>(rows[i].start) * stored_.quantum;
        in_flight_.arrive(own, [this](const auto& arrival) { arrive(arrival); });
        if (!send(rows[i], own)) return std::nullopt;
        if (progress_ && (++done & 0xffff) == 0) {
          progress_(static_cast<double>(done) / static_cast<double>(schedule_.transfers()));
        }
      }
    }
    in_flight_.arrive(kLatest, [this](const auto& arrival) { arrive(arrival); });
    return std::move(result_);
  }

 private:
  static constexpr std::size_t kAhead = 16;
  static constexpr Time kLatest = kLongestSchedule / 2;
  struct Lane {
    std::span<const NodeId> sources, ends;
    bool reads = false, copies = false;
    Time ready = 0;  // from when on its sources are there
    std::int64_t bytes = -1;
    // For each end: the scheduled duration of a chunk of `bytes`, and the list of in_flight_ for such transfers.
    std::vector<std::pair<Time, InFlight::List>> lists;
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
    fetch_ahead(&known_[cells_.guess(row.chunk, lane.sources[0])]);
    fetch_ahead(&known_[cells_.guess(row.chunk, lane.ends[0])]);
  }

  bool send(const ByStart::Row& row, Time own) {
    Lane& lane = lanes_[row.lane];
    const auto bytes = schedule_.collective().bytes(row.chunk);
    if (lane.bytes != bytes) measure(lane, row, bytes);
    Time ready = lane.ready;
    for (const NodeId node : lane.sources) {
      Cell& cell = known_[cells_(row.chunk, node)];
      if (!cell.holds() && (!lane.reads || cell.untouched())) return false;
      if (lane.reads) ready = std::max(ready, cell.enter(Cell::reads));
    }
    const auto crossing =
        crossings_.of(crossings_.leg_id(static_cast<RouteId>(row.lane), 0), bytes,
                      [&] { return std::pair(static_cast<RouteId>(row.lane), 0u); });
    const Delays::What what{row.lane, row.transfer, bytes};
    const auto start = served(crossing.windows, what, ready, own);
    if (!start) return false;
    if (lane.reads) {
      for (const NodeId node : lane.sources) known_[cells_(row.chunk, node)].happened(*start);
    }
    for (std::size_t end = 0; end < lane.ends.size(); ++end) {
      Time time = *start + crossing.times[end] + delays_.at_end(what, 0, end);
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

  // When a leg starts, whose links are then taken; nothing if that is for the event loop to say.
  std::optional<Time> served(std::span<const Routes::Window> windows, const Delays::What& what,
                             Time ready, Time own) {
    if (options_.timing == Timing::schedule) {
      if (ready > own) return std::nullopt;
      ready = own;
    }
    Time start = ready;
    if (options_.congestion) {
      if (options_.timing == Timing::order) {
        if (!in_order(windows, own)) return std::nullopt;
        for (const auto& window : windows) {
          ready = std::max(ready, static_cast<Time>(links_.last_start(window.link)));
        }
      }
      const auto found = links_.serve(windows, crossings_.leg_id(what.route(), 0) + 1,
                                      static_cast<std::uint64_t>(ready));
      if (!found) return std::nullopt;
      start = static_cast<Time>(*found);
      if (options_.timing == Timing::schedule && start != own) return std::nullopt;
    }
    if (start > kLatest) return std::nullopt;
    for (const auto& window : windows) {
      Time busy = window.busy;
      if (delays_.slow_links()) {
        const Time delay = delays_.on_link(what, window, start);
        if (delay == kNever) return std::nullopt;
        busy += delay;
        links_.keep(window.link, static_cast<std::uint64_t>(start + window.offset + busy));
      }
      result_.busy[at(window.link)] += busy;
    }
    return start;
  }

  // Whether links come to a leg after those before it: of legs with one start, the first to reach a link goes first.
  bool in_order(std::span<const Routes::Window> windows, Time own) {
    if (reached_.empty()) return true;
    bool result = true;
    for (const auto& window : windows) {
      const std::pair now(own, window.offset);
      result = result && reached_[at(window.link)] <= now;
      reached_[at(window.link)] = now;
    }
    return result;
  }

  void arrive(const InFlight::Arrival& arrival) {
    Cell& cell = known_[arrival.cell];
    const Time time = std::max(arrival.time, cell.enter(arrival.copies ? Cell::copy : Cell::sums));
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
  Crossings crossings_;
  Links links_;
  Cells cells_;
  LargeVector<Cell> known_;  // per cell
  std::vector<Lane> lanes_;
  InFlight in_flight_;
  std::uint64_t number_ = 0;
  // Per link, if routes have several: the start, by the schedule, of the leg that took it last, and when it got there.
  std::vector<std::pair<Time, Time>> reached_;
  Result result_;
};

}  // namespace

std::optional<Result> simulate_in_turn(const Schedule& schedule, const Routes& routes,
                                       const Options& options, const Progress& progress) {
  // Links then keep their order without ever being taken.
  if (options.timing == Timing::order && !options.congestion) return {};
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const RouteId own = schedule.stored().lane_route[at(lane)];
    const bool tree = routes.kind(lane) != RouteKind::path;
    const bool whole = routes.topology().spec().forwarding == Forwarding::store_and_forward;
    if (routes.legs(lane) != 1 || schedule.routes().legs(own) != 1 || (tree && whole)) return {};
  }
  return Run(schedule, routes, options, progress).run();
}

}  // namespace tacos::simulation
