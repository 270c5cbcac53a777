// Races. Each rank has vector clocks for the threads that touch its memory. They follow the rank's own
// threads and dependencies, and a few steps of other ranks, since mostly a single message decides. Pairs
// that stay undecided, such as orders that hold only through a whole ring, are decided together at the
// end: clocks of all steps in one sweep for every few undecided threads.
//
// Cost: O(steps · threads of a rank), and O(steps · undecided threads), 32 of them at a time.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "verify/program_graph.hpp"

namespace tacos::program_check {

namespace {

// The order of the steps that touch one rank's memory.
class RankOrder {
 public:
  RankOrder(const Program& program, const WaitGraph& graph, const std::vector<StepId>& order)
      : graph_(graph),
        position_(at(program.steps())),
        known_(at(program.steps())),
        column_(at(program.threads()), 0),
        latest_(at(program.threads()), -1) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      position_[at(order[i])] = static_cast<std::int32_t>(i);
    }
  }

  std::int32_t position(StepId step) const { return position_[at(step)]; }

  // Starts with a rank; `steps` are those that touch its memory.
  void set_rank(NodeId rank, std::span<const StepId> steps) {
    rank_ = rank;
    width_ = 0;
    clock_.clear();
    for (const StepId step : steps) latest_[at(graph_.thread(step))] = -1;
    for (const StepId step : steps) {
      auto& latest = latest_[at(graph_.thread(step))];
      if (latest == -1) column_[at(graph_.thread(step))] = width_++;
      latest = kNoStep;
    }
  }

  // Takes the steps one by one, in a topological order.
  void add(StepId step) {
    known_[at(step)] = {rank_, clock_.size()};
    clock_.resize(clock_.size() + width_, -1);
    auto& latest = latest_[at(graph_.thread(step))];
    if (latest >= 0) learn(step, latest);
    for (const StepId before : graph_.dependencies(step)) {
      if (known_[at(before)].rank == rank_) learn(step, before);
    }
    clock_[known_[at(step)].clock + column_[at(graph_.thread(step))]] = step;
    latest = step;
  }

  // Whether `later` is known to come after `earlier`.
  bool before(StepId earlier, StepId later) {
    return is_behind(later, earlier) || glimpse(earlier, later);
  }

 private:
  static constexpr StepId kNoStep = -2;
  static constexpr std::size_t kGlimpse = 64;  // steps

  struct Known {
    NodeId rank = -1;
    std::size_t clock = 0;  // the last step of each thread that comes before it, and itself
  };

  void learn(StepId step, StepId before) {
    const auto mine = known_[at(step)].clock, theirs = known_[at(before)].clock;
    for (std::size_t t = 0; t < width_; ++t) {
      clock_[mine + t] = std::max(clock_[mine + t], clock_[theirs + t]);
    }
  }

  bool is_behind(StepId step, StepId earlier) const {
    if (graph_.thread(step) == graph_.thread(earlier)) return step >= earlier;
    if (known_[at(step)].rank != rank_) return false;
    return clock_[known_[at(step)].clock + column_[at(graph_.thread(earlier))]] >= earlier;
  }

  bool glimpse(StepId earlier, StepId later) {
    queue_.assign(1, later);
    for (std::size_t next = 0; next < queue_.size() && next < kGlimpse; ++next) {
      bool found = false;
      graph_.predecessors(queue_[next], [&](StepId step) {
        if (position(step) < position(earlier)) return;
        found = found || is_behind(step, earlier);
        queue_.push_back(step);
      });
      if (!found) continue;
      auto& known = clock_[known_[at(later)].clock + column_[at(graph_.thread(earlier))]];
      known = std::max(known, earlier);
      return true;
    }
    return false;
  }

  const WaitGraph& graph_;
  std::vector<std::int32_t> position_;
  std::vector<Known> known_;
  std::vector<std::size_t> column_;
  std::vector<StepId> latest_;  // of a thread, among those that touch the rank's memory
  NodeId rank_ = -1;
  std::size_t width_ = 0;
  std::vector<StepId> clock_;
  std::vector<StepId> queue_;
};

struct Doubt {
  StepId earlier, later;  // in the order of the check
  std::size_t place;
  bool is_write, was_write;
};

constexpr std::size_t kColumns = 32;
using Clock = std::array<StepId, kColumns>;

