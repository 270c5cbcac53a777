#include "synth/greedy.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <limits>
#include <numeric>
#include <queue>
#include <thread>

#include "retime.hpp"
#include "synth/neighbours.hpp"

namespace tacos {

namespace {

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

std::uint64_t mix(std::uint64_t x) {  // the finalizer of SplitMix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Which of its `degree` routes a destination lets choose first; they take turns from there. Both ways
// to run the engine use it, with the number of chunks that the destination has so far.
std::size_t first_turn(const GreedyOptions& options, NodeId destination, std::size_t received,
                       std::size_t degree) {
  const std::uint64_t shift = options.seed == 0 ? 0 : mix(options.seed * 0x10001 + at(destination));
  return (received + shift) % degree;
}

// One bit per NPU and chunk.
class Bits {
 public:
  Bits(std::size_t rows, std::size_t columns)
      : words_((columns + 63) / 64), bits_(rows * words_, 0) {}

  bool test(std::size_t row, std::size_t column) const {
    return (bits_[row * words_ + column / 64] >> (column % 64) & 1) != 0;
  }
  void set(std::size_t row, std::size_t column) {
    bits_[row * words_ + column / 64] |= std::uint64_t{1} << (column % 64);
  }
  const std::uint64_t* row(std::size_t row) const { return bits_.data() + row * words_; }
  std::size_t words() const { return words_; }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

// When nothing more can be sent: who waits in vain, and for whom.
[[noreturn]] void report_unreachable(const Topology& topology, const Collective& collective,
                                     const Bits& have) {
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    for (const NodeId npu : collective.outputs(chunk)) {
      if (have.test(at(npu), chunk)) continue;
      throw InfeasibleError(topology.name(collective.inputs(chunk)[0]) + " cannot reach " +
                            topology.name(npu) + ", which needs its chunk " +
                            std::to_string(chunk));
    }
  }
  throw InfeasibleError("some NPU cannot be reached");
}

// --- steps -----------------------------------------------------------------------------------------

// Whether the step-synchronous way applies: everybody wants every chunk, all chunks and all links are
// alike and direct, and a chunk arrives a whole number of steps after its start.
bool stepwise(const Topology& topology, const Collective& collective) {
  if (topology.links() == 0 || topology.nodes() != topology.npus()) return false;
  for (LinkId link = 1; link < topology.links(); ++link) {
    if (topology.latency(link) != topology.latency(0)) return false;
    if (topology.bandwidth(link) != topology.bandwidth(0)) return false;
  }
  const auto bytes = collective.chunks() > 0 ? collective.bytes(0) : 0;
  if (bytes == 0) return false;
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (collective.bytes(chunk) != bytes || collective.inputs(chunk).size() != 1 ||
        static_cast<std::int32_t>(collective.outputs(chunk).size()) != topology.npus()) {
      return false;
    }
  }
  return topology.latency(0) % topology.busy_time(0, bytes) == 0 ||
         topology.spec().link_model == LinkModel::blocking;
}

// Every destination has one region of the schedule's columns, filled in order of arrival: it is the log
// that its neighbours read, and becomes its in-links' lanes in the end.
class Steps {
 public:
  Steps(const std::shared_ptr<const Topology>& topology, const Collective& collective,
        const GreedyOptions& options, const Progress& progress)
      : topology_(*topology),
        collective_(collective),
        options_(options),
        progress_(progress),
        chunks_(collective.chunks()),
        have_(at(topology->npus()), collective.chunks()) {
    const auto npus = at(topology_.npus());
    const auto bytes = collective.bytes(0);
    period_ = topology_.busy_time(0, bytes);
    const Time arrival = topology_.latency(0) + transmission_time(bytes, topology_.bandwidth(0));
    lag_ = static_cast<std::uint32_t>((arrival + period_ - 1) / period_);
    own_.resize(npus);
    for (ChunkId chunk = 0; chunk < chunks_; ++chunk) {
      const auto holder = at(collective.inputs(chunk)[0]);
      own_[holder].push_back(chunk);
      have_.set(holder, chunk);
    }
    begin_.assign(npus + 1, 0);
    for (std::size_t npu = 0; npu < npus; ++npu) {
      begin_[npu + 1] = begin_[npu] + chunks_ - own_[npu].size();
      if (at(topology_.in_links(static_cast<NodeId>(npu)).size()) > kMostInLinks) {
        too_many_links_ = true;
      }
    }
    chunk_.resize(begin_[npus]);
    start_.resize(begin_[npus]);
    in_link_.resize(begin_[npus]);
    turn_.assign(npus, 0);
    served_.assign(npus, 0);
    clock_ = std::vector<std::atomic<std::uint32_t>>(npus);
    received_ = std::vector<std::atomic<std::uint32_t>>(npus);
    cursor_.assign(at(topology_.links()), 0);
  }

