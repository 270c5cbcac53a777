#include "synth/justify.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/list_schedule.hpp"
#include "synth/reservations.hpp"
#include "timing/compose.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

constexpr std::size_t kOften = 4096;  // transfers or moments between two reports of progress
constexpr std::size_t kMostPairs = std::size_t{1} << 21;  // of events: at most 150 MB of edges

// `after` starts at least `lag`, which may be negative, later than `before`.
struct Edge {
  std::size_t before, after;
  Time lag;
};

// The edges at each transfer, which is one of their ends.
class Edges {
 public:
  Edges(const std::vector<Edge>& all, std::size_t transfers, std::size_t Edge::* end)
      : begin_(transfers + 1, 0), edges_(all.size()) {
    for (const auto& edge : all) ++begin_[edge.*end + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    auto next = begin_;
    for (const auto& edge : all) edges_[next[edge.*end]++] = edge;
  }
  std::span<const Edge> of(std::size_t transfer) const {
    return std::span(edges_).subspan(begin_[transfer], begin_[transfer + 1] - begin_[transfer]);
  }

 private:
  std::vector<std::size_t> begin_;
  std::vector<Edge> edges_;
};

// The transfers of a schedule, with their starts, and what must stay in order.
class OrderedTransfers {
 public:
  explicit OrderedTransfers(const Schedule& schedule) : schedule_(schedule) {
    if (schedule.topology().spec().reduce_bandwidth_Bps > 0)
      throw InfeasibleError("sums that take time cannot be justified");
    read();
    if (const auto edges = dependencies()) {
      before_.emplace(*edges, start.size(), &Edge::after);
      after_.emplace(*edges, start.size(), &Edge::before);
    }
  }

  // False if there are too many pairs of events to look at.
  bool known() const { return before_.has_value(); }
  // The edges from what comes before a transfer, and to what comes after it.
  std::span<const Edge> before(std::size_t i) const { return before_->of(i); }
  std::span<const Edge> after(std::size_t i) const { return after_->of(i); }

  std::span<const Routes::Window> windows(std::size_t i) const { return windows_[shape_[i]]; }
  std::int32_t links() const { return schedule_.topology().links(); }
  bool one_link() const {
    return std::all_of(windows_.begin(), windows_.end(), [](auto& one) { return one.size() == 1; });
  }

  Time end() const {
    Time last = 0;
    for (std::size_t i = 0; i < start.size(); ++i) last = std::max(last, start[i] + flight[i]);
    return last;
  }

  // All transfers, the first to start first.
  std::vector<std::size_t> by_start() const {
    return sorted([&](std::size_t a, std::size_t b) { return start[a] < start[b]; });
  }
  // All transfers, the last to arrive first.
  std::vector<std::size_t> by_arrival() const {
    return sorted(
        [&](std::size_t a, std::size_t b) { return start[a] + flight[a] > start[b] + flight[b]; });
  }

  std::optional<Schedule> schedule() const {
    const auto step = dense_rank(start);
    return at_starts(schedule_.shared_collective(), schedule_.shared_routes(),
                     {route_, chunk_, step, op_, reads_}, start, schedule_.provenance());
  }

  std::vector<Time> start, flight;  // of each transfer

 private:
  void read() {
    const auto& t = schedule_.stored();
    const auto& routes = schedule_.routes();
    std::map<std::pair<RouteId, std::int64_t>, std::size_t> shapes;  // by route and bytes
    for (std::int32_t lane = 0; lane < schedule_.lanes(); ++lane) {
      const RouteId route = t.lane_route[at(lane)];
      if (!routes.unicast(route) || routes.legs(route) != 1)
        throw InfeasibleError("only schedules over paths of one leg can be justified");
      for (auto i = t.lane_begin[at(lane)]; i < t.lane_begin[at(lane) + 1]; ++i) {
        const auto bytes = schedule_.collective().bytes(t.chunk[at(i)]);
        const auto [shape, fresh] = shapes.try_emplace({route, bytes}, windows_.size());
        if (fresh) routes.windows(route, 0, bytes, windows_.emplace_back());
        shape_.push_back(shape->second);
        route_.push_back(route);
        chunk_.push_back(t.chunk[at(i)]);
        op_.push_back(t.lane_op[at(lane)]);
        reads_.push_back(t.lane_reads[at(lane)]);
        start.push_back(schedule_.start(lane, i, 0));
        flight.push_back(schedule_.arrival(lane, i) - start.back());
      }
    }
  }

