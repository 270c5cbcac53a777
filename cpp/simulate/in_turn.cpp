#include "simulate/in_turn.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "simulate/by_start.hpp"
#include "simulate/delays.hpp"
#include "simulate/in_flight.hpp"
#include "simulate/link_causes.hpp"
#include "simulate/recorder.hpp"
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
  Run(const Schedule& schedule, const Routes& routes, const Options& options, bool cautious,
      const Progress& progress)
      : schedule_(schedule),
        routes_(routes),
        options_(options),
        cautious_(cautious),
        progress_(progress),
        stored_(schedule.stored()),
        delays_(schedule, routes, options),
        crossings_(routes, at(schedule.stored_transfers())),
        links_(routes.topology().links()),
        cells_(schedule.topology().nodes(), ends_per_chunk(schedule)),
        known_(cells_.size()),
        uniform_bytes_(schedule.collective().uniform_bytes()),
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
    if (single_links()) list_hops();
    if (!options.record || hops_.empty()) return;
    causes_.emplace(schedule, routes, options.timing == Timing::dependencies);
    recorder_.emplace(schedule, routes, cells_.size(), false);
  }

  std::optional<Result> run() {
    if (options_.record && !recorder_) return std::nullopt;
    // Windows that fit the cache, and visit each lane for a few transfers at least.
    ByStart transfers(schedule_, std::max<std::size_t>(std::size_t{1} << 13, 4 * lanes_.size()));
    std::size_t done = 0;
    for (auto rows = transfers.next(); !rows.empty(); rows = transfers.next()) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i + kAhead < rows.size()) prefetch(rows[i + kAhead]);
        const Time own = static_cast<Time>(rows[i].start) * stored_.quantum;
        arrive_until(own);
        if (!(hops_.empty() ? send(rows[i], own) : send_hop(rows[i], own)) || out_of_turn_) {
          return std::nullopt;
        }
        if (progress_ && (++done & 0xffff) == 0) {
          progress_(static_cast<double>(done) / static_cast<double>(schedule_.transfers()));
        }
      }
      if (recorder_) {
        recorded_ = std::max(recorded_, earliest_to_come(rows.back()));
        recorder_->record(recorded_);
      }
    }
    arrive_until(kLatest);
    if (out_of_turn_) return std::nullopt;
    if (recorder_) recorder_->finish(result_);
    return std::move(result_);
  }

  // Whether a run that is not cautious failed for that reason.
  bool too_early() const { return too_early_; }

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

  // What a transfer over a single link needs.
  struct Hop {
    NodeId from, to;
    bool reads, copies;
    InFlight::List list = 0;
    Time ready;
    // Of a chunk of `bytes`: how long it takes here and in the schedule.
    std::int64_t bytes = -1;
    Time time = 0, duration = 0;
    Routes::Window window{};
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
    const bool hop = !hops_.empty();
    const NodeId from = hop ? hops_[row.lane].from : lane.sources[0];
    const NodeId to = hop ? hops_[row.lane].to : lane.ends[0];
    fetch_ahead(&known_[cells_.guess(row.chunk, from)]);
    fetch_ahead(&known_[cells_.guess(row.chunk, to)]);
  }

  // Whether all routes are single links, here and in the schedule.
  bool single_links() const {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const auto here = static_cast<RouteId>(lane);
      if (routes_.links(here).size() != 1 || routes_.kind(here) != RouteKind::path ||
          lanes_[lane].sources.size() != 1 || lanes_[lane].ends.size() != 1) {
        return false;
      }
    }
    return true;
  }
  void list_hops() {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const Lane& all = lanes_[lane];
      hops_.push_back({.from = all.sources[0],
                       .to = all.ends[0],
                       .reads = all.reads,
                       .copies = all.copies,
                       .ready = all.ready});
      hops_.back().window.link = routes_.links(static_cast<RouteId>(lane))[0];
    }
  }

  // As send(), for transfers over single links: what they need is in one place.
  bool send_hop(const ByStart::Row& row, Time own) {
    Hop& hop = hops_[row.lane];
    const auto bytes =
        uniform_bytes_ > 0 ? uniform_bytes_ : schedule_.collective().bytes(row.chunk);
    if (hop.bytes != bytes) measure_hop(hop, row, bytes);
    const auto from = cells_(row.chunk, hop.from), to = cells_(row.chunk, hop.to);
    Cell& source = known_[from];
    if (!source.holds() && (!hop.reads || source.untouched())) return false;
    const Time data = hop.reads ? source.enter(Cell::reads) : 0;
    Time ready = std::max(data, hop.ready);
    const Delays::What what{row.lane, row.transfer, bytes};
    const auto start = served({&hop.window, 1}, what, ready, own);
    if (!start) return false;
    if (hop.reads) source.happened(*start);
    Time time = *start + hop.time;
    if (delays_.at_ends()) time += delays_.at_end(what, 0, 0);
    if (delays_.slow_links()) time += delays_.on_link(what, hop.window, *start);
    const Time due = own + hop.duration;
    if (std::max(time, due) > kLatest) return false;
    in_flight_.send(hop.list, {due, time, to, hop.to, hop.copies, number_++});
    if (!recorder_) return true;
    const auto cell = static_cast<Recorder::Cell>(hop.reads ? from : Recorder::kInput);
    return record(row, {*start, ready, link_end_, time}, data, cell,
                  static_cast<Recorder::Cell>(to));
  }
  void measure_hop(Hop& hop, const ByStart::Row& row, std::int64_t bytes) {
    const auto lane = static_cast<RouteId>(row.lane);
    std::vector<Routes::Window> windows;
    routes_.windows(lane, 0, bytes, windows);
    hop.bytes = bytes;
    hop.window = windows[0];
    hop.time = routes_.leg_time(lane, 0, bytes, 0);
    hop.duration = schedule_.arrival(lane, row.transfer) - schedule_.start(lane, row.transfer, 0);
    hop.list = in_flight_.list_of(hop.duration);
  }

  bool send(const ByStart::Row& row, Time own) {
    Lane& lane = lanes_[row.lane];
    const auto bytes = schedule_.collective().bytes(row.chunk);
    if (lane.bytes != bytes) measure(lane, row, bytes);
    Time data = 0;
    for (const NodeId node : lane.sources) {
      Cell& cell = known_[cells_(row.chunk, node)];
      if (!cell.holds() && (!lane.reads || cell.untouched())) return false;
      if (lane.reads) data = std::max(data, cell.enter(Cell::reads));
    }
    const auto crossing =
        crossings_.of(crossings_.leg_id(static_cast<RouteId>(row.lane), 0), bytes,
                      [&] { return std::pair(static_cast<RouteId>(row.lane), 0u); });
    const Delays::What what{row.lane, row.transfer, bytes};
    Time ready = std::max(data, lane.ready);
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

  // Records a transfer; returns false if only the event loop can.
  struct Times {
    Time start, ready, end, arrival;
  };
  bool record(const ByStart::Row& row, const Times& times, Time data, Recorder::Cell from,
              Recorder::Cell to) {
    if (times.arrival <= times.start) return false;  // a moment would have two rounds
    too_early_ = times.start < recorded_;
    if (too_early_) return false;
    const Time own = static_cast<Time>(row.start) * stored_.quantum;
    ahead_ = std::max(ahead_, own - times.start);
    std::int32_t cause = Recorder::kData;
    if (options_.congestion) {
      if (options_.timing == Timing::dependencies) {
        cause = causes_->first_come(row.lane, times.ready, times.start);
      } else if (options_.timing == Timing::order) {
        cause = causes_->in_order(row.lane, data, times.ready, times.start);
      }
      causes_->serve(row.lane, row.transfer, times.ready, times.start);
    }
    recorder_->add({.start = times.start,
                    .ready = times.ready,
                    .end = times.end,
                    .arrival = times.arrival,
                    .transfer = row.transfer,
                    .lane = row.lane,
                    .from = from,
                    .to = to,
                    .cause = cause,
                    .position = 0});
    return true;
  }

  // When the transfers that come after this one may start at the earliest. Unless the run is cautious, this is a guess: that they
  // do not start twice as early, compared to the schedule, as those so far.
  Time earliest_to_come(const ByStart::Row& row) const {
    const Time certain = options_.congestion ? causes_->earliest() : 0;
    if (cautious_) return certain;
    return std::max(certain, static_cast<Time>(row.start) * stored_.quantum - 2 * ahead_);
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

  // When a leg starts, whose links are then taken; nothing if that is for the event loop to say. Raises `ready` to the moment from
  // which the leg waits for nothing but its links.
  std::optional<Time> served(std::span<const Routes::Window> windows, const Delays::What& what,
                             Time& ready, Time own) {
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
      link_end_ = start + window.offset + busy;
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

  void arrive_until(Time until) {
    in_flight_.arrive(
        until, [this](const auto& arrival) { arrive(arrival); },
        [this](const auto& arrival) { fetch_ahead(&known_[arrival.cell]); });
  }
  void arrive(const InFlight::Arrival& arrival) {
    Cell& cell = known_[arrival.cell];
    const Time turn = cell.enter(arrival.copies ? Cell::copy : Cell::sums);
    // The event loop tells such an arrival together with the start that it waits for.
    out_of_turn_ = out_of_turn_ || (recorder_ && turn >= arrival.time);
    const Time time = std::max(arrival.time, turn);
    cell.happened(time);
    if (!routes_.topology().is_npu(arrival.node)) return;
    auto& finish = result_.finish[at(arrival.node)];
    finish = std::max(finish, time);
  }

  const Schedule& schedule_;
  const Routes& routes_;
  const Options& options_;
  const bool cautious_;  // whether to record only what is certain
  const Progress& progress_;
  const Transfers& stored_;
  const Delays delays_;
  Crossings crossings_;
  Links links_;
  Cells cells_;
  LargeVector<Cell> known_;           // per cell
  const std::int64_t uniform_bytes_;  // of every chunk, or 0
  std::vector<Lane> lanes_;
  std::vector<Hop> hops_;  // per lane, if all routes are single links
  InFlight in_flight_;
  std::uint64_t number_ = 0;
  // Per link, if routes have several: the start, by the schedule, of the leg that took it last, and when it got there.
  std::vector<std::pair<Time, Time>> reached_;
  // If the run is recorded:
  std::optional<LinkCauses> causes_;
  std::optional<Recorder> recorder_;
  Time link_end_ = 0;  // when the link that was taken last is free again
  Time recorded_ = 0;  // what starts before this is in the record
  Time ahead_ = 0;     // by how much a transfer started before its time in the schedule, at most
  bool too_early_ = false;  // whether a transfer belongs before what is in the record
  bool out_of_turn_ =
      false;  // whether data arrived before the transfers that read the data before them had started
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
  {
    Run run(schedule, routes, options, false, progress);
    if (auto result = run.run()) return result;
    if (!run.too_early()) return {};
  }
  return Run(schedule, routes, options, true, progress).run();
}

}  // namespace tacos::simulation