  bool applies() const { return !too_many_links_; }

  Transfers run() {
    const auto npus = at(topology_.npus());
    const auto cores = std::max(1u, std::thread::hardware_concurrency());
    auto threads = options_.threads > 0 ? at(options_.threads) : at(cores);
    threads = std::min({threads, npus / 64 + 1, at(8 * cores)});
    std::atomic<std::size_t> missing{begin_[npus]};
    std::exception_ptr failure;
    bool done = missing == 0;
    std::size_t before = missing;
    std::uint32_t slowest = 0, until = kAhead;
    const auto next_round = [&]() noexcept {
      // Runs on one thread while the others wait.
      std::uint32_t now = kFinished;
      for (const auto& clock : clock_) now = std::min(now, clock.load(std::memory_order_relaxed));
      // Nothing sent for as long as a chunk takes to arrive: nothing will ever be sent again.
      const bool stuck = missing == before && now != kFinished && now - slowest > kAhead + lag_;
      if (missing != before) {
        before = missing;
        slowest = now;
      }
      done = missing == 0 || stuck || now == kFinished;
      until = now == kFinished ? kFinished : now + kAhead;
      if (progress_ && !failure) {
        try {
          progress_(1.0 - static_cast<double>(missing) / static_cast<double>(begin_[npus]));
        } catch (...) {
          failure = std::current_exception();
        }
      }
      done = done || failure;
    };
    std::barrier barrier(static_cast<std::ptrdiff_t>(threads), next_round);
    const auto work = [&](std::size_t thread) {
      const auto first = npus * thread / threads, last = npus * (thread + 1) / threads;
      while (!done) {
        std::size_t matched = 0;
        for (auto npu = first; npu < last; ++npu) matched += serve(static_cast<NodeId>(npu), until);
        missing -= matched;
        barrier.arrive_and_wait();
      }
    };
    {
      std::vector<std::jthread> others;
      for (std::size_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
      work(0);
    }
    if (failure) std::rethrow_exception(failure);
    if (missing > 0) report_unreachable(topology_, collective_, have_);
    return lanes();
  }

 private:
  static constexpr std::size_t kMostInLinks = 255;  // numbered in a byte
  static constexpr std::uint32_t kFinished = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t kAhead = 256;  // steps that a destination may be ahead of others

  // Lets a destination run as many steps as its sources' logs decide, which loads its row of bits
  // once for all of them. In a step, each in-link chooses in turn. What a source holds beyond what is
  // known of it can matter only if nothing known is of use; then the destination waits, in the middle
  // of its step, for the source's clock. So the result does not depend on who runs when.
  std::size_t serve(NodeId npu, std::uint32_t until) {
    const auto links = topology_.in_links(npu);
    const auto total = begin_[at(npu) + 1] - begin_[at(npu)];
    auto received = received_[at(npu)].load(std::memory_order_relaxed);
    auto step = clock_[at(npu)].load(std::memory_order_relaxed);
    const auto before = received;
    auto& served = served_[at(npu)];  // links that have chosen in this step
    for (; step < until; ++step, served = 0) {
      if (received == total || links.empty()) {
        step = kFinished;
        break;
      }
      if (served == 0) {
        turn_[at(npu)] =
            static_cast<std::uint8_t>(first_turn(options_, npu, received, links.size()));
      }
      for (; served < links.size(); ++served) {
        const auto which = (at(turn_[at(npu)]) + served) % links.size();
        if (!choose(npu, links[which], which, step, received)) break;
      }
      if (served < links.size()) break;
    }
    clock_[at(npu)].store(step, std::memory_order_release);
    return received - before;
  }

  // One link's choice in a step; false if it cannot be known yet.
  bool choose(NodeId npu, LinkId link, std::size_t which, std::uint32_t step,
              std::uint32_t& received) {
    const auto source = at(topology_.src(link));
    const auto own = own_[source].size();
    // The clock before the count: all that started before the clock is then counted.
    const auto clock = clock_[source].load(std::memory_order_acquire);
    const auto count = received_[source].load(std::memory_order_acquire);
    for (auto& cursor = cursor_[at(link)];; ++cursor) {
      ChunkId chunk = 0;
      if (cursor < own) {
        chunk = own_[source][cursor];
      } else if (cursor - own < count) {
        const auto row = begin_[source] + cursor - own;
        if (start_[row] + lag_ > step) return true;  // not there yet
        chunk = chunk_[row];
      } else {
        return clock == kFinished || clock + lag_ > step;
      }
      if (have_.test(at(npu), chunk)) continue;
      have_.set(at(npu), chunk);
      const auto row = begin_[at(npu)] + received;
      chunk_[row] = chunk;
      start_[row] = step;
      in_link_[row] = static_cast<std::uint8_t>(which);
      received_[at(npu)].store(++received, std::memory_order_release);
      ++cursor;
      return true;
    }
  }

  // Sorts every destination's log by in-link, keeping the order of arrival, in place.
  Transfers lanes() {
    std::vector<RouteId> route;
    std::vector<std::int64_t> lane_begin{0};
    std::vector<ChunkId> chunk;
    std::vector<std::uint32_t> start;
    for (NodeId npu = 0; npu < topology_.npus(); ++npu) {
      const auto links = topology_.in_links(npu);
      const auto first = begin_[at(npu)], last = begin_[at(npu) + 1];
      std::vector<std::size_t> next(links.size() + 1, 0);
      for (auto row = first; row < last; ++row) ++next[at(in_link_[row]) + 1];
      for (std::size_t i = 0; i < links.size(); ++i) {
        route.push_back(links[i]);
        lane_begin.push_back(lane_begin.back() + static_cast<std::int64_t>(next[i + 1]));
      }
      std::partial_sum(next.begin(), next.end(), next.begin());
      chunk.assign(chunk_.begin() + static_cast<std::ptrdiff_t>(first),
                   chunk_.begin() + static_cast<std::ptrdiff_t>(last));
      start.assign(start_.begin() + static_cast<std::ptrdiff_t>(first),
                   start_.begin() + static_cast<std::ptrdiff_t>(last));
      for (std::size_t i = 0; i < chunk.size(); ++i) {
        const auto to = first + next[at(in_link_[first + i])]++;
        chunk_[to] = chunk[i];
        start_[to] = start[i];
      }
    }
    std::vector<std::uint8_t> op(route.size(), static_cast<std::uint8_t>(Op::copy));
    std::vector<std::uint8_t> reads(route.size(), static_cast<std::uint8_t>(Reads::acc));
    return {std::move(route),  std::move(op),     std::move(reads), std::move(lane_begin),
            std::move(chunk_), std::move(start_), period_};
  }

  const Topology& topology_;
  const Collective& collective_;
  const GreedyOptions& options_;
  const Progress& progress_;
  const ChunkId chunks_;
  Bits have_;  // or is being sent
  Time period_ = 0;
  std::uint32_t lag_ = 1;  // steps from a start to where the chunk can be sent on
  bool too_many_links_ = false;
  std::vector<std::vector<ChunkId>> own_;  // what each NPU held at the start: the head of its log
  std::vector<std::size_t> begin_;         // each destination's region
  std::vector<ChunkId> chunk_;
  std::vector<std::uint32_t> start_;
  std::vector<std::uint8_t> in_link_;
  std::vector<std::atomic<std::uint32_t>> received_;  // per NPU, also what is still on its way
  std::vector<std::atomic<std::uint32_t>> clock_;     // per NPU: steps it has finished
  std::vector<std::uint8_t> turn_;                    // of the step it is in: who chooses first,
  std::vector<std::uint8_t> served_;                  // and how many have chosen
  std::vector<std::uint32_t> cursor_;                 // per link, into its source's log
};

// --- events ----------------------------------------------------------------------------------------

class Events {
 public:
  Events(const Routes& routes, const Collective& collective, std::int64_t typical_bytes,
         const GreedyOptions& options, const Progress& progress)
      : topology_(routes.topology()),
        routes_(routes),
        collective_(collective),
        options_(options),
        progress_(progress),
        typical_bytes_(typical_bytes),
        have_(at(topology_.npus()), collective.chunks()),
        promised_(at(topology_.npus()), collective.chunks()) {
    const auto npus = at(topology_.npus());
    measure_routes();
    index_routes();
    find_regions();
    log_.resize(npus);
    received_.assign(npus, 0);
    cursor_.assign(at(routes.count()), 0);
    free_at_.assign(at(topology_.links()), 0);
    stamp_.assign(at(routes.count()), 0);
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
      dense_ = dense_ && (collective.bytes(chunk) == 0 || collective.outputs(chunk).size() == npus);
    }
    if (!dense_) prepare_relays();
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
      for (const NodeId npu : collective.inputs(chunk)) {
        promise(npu, chunk);
        hold(npu, chunk);
      }
      for (const NodeId npu : collective.outputs(chunk)) missing_ += !have_.test(at(npu), chunk);
    }
    total_ = missing_;
  }

