#include "synth/greedy_events.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
#include <tuple>

#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/matching.hpp"

namespace tacos {

namespace {

class Events {
 public:
  Events(const Routes& routes, const Paths* paths, const Collective& collective,
         std::int64_t typical_bytes, const GreedyOptions& options, const Progress& progress)
      : topology_(routes.topology()),
        routes_(routes),
        paths_(paths),
        collective_(collective),
        options_(options),
        progress_(progress),
        typical_bytes_(typical_bytes),
        have_(at(topology_.npus()), collective.chunks()),
        promised_(at(topology_.npus()), collective.chunks()) {
    const auto npus = at(topology_.npus());
    measure_routes();
    index_routes();
    if (paths == nullptr) find_regions();
    log_.resize(npus);
    received_.assign(npus, 0);
    cursor_.assign(at(routes.count()), 0);
    region_cursor_.assign(at(routes.count()), 0);
    free_at_.assign(at(topology_.links()), 0);
    stamp_.assign(at(routes.count()), 0);
    if (paths_ != nullptr) {
      queues_.resize(at(routes.count()));
      carried_.assign(at(topology_.links()), 0);
      to_carry_.assign(at(topology_.links()), 0);
      for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
        for (auto hop = paths_->begin[chunk]; hop < paths_->begin[chunk + 1]; ++hop) {
          for (const LinkId link : routes.links(paths_->route[hop]))
            to_carry_[at(link)] += topology_.busy_time(link, collective.bytes(chunk));
        }
      }
    }
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
      for (const NodeId npu : collective.inputs(chunk)) {
        promise(npu, chunk);
        hold(npu, chunk);
      }
    }
    count_missing();
    total_ = missing_;
    for (const auto& log : log_) initial_.push_back(log.size());
  }