// Returns the doubts that are races, in their order.
std::vector<Doubt> settle(const std::vector<Doubt>& doubts, const WaitGraph& graph,
                          const RankOrder& known, const std::vector<StepId>& order,
                          const Progress& progress) {
  std::vector<std::size_t> by_thread(doubts.size());
  std::iota(by_thread.begin(), by_thread.end(), 0);
  const auto thread = [&](std::size_t i) { return graph.thread(doubts[i].earlier); };
  std::stable_sort(by_thread.begin(), by_thread.end(),
                   [&](std::size_t a, std::size_t b) { return thread(a) < thread(b); });
  std::vector<std::uint8_t> is_race(doubts.size(), 0);
  std::vector<std::int32_t> column;  // of every thread, in one sweep
  std::vector<Clock> clocks;
  for (std::size_t begin = 0, end = 0; begin < by_thread.size(); begin = end) {
    column.assign(graph.threads(), -1);
    std::int32_t used = 0, first = known.position(doubts[by_thread[begin]].earlier), last = 0;
    for (; end < by_thread.size(); ++end) {
      auto& mine = column[at(thread(by_thread[end]))];
      if (mine < 0 && at(used) == kColumns) break;
      if (mine < 0) mine = used++;
      first = std::min(first, known.position(doubts[by_thread[end]].earlier));
      last = std::max(last, known.position(doubts[by_thread[end]].later));
    }
    clocks.resize(at(last - first) + 1);
    for (auto now = first; now <= last; ++now) {
      if (progress && (now & 0xffff) == 0) {
        progress(0.75 + 0.25 * static_cast<double>(begin) / static_cast<double>(doubts.size()));
      }
      Clock clock;
      clock.fill(-1);
      const StepId step = order[at(now)];
      graph.predecessors(step, [&](StepId before) {
        if (known.position(before) < first) return;
        const Clock& other = clocks[at(known.position(before) - first)];
        for (std::size_t c = 0; c < kColumns; ++c) clock[c] = std::max(clock[c], other[c]);
      });
      if (const auto mine = column[at(graph.thread(step))]; mine >= 0) clock[at(mine)] = step;
      clocks[at(now - first)] = clock;
    }
    for (auto i = begin; i < end; ++i) {
      const auto& [earlier, later, place, is_write, was_write] = doubts[by_thread[i]];
      const Clock& clock = clocks[at(known.position(later) - first)];
      is_race[by_thread[i]] = clock[at(column[at(graph.thread(earlier))])] < earlier;
    }
  }
  std::vector<Doubt> races;
  for (std::size_t i = 0; i < doubts.size(); ++i) {
    if (is_race[i]) races.push_back(doubts[i]);
  }
  return races;
}

// Checks whether src and dst of a step overlap: a step moves its slots in no particular order.
void check_overlap(const Program& program, const WaitGraph& graph, const Memory& memory,
                   StepId step, ProgramFindings& findings) {
  const auto& s = program.spec();
  const auto i = at(step);
  const StepOp op = program.op(step);
  if (s.count[i] < 2 || one_sided(op) || !has_src(op) || !has_dst(op)) return;
  const auto src = static_cast<Buffer>(s.src_buffer[i]), dst = static_cast<Buffer>(s.dst_buffer[i]);
  if (src == dst ? std::abs(s.src_slot[i] - s.dst_slot[i]) >= s.count[i]
                 : !s.in_place || src == Buffer::scratch || dst == Buffer::scratch) {
    return;
  }
  const NodeId rank = graph.rank(step);
  std::vector<std::pair<std::size_t, std::int32_t>> read;
  for (std::int32_t k = 0; k < s.count[i]; ++k) {
    read.emplace_back(memory.place(rank, src, s.src_slot[i] + k), k);
  }
  std::sort(read.begin(), read.end());
  for (std::int32_t k = 0; k < s.count[i]; ++k) {
    const auto place = memory.place(rank, dst, s.dst_slot[i] + k);
    const auto found = std::lower_bound(read.begin(), read.end(), std::pair(place, 0));
    if (found == read.end() || found->first != place || found->second == k) continue;
    findings.add("race", step,
                 "writes " + memory.describe(place) +
                     " while it may still have to read it, since "
                     "its src and dst overlap");
    return;
  }
}

}  // namespace

void check_races(const Program& program, const WaitGraph& graph, const Memory& memory,
                 const std::vector<StepId>& order, ProgramFindings& findings,
                 const Progress& progress) {
  struct Place {
    StepId writer = -1;
    std::vector<StepId> readers;  // since that write
  };
  std::vector<std::vector<StepId>> touching(at(program.ranks()));
  for (const StepId step : order) {
    touching[at(graph.rank(step))].push_back(step);
    if (one_sided(program.op(step))) {
      touching[at(program.spec().peer[at(step)])].push_back(step);
    }
  }
  RankOrder known(program, graph, order);
  std::vector<Doubt> doubts;
  std::vector<Place> places;
  for (NodeId rank = 0; rank < program.ranks(); ++rank) {
    const auto [first, end] = memory.of(rank);
    places.assign(end - first, {});
    known.set_rank(rank, touching[at(rank)]);
    for (const StepId step : touching[at(rank)]) {
      known.add(step);
      if (graph.rank(step) == rank) check_overlap(program, graph, memory, step, findings);
      memory.touched(graph, step, [&](std::size_t where, bool writes) {
        if (where < first || where >= end) return;  // the other side of a one-sided step
        Place& place = places[where - first];
        const auto compare = [&](StepId other, bool wrote) {
          if (other == step || known.before(other, step)) return;
          doubts.push_back({other, step, where, writes, wrote});
        };
        if (place.writer >= 0) compare(place.writer, true);
        if (!writes) {
          place.readers.push_back(step);
          return;
        }
        for (const StepId reader : place.readers) compare(reader, false);
        place.readers.clear();
        place.writer = step;
      });
    }
    if (progress) progress(0.5 + 0.25 * static_cast<double>(rank) / program.ranks());
  }
  for (const auto& race : settle(doubts, graph, known, order, progress)) {
    findings.add("race", race.later,
                 std::string(race.is_write ? "writes " : "reads ") + memory.describe(race.place) +
                     " while " + program.describe(race.earlier) + " may be " +
                     (race.was_write ? "writing" : "reading") + " it");
  }
}

}  // namespace tacos::program_check