  // The transfers in the order in which they start.
  struct Result {
    std::vector<RouteId> route;
    std::vector<ChunkId> chunk;
    std::vector<std::int32_t> step;
    std::vector<Time> start;
  };
  Result run() {
    for (RouteId r = 0; r < routes_.count(); ++r) candidates_.push_back(r);
    match();
    while (missing_ > 0) {
      if (events_.empty() && !match_without_question())
        report_unreachable(topology_, collective_, have_);
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        event.chunk == kLinkIsFree ? add_users(event.where) : arrive(event.where, event.chunk);
      }
      match();
    }
    if (!dense_) drop_what_was_in_vain();
    return std::move(result_);
  }

 private:
  static constexpr ChunkId kLinkIsFree = std::numeric_limits<ChunkId>::max();
  static constexpr Time kFar = std::numeric_limits<Time>::max() / 4;

  struct Event {
    Time time;
    std::uint64_t sequence;  // what started first is logged first
    std::int32_t where;      // the NPU at which `chunk` arrives, or the link that becomes free
    ChunkId chunk;
    bool operator>(const Event& other) const {
      return std::tie(time, sequence) > std::tie(other.time, other.sequence);
    }
  };

  // --- what routes are like

  // Offsets and times of all routes' links for a chunk of typical size.
  void measure_routes() {
    first_window_.push_back(0);
    std::vector<Routes::Window> leg;
    for (RouteId r = 0; r < routes_.count(); ++r) {
      append_windows(r, typical_bytes_, windows_);
      first_window_.push_back(windows_.size());
      duration_.push_back(duration(r, typical_bytes_));
      source_.push_back(routes_.sources(r)[0]);
      destination_.push_back(routes_.destinations(r)[0]);
    }
  }