  // A start that reads `acc` of a chunk at an NPU, or an arrival that writes it.
  struct Event {
    ChunkId chunk;
    NodeId npu;
    Time time;
    bool reads;  // arrivals at t are visible to starts at t
    std::size_t transfer;
  };

  std::optional<std::vector<Edge>> dependencies() const {
    std::vector<Event> events;
    for (std::size_t i = 0; i < start.size(); ++i) {
      const auto& routes = schedule_.routes();
      const NodeId from = routes.sources(route_[i])[0], to = routes.destinations(route_[i])[0];
      if (reads_[i] == static_cast<std::uint8_t>(Reads::acc))
        events.push_back({chunk_[i], from, start[i], true, i});
      events.push_back({chunk_[i], to, start[i] + flight[i], false, i});
    }
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      return std::tie(a.chunk, a.npu, a.time, a.reads, a.transfer) <
             std::tie(b.chunk, b.npu, b.time, b.reads, b.transfer);
    });
    std::vector<Edge> edges;
    for (std::size_t first = 0, pairs = 0, i = 0; i < events.size(); ++i) {
      if (events[first].chunk != events[i].chunk || events[first].npu != events[i].npu) first = i;
      pairs += i - first;
      if (pairs > kMostPairs) return std::nullopt;
      for (std::size_t k = first; k < i; ++k) connect(events[k], events[i], edges);
    }
    return edges;
  }

  // Adds the edge that keeps two events of one NPU and chunk in order, if their order matters.
  void connect(const Event& before, const Event& after, std::vector<Edge>& edges) const {
    const auto i = before.transfer, j = after.transfer;
    constexpr auto copy = static_cast<std::uint8_t>(Op::copy);
    const bool both_read = before.reads && after.reads;
    const bool both_add = !before.reads && !after.reads && op_[i] != copy && op_[j] != copy;
    if (both_read || both_add) return;
    // Arrivals at t are visible to starts at t, so an arrival that must not be visible comes later.
    const Time least = after.reads ? 0 : std::min<Time>(after.time - before.time, 1);
    edges.push_back({i, j, least + (before.reads ? 0 : flight[i]) - (after.reads ? 0 : flight[j])});
  }

  template <typename Less>
  std::vector<std::size_t> sorted(const Less& less) const {
    std::vector<std::size_t> order(start.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), less);
    return order;
  }

  const Schedule& schedule_;
  std::vector<RouteId> route_;
  std::vector<ChunkId> chunk_;
  std::vector<std::uint8_t> op_, reads_;
  std::vector<std::size_t> shape_;
  std::vector<std::vector<Routes::Window>> windows_;  // of each shape
  std::optional<Edges> before_, after_;
};

// Plans all transfers of routes of one link anew: each link that is free takes the first of those that are ready.
class Rescheduler {
 public:
  using Transfer = std::int32_t;

  // Late: backwards from the end, in the order of arrivals. Times count from the end then.
  Rescheduler(const OrderedTransfers& transfers, bool late, const Progress& progress)
      : transfers_(transfers), late_(late), progress_(progress), links_(at(transfers.links())) {}

  // The new starts; empty if transfers wait for each other, as in an exchange.
  std::vector<Time> run() {
    const auto order = late_ ? transfers_.by_arrival() : transfers_.by_start();
    const std::vector<Transfer> by_time(order.begin(), order.end());
    std::vector<std::int32_t> server(order.size()), waits(order.size());
    std::vector<std::int32_t> server_of(at(transfers_.links()), -1);
    for (std::size_t i = 0; i < order.size(); ++i) {
      auto& link = server_of[at(transfers_.windows(i)[0].link)];
      if (link < 0) link = links_.add(windows(static_cast<Transfer>(i)));
      server[i] = link;
      waits[i] =
          static_cast<std::int32_t>((late_ ? transfers_.after(i) : transfers_.before(i)).size());
    }
    auto start = ListSchedule(links_, {server, by_time, std::move(waits)}, *this, progress_).run();
    if (served_ < order.size()) return {};
    return late_ ? mirrored(std::move(start)) : start;
  }

  // --- what a list schedule asks

  std::span<const Routes::Window> windows(Transfer i) {
    window_ = transfers_.windows(at(i))[0];
    if (late_) window_.offset = transfers_.flight[at(i)] - window_.offset - window_.busy;
    return std::span(&window_, 1);
  }

  template <typename Visit>
  void follow(Transfer i, const Visit& visit) const {
    for (const auto& edge : late_ ? transfers_.before(at(i)) : transfers_.after(at(i))) {
      const auto next = late_ ? edge.before : edge.after;
      visit(static_cast<Transfer>(next),
            edge.lag + (late_ ? transfers_.flight[at(i)] - transfers_.flight[next] : 0));
    }
  }