  TimedMoves run() {
    for (RouteId r = 0; r < routes_.count(); ++r) candidates_.push_back(r);
    match();
    while (missing_ > 0) {
      if (events_.empty() && !match_without_question())
        report_unreachable(topology_, collective_, have_, options_.backwards);
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        ++handled_;
        event.chunk == kLinkIsFree ? add_users(event.where) : arrive(event.where, event.chunk);
      }
      match();
    }
    spend();
    return std::move(result_);
  }

 private:
  static constexpr ChunkId kLinkIsFree = std::numeric_limits<ChunkId>::max();
  static constexpr Time kFar = std::numeric_limits<Time>::max() / 4;

  struct Key {  // which route chooses first
    std::uint64_t first, second;
    std::uint32_t third;
    RouteId route;
    auto operator<=>(const Key&) const = default;
  };

  struct Event {
    Time time;
    std::uint64_t sequence;  // transfers that started first are logged first
    std::int32_t where;      // the NPU at which `chunk` arrives, or the link that becomes free
    ChunkId chunk;
    bool operator>(const Event& other) const {
      return std::tie(time, sequence) > std::tie(other.time, other.sequence);
    }
  };

  void count_missing() {
    if (paths_ != nullptr) {
      missing_ = paths_->route.size();
    } else {
      for (ChunkId chunk = 0; chunk < collective_.chunks(); ++chunk) {
        for (const NodeId npu : collective_.outputs(chunk)) missing_ += !have_.test(at(npu), chunk);
      }
    }
  }

  // --- properties of routes

  // Offsets and times of all routes' links for a chunk of typical size.
  void measure_routes() {
    first_window_.push_back(0);
    std::vector<Routes::Window> leg;
    for (RouteId r = 0; r < routes_.count(); ++r) {
      if (progress_ && r % 0x1000 == 0) progress_(0.0);
      append_windows(r, typical_bytes_, windows_);
      first_window_.push_back(windows_.size());
      duration_.push_back(duration(r, typical_bytes_));
      source_.push_back(routes_.sources(r)[0]);
      destination_.push_back(routes_.destinations(r)[0]);
    }
  }

  // All windows of a route, as if its legs followed each other without waiting; retiming corrects this.
  void append_windows(RouteId r, std::int64_t bytes, std::vector<Routes::Window>& out) const {
    Time before = 0;
    for (std::int32_t leg = 0; leg < routes_.legs(r); ++leg) {
      const auto first = out.size();
      routes_.windows(r, leg, bytes, out);
      for (auto i = first; i < out.size(); ++i) out[i].offset += before;
      before += routes_.leg_time(r, leg, bytes);
    }
  }
  Time duration(RouteId r, std::int64_t bytes) const {
    Time time = 0;
    for (std::int32_t leg = 0; leg < routes_.legs(r); ++leg)
      time += routes_.leg_time(r, leg, bytes);
    return time;
  }

  // Indexes routes by source, by destination (in the order of their first links) and by link; and the
  // position of each route among those of its destination.
  void index_routes() {
    const auto npus = at(topology_.npus());
    out_.resize(npus);
    in_.resize(npus);
    users_.resize(at(topology_.links()));
    for (RouteId r = 0; r < routes_.count(); ++r) {
      out_[at(source_[at(r)])].push_back(r);
      in_[at(destination_[at(r)])].push_back(r);
      for (const LinkId link : routes_.links(r)) users_[at(link)].push_back(r);
    }
    place_.resize(at(routes_.count()));
    for (std::size_t npu = 0; npu < npus; ++npu) {
      // Links in order. Through switches, each destination starts at a different position,
      // so that they do not all choose the same source at once.
      const auto key = [&](RouteId r) {
        const bool link = routes_.links(r).size() == 1;
        return std::pair(link ? 0 : (at(source_[at(r)]) + npus - npu) % npus, routes_.links(r)[0]);
      };
      std::sort(in_[npu].begin(), in_[npu].end(),
                [&](RouteId a, RouteId b) { return key(a) < key(b); });
      for (std::size_t i = 0; i < in_[npu].size(); ++i) place_[at(in_[npu][i])] = i;
    }
  }

  // Sorts the routes into classes of speed, each at least a third slower than the one before, and finds
  // for every class except the fastest the regions that all faster routes together connect.
  void find_regions() {
    std::vector<Time> limits;  // the quickest duration of each class
    auto sorted = duration_;
    std::sort(sorted.begin(), sorted.end());
    for (const Time time : sorted) {
      if (limits.empty() || time - limits.back() >= (limits.back() + 2) / 3) limits.push_back(time);
    }
    class_.reserve(duration_.size());
    for (const Time time : duration_) {
      class_.push_back(at(std::upper_bound(limits.begin(), limits.end(), time) - limits.begin()) -
                       1);
    }
    const auto npus = at(topology_.npus());
    for (std::size_t level = 1; level < limits.size(); ++level) {
      std::vector<std::size_t> region(npus);
      std::iota(region.begin(), region.end(), std::size_t{0});
      const auto root = [&](std::size_t npu) {
        while (region[npu] != npu) npu = region[npu] = region[region[npu]];
        return npu;
      };
      std::vector<std::vector<Entrance>> entrances(npus);
      for (RouteId r = 0; r < routes_.count(); ++r) {
        if (class_[at(r)] >= level) continue;
        const auto npu = at(destination_[at(r)]);
        region[root(at(source_[at(r)]))] = root(npu);
        const auto& last = windows_[first_window_[at(r) + 1] - 1];
        entrances[npu].push_back({last.link, last.offset, last.busy, duration_[at(r)]});
      }
      for (std::size_t npu = 0; npu < npus; ++npu) {
        region[npu] = root(npu);
        auto& row = entrances[npu];  // fast routes share their last links: the quickest counts
        std::sort(row.begin(), row.end(), [](const Entrance& a, const Entrance& b) {
          return std::tie(a.link, a.duration) < std::tie(b.link, b.duration);
        });
        const auto same = [](const Entrance& a, const Entrance& b) { return a.link == b.link; };
        row.erase(std::unique(row.begin(), row.end(), same), row.end());
      }
      std::vector<std::vector<std::size_t>> members(npus);
      for (std::size_t npu = 0; npu < npus; ++npu) members[region[npu]].push_back(npu);
      levels_.push_back({std::move(region), std::move(entrances), std::move(members),
                         Bits(npus, collective_.chunks()), Bits(npus, collective_.chunks()),
                         std::vector<std::int64_t>(npus, 0)});
    }
  }

  // --- matching

  void add_users(LinkId link) {
    for (const RouteId r : users_[at(link)]) add_candidate(r);
  }
  void add_candidate(RouteId r) {
    ++tried_;
    if (stamp_[at(r)] == moment_ || !is_free(r)) return;
    if (first_useful(r) == kNothing) return;
    stamp_[at(r)] = moment_;
    candidates_.push_back(r);
  }

  void promise(NodeId npu, ChunkId chunk) {
    promised_.set(at(npu), chunk);
    for (auto& level : levels_) {
      const auto region = level.region[at(npu)];
      level.promised.set(region, chunk);
      level.waiting[at(npu)] -= level.have.test(region, chunk);
    }
  }
  void hold(NodeId npu, ChunkId chunk) {
    have_.set(at(npu), chunk);
    for (auto& level : levels_) {
      const auto region = level.region[at(npu)];
      if (level.have.test(region, chunk)) continue;
      level.have.set(region, chunk);
      for (const auto member : level.members[region]) {
        level.waiting[member] += !promised_.test(member, chunk);
      }
    }
    paths_ == nullptr ? log_[at(npu)].push_back(chunk) : enqueue(npu, chunk);
  }

  void arrive(NodeId npu, ChunkId chunk) {
    hold(npu, chunk);
    --missing_;
    for (const RouteId r : out_[at(npu)]) add_candidate(r);
  }

  bool is_free(RouteId r) const {
    for (auto w = first_window_[at(r)]; w < first_window_[at(r) + 1]; ++w) {
      if (free_at_[at(windows_[w].link)] > now_ + windows_[w].offset) return false;
    }
    return true;
  }

  // Lets the candidates choose, destination by destination, and in turns at each destination.
  void match() {
    const auto npus = at(topology_.npus());
    const auto shift = moment_ % npus;
    keys_.clear();
    for (const RouteId r : candidates_) {
      const NodeId npu = destination_[at(r)];
      if (paths_ != nullptr) {
        keys_.push_back(urgency(r));
        continue;
      }
      const auto degree = in_[at(npu)].size();
      const auto turn = first_turn(options_, npu, received_[at(npu)], degree);
      const auto place = (place_[at(r)] + degree - turn) % degree;
      keys_.push_back({(at(npu) + npus - shift) % npus << 32 | place, 0, 0, r});
    }
    std::sort(keys_.begin(), keys_.end());
    candidates_.clear();
    ++moment_;
    for (const auto& [first, second, third, r] : keys_) {
      if (!is_free(r)) continue;
      const ChunkId chunk = choose(r);
      if (chunk != kNothing) start(r, chunk);
    }
    tried_ += keys_.size();
    if (progress_ && tried_ + handled_ > 0xfff) {
      spend();
      progress_(1.0 - static_cast<double>(missing_) / static_cast<double>(total_));
    }
  }

  void spend() {
    progress_.spend(static_cast<double>(tried_) * work::kTry +
                    static_cast<double>(handled_) * work::kEvent +
                    static_cast<double>(scanned_) * work::kCell);
    tried_ = handled_ = scanned_ = 0;
  }

  // Routes compete for the links they share. The route with the most loaded link is first, then
  // the one whose chunk has the longest remaining path. For ties, each destination starts with a
  // different source and continues in turns.
  Key urgency(RouteId r) const {
    const auto npus = at(topology_.npus());
    Time load = 0;
    for (const LinkId link : routes_.links(r)) load = std::max(load, to_carry_[at(link)]);
    const auto turn = carried_[at(routes_.links(r).back())];
    const auto place =
        (at(source_[at(r)]) + 2 * npus - at(destination_[at(r)]) - turn % npus) % npus;
    const Time remaining = queues_[at(r)].empty() ? 0 : queues_[at(r)].top().remaining;
    return {at(kLongestSchedule - load), at(kLongestSchedule - remaining),
            static_cast<std::uint32_t>(place), r};
  }

  // When no event is pending, sends everything that can be sent.
  bool match_without_question() {
    bool any = false;
    for (RouteId r = 0; r < routes_.count(); ++r) {
      const ChunkId chunk = first_useful(r);
      if (chunk == kNothing || !is_free(r)) continue;
      start(r, chunk);
      any = true;
    }
    return any;
  }

  static constexpr ChunkId kNothing = std::numeric_limits<ChunkId>::max();

  ChunkId choose(RouteId r) {
    return paths_ == nullptr && class_[at(r)] > 0 ? choose_slow(r) : first_useful(r);
  }

  ChunkId first_useful(RouteId r) {
    if (paths_ != nullptr) return queues_[at(r)].empty() ? kNothing : queues_[at(r)].top().chunk;
    const auto& log = log_[at(source_[at(r)])];
    auto& cursor = cursor_[at(r)];
    for (; cursor < log.size(); ++cursor) {
      if (!promised_.test(at(destination_[at(r)]), log[cursor])) return log[cursor];
    }
    return kNothing;
  }

  // Of the chunks whose path uses a route, the one with the longest remaining path is served first.
  void enqueue(NodeId npu, ChunkId chunk) {
    const auto first = paths_->route.begin() + static_cast<std::ptrdiff_t>(paths_->begin[chunk]);
    const auto last = paths_->route.begin() + static_cast<std::ptrdiff_t>(paths_->begin[chunk + 1]);
    auto hop = std::lower_bound(first, last, npu,
                                [&](RouteId r, NodeId from) { return source_[at(r)] < from; });
    for (; hop != last && source_[at(*hop)] == npu; ++hop) {
      const auto remaining = paths_->remaining[at(hop - paths_->route.begin())];
      queues_[at(*hop)].push({remaining, sequence_++, chunk});
    }
  }

  // The additional rule for slow routes; see the header.
  ChunkId choose_slow(RouteId r) {
    const auto npu = at(destination_[at(r)]);
    const auto& level = levels_[class_[at(r)] - 1];
    const auto region = level.region[npu];
    const auto words = have_.words();
    const auto* offered = have_.row(at(source_[at(r)]));
    const auto* promised = promised_.row(npu);
    const auto begin = mix(at(r)) % words;  // routes look in different places first
    const auto last_missing_in = [&](const std::uint64_t* near) {
      scanned_ += words;
      for (std::size_t i = words; i-- > 0;) {
        const auto w = (begin + i) % words;
        if (const auto any = offered[w] & ~near[w]; any != 0) {
          return static_cast<ChunkId>(w * 64 + 63 - at(std::countl_zero(any)));
        }
      }
      return kNothing;
    };
    // A chunk that was once promised to the region stays promised, so the cursor never goes back. Routes start
    // at different positions among the initial chunks of their source, so that regions first get different
    // chunks, which they can forward to each other.
    const auto& log = log_[at(source_[at(r)])];
    for (auto& cursor = region_cursor_[at(r)]; cursor < log.size(); ++cursor) {
      const auto own = initial_[at(source_[at(r)])];
      const auto chunk = log[cursor < own ? (cursor + mix(at(r))) % own : cursor];
      if (!level.promised.test(region, chunk)) return chunk;
    }
    if (first_useful(r) == kNothing) return kNothing;
    if (!level.entrances[npu].empty()) {
      // Subtract the chunks that can arrive over the fast routes before this route could deliver.
      std::int64_t backlog = level.waiting[npu];
      for (const auto& entrance : level.entrances[npu]) {
        const Time earliest = std::max(now_, free_at_[at(entrance.link)] - entrance.offset);
        const Time left = now_ + duration_[at(r)] - earliest - entrance.duration;
        if (left >= 0) backlog -= 1 + left / entrance.busy;
      }
      if (backlog <= 0) return kNothing;
    }
    // Prefer a chunk that is not in the smaller regions of even faster routes either.
    for (auto finer = class_[at(r)] - 1; finer > 0; --finer) {
      const auto& inner = levels_[finer - 1];
      const ChunkId chunk = last_missing_in(inner.promised.row(inner.region[npu]));
      if (chunk != kNothing) return chunk;
    }
    return last_missing_in(promised);
  }

  void start(RouteId r, ChunkId chunk) {
    const auto bytes = collective_.bytes(chunk);
    const NodeId npu = destination_[at(r)];
    promise(npu, chunk);
    ++received_[at(npu)];
    if (paths_ != nullptr) {
      queues_[at(r)].pop();
      for (const LinkId link : routes_.links(r))
        to_carry_[at(link)] -= topology_.busy_time(link, bytes);
      ++carried_[at(routes_.links(r).back())];
    }
    const bool typical = bytes == typical_bytes_;
    std::span<const Routes::Window> windows;
    if (typical) {
      windows = std::span(windows_).subspan(first_window_[at(r)],
                                            first_window_[at(r) + 1] - first_window_[at(r)]);
    } else {
      odd_windows_.clear();
      append_windows(r, bytes, odd_windows_);
      windows = odd_windows_;
    }
    for (const auto& window : windows) {
      free_at_[at(window.link)] = now_ + window.offset + window.busy;
      events_.push({now_ + window.busy, sequence_++, window.link, kLinkIsFree});
      // Routes that reach the link sooner can start later. Without paths, they are not reconsidered then:
      // in measurements, they took the link from longer routes, which bring in more.
      if (paths_ != nullptr && window.offset > 0) {
        events_.push({free_at_[at(window.link)], sequence_++, window.link, kLinkIsFree});
      }
    }
    const Time arrival = now_ + (typical ? duration_[at(r)] : duration(r, bytes));
    if (arrival > kLongestSchedule) too_long();
    events_.push({arrival, sequence_++, npu, chunk});
    if (now_ != last_start_) {
      last_start_ = now_;
      ++step_;
    }
    result_.route.push_back(r);
    result_.chunk.push_back(chunk);
    result_.step.push_back(step_);
    result_.start.push_back(now_);
  }

  const Topology& topology_;
  const Routes& routes_;
  const Paths* paths_;  // null: every NPU needs everything
  const Collective& collective_;
  const GreedyOptions& options_;
  const Progress& progress_;
  const std::int64_t typical_bytes_;
  Bits have_, promised_;                 // promised: has it, or is being sent it
  std::size_t missing_ = 0, total_ = 0;  // arrivals to come

  std::vector<Routes::Window> windows_, odd_windows_;
  std::vector<std::size_t> first_window_;
  std::vector<Time> duration_;
  std::vector<NodeId> source_, destination_;
  std::vector<std::vector<RouteId>> out_, in_, users_;
  std::vector<std::size_t> place_;
  std::vector<std::size_t> class_;  // of speed; 0 is the fastest
  struct Entrance {                 // a last link of fast routes, at its quickest
    LinkId link;
    Time offset, busy, duration;
  };
  struct Level {                                    // the regions of all routes faster than a class
    std::vector<std::size_t> region;                // per NPU
    std::vector<std::vector<Entrance>> entrances;   // per NPU
    std::vector<std::vector<std::size_t>> members;  // per region
    Bits have, promised;                            // by any NPU in the region
    std::vector<std::int64_t> waiting;  // per NPU: chunks of its region not promised to it
  };
  std::vector<Level> levels_;  // of classes 1, 2, …

  struct Queued {
    Time remaining;
    std::uint64_t sequence;
    ChunkId chunk;
    bool operator<(const Queued& other) const {
      return remaining != other.remaining ? remaining < other.remaining : sequence > other.sequence;
    }
  };
  std::vector<std::priority_queue<Queued>> queues_;  // with paths: chunks for each route
  std::vector<Time> to_carry_;                       // with paths: remaining load per link
  std::vector<std::size_t> carried_;
  std::vector<std::vector<ChunkId>> log_;  // without paths: chunks that each NPU has received
  std::vector<std::size_t> initial_;
  std::vector<std::uint32_t> cursor_, region_cursor_;
  std::vector<std::size_t> received_;
  std::vector<Time> free_at_;
  std::vector<std::uint64_t> stamp_;
  std::vector<RouteId> candidates_;
  std::vector<Key> keys_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t moment_ = 1, sequence_ = 0;
  // Work since it was last spent: links tried, events handled, words of bits scanned.
  std::size_t tried_ = 0, handled_ = 0, scanned_ = 0;
  Time now_ = 0, last_start_ = -1;
  std::int32_t step_ = -1;
  TimedMoves result_;
};

}  // namespace

TimedMoves greedy_events(const Routes& routes, const Collective& collective,
                         std::int64_t typical_bytes, const GreedyOptions& options,
                         const Progress& progress) {
  return Events(routes, nullptr, collective, typical_bytes, options, progress).run();
}

TimedMoves greedy_events(const Paths& paths, const Collective& collective,
                         std::int64_t typical_bytes, const GreedyOptions& options,
                         const Progress& progress) {
  return Events(paths.routes, &paths, collective, typical_bytes, options, progress).run();
}

}  // namespace tacos