  // All windows of a route as if its legs followed each other without waiting; retiming knows better.
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

  // Routes by source, by destination (in the order of their first links) and by link; for each route
  // its place among those of its destination.
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
      // Links in their order; through switches, each destination begins at its own place in the row,
      // so that not all ask the same source at once.
      const auto key = [&](RouteId r) {
        const bool link = routes_.links(r).size() == 1;
        return std::pair(link ? 0 : (at(source_[at(r)]) + npus - npu) % npus, routes_.links(r)[0]);
      };
      std::sort(in_[npu].begin(), in_[npu].end(),
                [&](RouteId a, RouteId b) { return key(a) < key(b); });
      for (std::size_t i = 0; i < in_[npu].size(); ++i) place_[at(in_[npu][i])] = i;
    }
  }

  // Sorts the routes into classes of speed, each a third slower than the one before or more, and finds
  // for every class but the fastest the regions that all faster routes together connect.
  void find_regions() {
    std::vector<Time> limits;  // the quickest duration of each class
    auto sorted = duration_;
    std::sort(sorted.begin(), sorted.end());
    for (const Time time : sorted) {
      if (limits.empty() || 3 * time >= 4 * limits.back()) limits.push_back(time);
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
      std::vector<std::int64_t> rate(npus, 0);
      std::vector<std::vector<LinkId>> last(npus);
      for (RouteId r = 0; r < routes_.count(); ++r) {
        if (class_[at(r)] >= level) continue;
        region[root(at(source_[at(r)]))] = root(at(destination_[at(r)]));
        last[at(destination_[at(r)])].push_back(routes_.links(r).back());
      }
      for (std::size_t npu = 0; npu < npus; ++npu) region[npu] = root(npu);
      for (std::size_t npu = 0; npu < npus; ++npu) {  // fast routes share their last links
        std::sort(last[npu].begin(), last[npu].end());
        last[npu].erase(std::unique(last[npu].begin(), last[npu].end()), last[npu].end());
        for (const LinkId link : last[npu]) rate[npu] += topology_.bandwidth(link);
      }
      levels_.push_back({std::move(region), std::move(rate), Bits(npus, collective_.chunks()),
                         Bits(npus, collective_.chunks())});
    }
  }

  // --- relays

  // For every wanted NPU the time from everywhere to it, and for every wanted (chunk, NPU) pair the
  // place from where the chunk is carried on to that NPU.
  void prepare_relays() {
    const auto npus = at(topology_.npus());
    std::vector<std::uint8_t> wanted(npus, 0);
    first_pair_.assign(at(collective_.chunks()) + 1, 0);
    wants_ = Bits(npus, collective_.chunks());
    for (ChunkId chunk = 0; chunk < collective_.chunks(); ++chunk) {
      first_pair_[at(chunk) + 1] = first_pair_[at(chunk)] + collective_.outputs(chunk).size();
      for (const NodeId npu : collective_.outputs(chunk)) {
        wanted[at(npu)] = 1;
        wants_.set(at(npu), chunk);
      }
    }
    distance_.assign(npus, {});
    for (std::size_t npu = 0; npu < npus; ++npu) {
      if (wanted[npu]) distance_[npu] = times_to(static_cast<NodeId>(npu));
    }
    queues_.resize(at(routes_.count()));
    carrier_.assign(first_pair_.back(), -1);
    for (ChunkId chunk = 0; chunk < collective_.chunks(); ++chunk) {
      const auto outputs = collective_.outputs(chunk);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        NodeId& carrier = carrier_[first_pair_[chunk] + i];
        for (const NodeId npu : collective_.inputs(chunk)) {
          const auto& time = distance_[at(outputs[i])];
          if (carrier < 0 || time[at(npu)] < time[at(carrier)]) carrier = npu;
        }
      }
    }
  }

  std::vector<Time> times_to(NodeId target) const {
    using Entry = std::pair<Time, NodeId>;
    std::vector<Time> time(at(topology_.npus()), kFar);
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    time[at(target)] = 0;
    queue.emplace(0, target);
    while (!queue.empty()) {
      const auto [reached, npu] = queue.top();
      queue.pop();
      if (reached > time[at(npu)]) continue;
      for (const RouteId r : in_[at(npu)]) {
        Time& before = time[at(source_[at(r)])];
        if (reached + duration_[at(r)] >= before) continue;
        before = reached + duration_[at(r)];
        queue.emplace(before, source_[at(r)]);
      }
    }
    return time;
  }

  // The chunk goes to `npu`: it carries it on to all that are nearer to it than to their carriers.
  void carry(ChunkId chunk, NodeId npu) {
    const auto outputs = collective_.outputs(chunk);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      NodeId& carrier = carrier_[first_pair_[chunk] + i];
      const auto& time = distance_[at(outputs[i])];
      if (time[at(npu)] < time[at(carrier)]) carrier = npu;
    }
  }

  // A relay may be overtaken by a nearer one and turn out to have been in vain.
  void drop_what_was_in_vain() {
    Bits needed = wants_;
    std::vector<std::uint8_t> keep(result_.route.size());
    for (auto i = result_.route.size(); i-- > 0;) {
      const RouteId r = result_.route[i];
      keep[i] = needed.test(at(destination_[at(r)]), result_.chunk[i]);
      if (keep[i]) needed.set(at(source_[at(r)]), result_.chunk[i]);
    }
    const auto filter = [&](auto& column) {
      std::size_t kept = 0;
      for (std::size_t i = 0; i < keep.size(); ++i) {
        if (keep[i]) column[kept++] = column[i];
      }
      column.resize(kept);
    };
    filter(result_.route);
    filter(result_.chunk);
    filter(result_.step);
    filter(result_.start);
  }

  bool of_use(NodeId from, NodeId npu, ChunkId chunk) const {
    if (promised_.test(at(npu), chunk)) return false;
    const auto outputs = collective_.outputs(chunk);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (carrier_[first_pair_[chunk] + i] != from) continue;
      const auto& time = distance_[at(outputs[i])];
      if (time[at(npu)] < time[at(from)]) return true;
    }
    return false;
  }

  // --- matching

  void add_users(LinkId link) {
    for (const RouteId r : users_[at(link)]) add_candidate(r);
  }
  void add_candidate(RouteId r) {
    if (stamp_[at(r)] == moment_ || !is_free(r)) return;
    stamp_[at(r)] = moment_;
    candidates_.push_back(r);
  }

  void promise(NodeId npu, ChunkId chunk) {
    promised_.set(at(npu), chunk);
    for (auto& level : levels_) level.promised.set(level.region[at(npu)], chunk);
  }
  void hold(NodeId npu, ChunkId chunk) {
    have_.set(at(npu), chunk);
    for (auto& level : levels_) level.have.set(level.region[at(npu)], chunk);
    dense_ ? log_[at(npu)].push_back(chunk) : enqueue(npu, chunk);
  }

  void arrive(NodeId npu, ChunkId chunk) {
    hold(npu, chunk);
    if (dense_ || wants_.test(at(npu), chunk)) --missing_;
    for (const RouteId r : out_[at(npu)]) add_candidate(r);
  }

  bool is_free(RouteId r) const {
    for (auto w = first_window_[at(r)]; w < first_window_[at(r) + 1]; ++w) {
      if (free_at_[at(windows_[w].link)] > now_ + windows_[w].offset) return false;
    }
    return true;
  }

  // Lets the candidates choose: destination by destination, and there in turns.
  void match() {
    const auto npus = at(topology_.npus());
    const auto shift = moment_ % npus;
    keys_.clear();
    for (const RouteId r : candidates_) {
      const NodeId npu = destination_[at(r)];
      const auto degree = in_[at(npu)].size();
      const auto turn = first_turn(options_, npu, received_[at(npu)], degree);
      const auto place = (place_[at(r)] + degree - turn) % degree;
      keys_.emplace_back((at(npu) + npus - shift) % npus, place, r);
    }
    std::sort(keys_.begin(), keys_.end());
    candidates_.clear();
    ++moment_;
    for (const auto& [npu, place, r] : keys_) {
      if (!is_free(r)) continue;
      const ChunkId chunk = choose(r);
      if (chunk != kNothing) start(r, chunk);
    }
    if (progress_ && (moment_ & 0xff) == 0) {
      progress_(1.0 - static_cast<double>(missing_) / static_cast<double>(total_));
    }
  }

  // When everything is quiet, whoever can send does.
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
    return dense_ && class_[at(r)] > 0 ? choose_slow(r) : first_useful(r);
  }

  ChunkId first_useful(RouteId r) {
    if (!dense_) return farthest(r);
    const auto& log = log_[at(source_[at(r)])];
    auto& cursor = cursor_[at(r)];
    for (; cursor < log.size(); ++cursor) {
      if (!promised_.test(at(destination_[at(r)]), log[cursor])) return log[cursor];
    }
    return kNothing;
  }

  // Where relays carry chunks, those with the longest way to go are served first.
  ChunkId farthest(RouteId r) {
    auto& queue = queues_[at(r)];
    for (; !queue.empty(); queue.pop()) {
      if (of_use(source_[at(r)], destination_[at(r)], queue.top().chunk)) return queue.top().chunk;
    }
    return kNothing;
  }
  void enqueue(NodeId npu, ChunkId chunk) {
    const auto outputs = collective_.outputs(chunk);
    for (const RouteId r : out_[at(npu)]) {
      Time longest = 0;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const auto& time = distance_[at(outputs[i])];
        if (carrier_[first_pair_[chunk] + i] != npu) continue;
        if (time[at(destination_[at(r)])] < time[at(npu)])
          longest = std::max(longest, time[at(npu)]);
      }
      if (longest > 0) queues_[at(r)].push({longest, sequence_++, chunk});
    }
  }

  // The question for slow routes; see the header.
  ChunkId choose_slow(RouteId r) {
    const auto npu = at(destination_[at(r)]);
    const auto& level = levels_[class_[at(r)] - 1];
    const auto region = level.region[npu];
    const auto words = have_.words();
    const auto* offered = have_.row(at(source_[at(r)]));
    const auto* promised = promised_.row(npu);
    const auto begin = mix(at(r)) % words;  // routes look in different places first
    const auto missing_in = [&](const std::uint64_t* near) {
      for (std::size_t i = 0; i < words; ++i) {
        const auto w = (begin + i) % words;
        if (const auto only = offered[w] & ~near[w]; only != 0) {
          return static_cast<ChunkId>(w * 64 + at(std::countr_zero(only)));
        }
      }
      return kNothing;
    };
    const auto last_missing_in = [&](const std::uint64_t* near) {
      for (std::size_t i = words; i-- > 0;) {
        const auto w = (begin + i) % words;
        if (const auto any = offered[w] & ~near[w]; any != 0) {
          return static_cast<ChunkId>(w * 64 + 63 - at(std::countl_zero(any)));
        }
      }
      return kNothing;
    };
    const ChunkId only_here = missing_in(level.promised.row(region));
    if (only_here != kNothing) return only_here;
    if (level.rate[npu] > 0) {
      const auto* waiting = level.have.row(region);
      std::int64_t backlog = 0;
      for (std::size_t w = 0; w < words; ++w) backlog += std::popcount(waiting[w] & ~promised[w]);
      if (transmission_time(backlog * typical_bytes_, level.rate[npu]) < duration_[at(r)]) {
        return kNothing;
      }
    }
    // Rather what is not even near by, in the smaller regions of still faster routes.
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
    if (!dense_) carry(chunk, npu);
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
    }
    const Time arrival = now_ + (typical ? duration_[at(r)] : duration(r, bytes));
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
  const Collective& collective_;
  const GreedyOptions& options_;
  const Progress& progress_;
  const std::int64_t typical_bytes_;
  bool dense_ = true;     // everybody wants everything: no relays, no distances
  Bits have_, promised_;  // promised: has it, or is being sent it
  Bits wants_{0, 0};
  std::size_t missing_ = 0, total_ = 0;  // wanted (chunk, NPU) pairs that have not arrived

  std::vector<Routes::Window> windows_, odd_windows_;
  std::vector<std::size_t> first_window_;
  std::vector<Time> duration_;
  std::vector<NodeId> source_, destination_;
  std::vector<std::vector<RouteId>> out_, in_, users_;
  std::vector<std::size_t> place_;
  std::vector<std::size_t> class_;    // of speed; 0 is the fastest
  struct Level {                      // what a class of routes must know of all faster ones
    std::vector<std::size_t> region;  // of each NPU
    std::vector<std::int64_t> rate;   // at which they reach each NPU
    Bits have, promised;              // by anybody in the region
  };
  std::vector<Level> levels_;  // of classes 1, 2, …

  std::vector<std::vector<Time>> distance_;  // to each wanted NPU, from all
  std::vector<std::size_t> first_pair_;
  std::vector<NodeId> carrier_;  // per wanted pair: from where the chunk goes on to the NPU

  struct Queued {
    Time distance;
    std::uint64_t sequence;
    ChunkId chunk;
    bool operator<(const Queued& other) const {
      return distance != other.distance ? distance < other.distance : sequence > other.sequence;
    }
  };
  std::vector<std::priority_queue<Queued>> queues_;  // with relays: what each route could carry
  std::vector<std::vector<ChunkId>> log_;            // without: what each NPU has received
  std::vector<std::uint32_t> cursor_;
  std::vector<std::size_t> received_;
  std::vector<Time> free_at_;
  std::vector<std::uint64_t> stamp_;
  std::vector<RouteId> candidates_;
  std::vector<std::tuple<std::size_t, std::size_t, RouteId>> keys_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t moment_ = 1, sequence_ = 0;
  Time now_ = 0, last_start_ = -1;
  std::int32_t step_ = -1;
  Result result_;
};