  // Each link has its own transfers.
  auto choose(std::span<ListOffer> fitting) const {
    return std::views::transform(fitting, &ListOffer::server);
  }

  void started(Transfer /*i*/, Time /*now*/) {
    if (progress_ && served_ % kOften == 0) {
      progress_(static_cast<double>(served_) / static_cast<double>(transfers_.start.size()));
    }
    ++served_;
  }

  bool goes_on() const { return true; }

 private:
  // Starts counted from the beginning: a transfer starts when it arrives in the opposite direction of time.
  std::vector<Time> mirrored(std::vector<Time> arrival) const {
    for (std::size_t i = 0; i < arrival.size(); ++i) arrival[i] += transfers_.flight[i];
    const Time last = arrival.empty() ? 0 : *std::max_element(arrival.begin(), arrival.end());
    for (auto& time : arrival) time = last - time;
    return arrival;
  }

  const OrderedTransfers& transfers_;
  bool late_;
  const Progress& progress_;
  Servers links_;
  Routes::Window window_{};
  std::size_t served_ = 0;
};

// Lets links serve anew, backwards and forwards, if that shortens the schedule.
void serve(OrderedTransfers& transfers, const Progress& progress) {
  const auto before = transfers.start;
  const Time time = transfers.end();
  for (const bool late : {true, false}) {
    const auto half = part_of(progress, late ? 0 : 0.5, late ? 0.5 : 1);
    auto found = Rescheduler(transfers, late, half).run();
    if (found.size() == transfers.start.size()) transfers.start = std::move(found);
  }
  if (transfers.end() > time) transfers.start = before;
}

// Moves transfers into gaps, one at a time.
class Gaps {
 public:
  explicit Gaps(OrderedTransfers& transfers) : transfers_(transfers), reserved_(transfers.links()) {
    for (std::size_t i = 0; i < transfers.start.size(); ++i) {
      reserved_.mark(transfers.windows(i), transfers.start[i], true);
    }
  }

  // Moves every transfer as late as possible, so that none arrives after the last one. Transfers that have not been moved yet
  // only become later, so their present starts are safe limits. The same holds for move_early().
  void move_late(const Progress& progress) {
    const Time time = transfers_.end();
    std::size_t moved = 0;
    for (const auto i : transfers_.by_arrival()) {
      report(progress, moved++);
      Time latest = time - transfers_.flight[i];
      for (const auto& edge : transfers_.after(i)) {
        latest = std::min(latest, transfers_.start[edge.after] - edge.lag);
      }
      move(i, latest, true);
    }
  }

  void move_early(const Progress& progress) {
    std::size_t moved = 0;
    for (const auto i : transfers_.by_start()) {
      report(progress, moved++);
      Time earliest = 0;
      for (const auto& edge : transfers_.before(i)) {
        earliest = std::max(earliest, transfers_.start[edge.before] + edge.lag);
      }
      move(i, earliest, false);
    }
  }

 private:
  void report(const Progress& progress, std::size_t moved) const {
    if (!progress || moved % kOften != 0) return;
    progress.spend(static_cast<double>(std::min(kOften, transfers_.start.size() - moved)) *
                   work::kTransfer);
    progress(static_cast<double>(moved) / static_cast<double>(transfers_.start.size()));
  }

  void move(std::size_t i, Time limit, bool late) {
    if (limit == transfers_.start[i]) return;
    reserved_.mark(transfers_.windows(i), transfers_.start[i], false);
    transfers_.start[i] = reserved_.free_start(transfers_.windows(i), limit, late);
    reserved_.mark(transfers_.windows(i), transfers_.start[i], true);
  }

  OrderedTransfers& transfers_;
  Reservations reserved_;
};

}  // namespace

Schedule justify(const Schedule& schedule, const Progress& progress) {
  if (schedule.symmetry()) return justify(schedule.expand(), progress);
  progress.reserve(3 * static_cast<double>(schedule.stored().chunk.size()) * work::kTransfer);
  OrderedTransfers transfers(schedule);
  if (!transfers.known()) return schedule;
  if (transfers.one_link()) serve(transfers, part_of(progress, 0.2, 0.6));
  Gaps gaps(transfers);
  gaps.move_late(part_of(progress, 0.6, 0.8));
  gaps.move_early(part_of(progress, 0.8, 1));
  if (transfers.end() >= schedule.time()) return schedule;
  const auto found = transfers.schedule();
  return found && found->time() < schedule.time() ? found->with_facts(schedule.facts()) : schedule;
}

}  // namespace tacos
