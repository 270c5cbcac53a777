#include "synth/greedy_steps.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <limits>
#include <numeric>
#include <thread>

#include "support/index.hpp"
#include "support/large.hpp"
#include "support/work.hpp"
#include "synth/matching.hpp"

namespace tacos {

namespace {

constexpr std::size_t kMostInLinks = 255;  // numbered in a byte
constexpr Time kLongestLag = 64;           // steps; a link is examined in each, busy or not
// From this number of transfers on, arrivals are rounded up to whole steps: the matching without steps takes 1.5 us per transfer,
// some seconds, and the one with steps a tenth of that (measured on tori).
constexpr std::uint64_t kWorthRounding = std::uint64_t{1} << 22;

std::int64_t largest_chunk(const Collective& collective) {
  std::int64_t bytes = 0;
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    bytes = std::max(bytes, collective.bytes(chunk));
  }
  return bytes;
}

// Steps from a start until the chunk has arrived, rounded up.
Time lag_of(const Topology& topology, std::int64_t bytes) {
  const Time period = topology.busy_time(0, bytes);
  const Time arrival = topology.latency(0) + transmission_time(bytes, topology.bandwidth(0));
  return (arrival + period - 1) / period;
}

// Every destination has one region of the schedule's columns, filled in order of arrival. It is the log
// that its neighbours read, and is sorted into the lanes of its in-links at the end.
class StepwiseGreedy {
 public:
  StepwiseGreedy(const Topology& topology, const Collective& collective,
                 const GreedyOptions& options, const Progress& progress)
      : topology_(topology),
        collective_(collective),
        options_(options),
        progress_(progress),
        problem_(step_problem(topology, collective, options)),
        begin_(problem_.log_begin),
        have_(at(topology.npus()), collective.chunks()) {
    const auto npus = at(topology_.npus());
    for (NodeId npu = 0; npu < topology_.npus(); ++npu) {
      for (const ChunkId chunk : problem_.held(npu)) have_.set(at(npu), chunk);
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

  Transfers run() {
    const auto npus = at(topology_.npus());
    // Every link goes through its source's log. How often it must wait for the log depends on the threads, and is not counted.
    progress_.reserve(static_cast<double>(begin_[npus]) * work::kTransfer / 4 +
                      static_cast<double>(topology_.links()) * collective_.chunks() * work::kStep /
                          4);
    const auto cores = std::max(1u, std::thread::hardware_concurrency());
    auto threads = options_.threads > 0 ? at(options_.threads) : at(cores);
    threads = std::min({threads, npus / 64 + 1, at(8 * cores)});
    std::atomic<std::size_t> missing{begin_[npus]};
    std::exception_ptr failure;
    bool done = missing == 0;
    std::size_t before = missing;
    std::uint32_t slowest = 0, until = kAhead;
    std::atomic<bool> stop{false};  // a thread's report threw
    const auto report = [&]() noexcept {
      if (!progress_ || failure) return;
      try {
        progress_(1.0 - static_cast<double>(missing) / static_cast<double>(begin_[npus]));
      } catch (...) {
        failure = std::current_exception();
        stop = true;
      }
    };
    const auto next_round = [&]() noexcept {
      // Runs on one thread while the others wait.
      std::uint32_t now = kFinished;
      for (const auto& clock : clock_) now = std::min(now, clock.load(std::memory_order_relaxed));
      // If nothing was sent for as long as a chunk takes to arrive, nothing will ever be sent again.
      const bool stuck =
          missing == before && now != kFinished && now - slowest > kAhead + problem_.lag;
      if (missing != before) {
        before = missing;
        slowest = now;
      }
      done = missing == 0 || stuck || now == kFinished;
      until = now == kFinished ? kFinished : now + kAhead;
      report();
      done = done || failure;
    };
    std::barrier barrier(static_cast<std::ptrdiff_t>(threads), next_round);
    const auto work = [&](std::size_t thread) {
      const auto first = npus * thread / threads, last = npus * (thread + 1) / threads;
      while (!done) {
        std::size_t matched = 0;
        for (auto npu = first; npu < last && !stop.load(std::memory_order_relaxed); ++npu) {
          matched += serve(static_cast<NodeId>(npu), until);
          if (thread == 0 && npu % 16 == 0) report();
        }
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
    if (missing > 0) report_unreachable(topology_, collective_, have_, options_.backwards);
    return lanes(threads);
  }

 private:
  static constexpr std::uint32_t kFinished = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t kAhead = 256;  // steps that a destination may be ahead of others

  // Runs as many steps of a destination as its sources' logs determine, which loads its row of bits
  // once for all of them. In a step, each in-link chooses in turn. Unknown entries of a source's log
  // matter only if no known entry is useful; then the destination waits, in the middle
  // of its step, for the source's clock. So the result does not depend on the timing of threads.
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
            static_cast<std::uint8_t>((received + problem_.shift[at(npu)]) % links.size());
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

  // Makes one link's choice in a step; returns false if it is not determined yet.
  bool choose(NodeId npu, LinkId link, std::size_t which, std::uint32_t step,
              std::uint32_t& received) {
    const auto source = at(topology_.src(link));
    const auto held = problem_.held(topology_.src(link));
    const auto own = held.size();
    // Read the clock before the count, so that the count includes everything that started before the clock.
    const auto clock = clock_[source].load(std::memory_order_acquire);
    const auto count = received_[source].load(std::memory_order_acquire);
    for (auto& cursor = cursor_[at(link)];; ++cursor) {
      ChunkId chunk = 0;
      if (cursor < own) {
        chunk = held[cursor];
      } else if (cursor - own < count) {
        const auto row = begin_[source] + cursor - own;
        if (start_[row] + problem_.lag > step) return true;  // not there yet
        chunk = chunk_[row];
      } else {
        return clock == kFinished || clock + problem_.lag > step;
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
  Transfers lanes(std::size_t threads) {
    const auto npus = at(topology_.npus());
    std::vector<RouteId> route;
    std::vector<std::size_t> first_lane;
    for (NodeId npu = 0; npu < topology_.npus(); ++npu) {
      first_lane.push_back(route.size());
      for (const LinkId link : topology_.in_links(npu)) route.push_back(link);
    }
    std::vector<std::int64_t> lane_begin(route.size() + 1, 0);
    const auto sort = [&](std::size_t thread) {
      std::vector<ChunkId> chunk;
      std::vector<std::uint32_t> start;
      for (auto npu = npus * thread / threads; npu < npus * (thread + 1) / threads; ++npu) {
        const auto links = topology_.in_links(static_cast<NodeId>(npu)).size();
        const auto first = begin_[npu], last = begin_[npu + 1];
        std::vector<std::size_t> next(links + 1, 0);
        for (auto row = first; row < last; ++row) ++next[at(in_link_[row]) + 1];
        std::partial_sum(next.begin(), next.end(), next.begin());
        for (std::size_t i = 0; i < links; ++i) {
          lane_begin[first_lane[npu] + i + 1] = static_cast<std::int64_t>(first + next[i + 1]);
        }
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
    };
    {
      std::vector<std::jthread> others;
      for (std::size_t thread = 1; thread < threads; ++thread) others.emplace_back(sort, thread);
      sort(0);
    }
    std::vector<std::uint8_t> op(route.size(), static_cast<std::uint8_t>(Op::copy));
    std::vector<std::uint8_t> reads(route.size(), static_cast<std::uint8_t>(Reads::acc));
    return {std::move(route),
            std::move(op),
            std::move(reads),
            std::move(lane_begin),
            std::move(chunk_).column(),
            std::move(start_).column(),
            problem_.period};
  }

  const Topology& topology_;
  const Collective& collective_;
  const GreedyOptions& options_;
  const Progress& progress_;
  const StepProblem problem_;
  const std::vector<std::uint64_t>& begin_;  // each destination's region
  Bits have_;                                // including chunks that are being sent
  Unfilled<ChunkId> chunk_;
  Unfilled<std::uint32_t> start_;
  Unfilled<std::uint8_t> in_link_;
  std::vector<std::atomic<std::uint32_t>> received_;  // per NPU, including chunks in flight
  std::vector<std::atomic<std::uint32_t>> clock_;     // per NPU: steps it has finished
  std::vector<std::uint8_t> turn_;     // per NPU, in its current step: the link that chooses first
  std::vector<std::uint8_t> served_;   // per NPU, in its current step: links that have chosen
  std::vector<std::uint32_t> cursor_;  // per link, into its source's log
};

}  // namespace

bool stepwise(const Topology& topology, const Collective& collective) {
  if (topology.links() == 0 || topology.nodes() != topology.npus()) return false;
  for (LinkId link = 1; link < topology.links(); ++link) {
    if (topology.latency(link) != topology.latency(0)) return false;
    if (topology.bandwidth(link) != topology.bandwidth(0)) return false;
  }
  for (NodeId npu = 0; npu < topology.npus(); ++npu) {
    if (topology.in_links(npu).size() > kMostInLinks) return false;
  }
  const auto bytes = largest_chunk(collective);
  if (bytes == 0) return false;
  const bool rounds = std::uint64_t{collective.chunks()} * at(topology.npus()) >= kWorthRounding;
  const auto least = rounds ? std::max<std::int64_t>(bytes - 1, 1) : bytes;
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (collective.bytes(chunk) < least || collective.inputs(chunk).size() != 1 ||
        static_cast<std::int32_t>(collective.outputs(chunk).size()) != topology.npus()) {
      return false;
    }
  }
  if (topology.spec().link_model == LinkModel::blocking) return true;
  const bool whole = topology.latency(0) % topology.busy_time(0, bytes) == 0;
  return (whole || rounds) && lag_of(topology, bytes) <= kLongestLag;
}

StepProblem step_problem(const Topology& topology, const Collective& collective,
                         const GreedyOptions& options) {
  const auto npus = at(topology.npus());
  StepProblem problem;
  const auto bytes = largest_chunk(collective);
  problem.period = topology.busy_time(0, bytes);
  problem.lag = static_cast<std::uint32_t>(lag_of(topology, bytes));
  problem.own_begin.assign(npus + 1, 0);
  problem.in_begin.assign(npus + 1, 0);
  problem.log_begin.assign(npus + 1, 0);
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    ++problem.own_begin[at(collective.inputs(chunk)[0]) + 1];
  }
  for (NodeId npu = 0; npu < topology.npus(); ++npu) {
    const auto links = topology.in_links(npu);
    const auto held = problem.own_begin[at(npu) + 1];
    problem.log_begin[at(npu) + 1] = problem.log_begin[at(npu)] + collective.chunks() - held;
    problem.own_begin[at(npu) + 1] += problem.own_begin[at(npu)];
    problem.in_begin[at(npu) + 1] =
        problem.in_begin[at(npu)] + static_cast<std::uint32_t>(links.size());
    for (const LinkId link : links) {
      problem.in_link.push_back(link);
      problem.in_source.push_back(topology.src(link));
    }
    const auto turned = links.empty() ? 0 : first_turn(options, npu, 0, links.size());
    problem.shift.push_back(static_cast<std::uint32_t>(turned));
  }
  problem.own.resize(collective.chunks());
  auto next = problem.own_begin;
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    problem.own[next[at(collective.inputs(chunk)[0])]++] = chunk;
  }
  return problem;
}

std::optional<Transfers> greedy_steps(const Topology& topology, const Collective& collective,
                                      const GreedyOptions& options, const Progress& progress) {
  if (!stepwise(topology, collective)) return std::nullopt;
  return StepwiseGreedy(topology, collective, options, progress).run();
}

}  // namespace tacos