// The routes of the step-synchronous way: one per link.
Routes link_routes(const std::shared_ptr<const Topology>& topology) {
  const auto count = at(topology->links());
  std::vector<std::int64_t> begin(count + 1);
  std::vector<LinkId> links(count);
  std::iota(begin.begin(), begin.end(), std::int64_t{0});
  std::iota(links.begin(), links.end(), LinkId{0});
  std::vector<std::uint8_t> kinds(count, static_cast<std::uint8_t>(RouteKind::path));
  return Routes(topology, std::move(kinds), std::move(begin), std::move(links));
}

// The most frequent chunk size, or close to it: that of the first chunk with any bytes.
std::int64_t typical_size(const Collective& collective) {
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (collective.bytes(chunk) > 0) return collective.bytes(chunk);
  }
  return 1;
}

}  // namespace

Schedule greedy(const std::shared_ptr<const Topology>& topology,
                const std::shared_ptr<const Collective>& collective, const GreedyOptions& options,
                const std::string& provenance, const Progress& progress) {
  if (!collective->resolved()) invalid("the greedy engine needs a number of chunks");
  for (ChunkId chunk = 0; chunk < collective->chunks(); ++chunk) {
    if (collective->reduces(chunk)) invalid("the greedy engine sums nothing by itself");
  }
  if (options.steps && stepwise(*topology, *collective)) {
    Steps steps(topology, *collective, options, progress);
    if (steps.applies()) {
      return Schedule(collective, std::make_shared<const Routes>(link_routes(topology)),
                      steps.run(), std::nullopt, provenance);
    }
  }
  const auto bytes = typical_size(*collective);
  auto routes = std::make_shared<const Routes>(neighbour_routes(topology, bytes));
  const auto found = Events(*routes, *collective, bytes, options, progress).run();
  const std::vector<std::uint8_t> op(found.route.size(), static_cast<std::uint8_t>(Op::copy));
  const std::vector<std::uint8_t> reads(found.route.size(), static_cast<std::uint8_t>(Reads::acc));
  const Order order{found.route, found.chunk, found.step, op, reads};
  // A route of several legs was taken as if nothing ever waited between them.
  for (const RouteId route : found.route) {
    if (routes->legs(route) > 1)
      return retime(collective, std::move(routes), order, provenance, progress);
  }
  return with_starts(collective, std::move(routes), order, found.start, provenance, progress);
}

}  // namespace tacos
