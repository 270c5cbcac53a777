// The data for the rules of verify_program.hpp: the graph of the steps and the list of all slots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/program.hpp"
#include "support/index.hpp"
#include "support/progress.hpp"
#include "verify/verify.hpp"

namespace tacos::program_check {

class ProgramFindings {
 public:
  // `consistent`: what the report says if the program is too broken to compare the orders of its sums.
  ProgramFindings(const Program& program, std::int64_t limit, bool consistent)
      : program_(program), limit_(limit) {
    report_.consistent = consistent;
  }

  void add(std::string rule, StepId step, const std::string& what, std::int64_t chunk = -1) {
    ++report_.found;
    if (report_.found > limit_) return;
    const auto where = step >= 0 ? program_.describe(step) + " " : "";
    report_.violations.push_back({std::move(rule), step, -1, chunk, -1, where + what});
  }
  bool any() const { return report_.found > 0; }
  // Whether all ranks add up every sum in the same order, or a sentence about two that do not.
  void compared(std::string difference) {
    report_.consistent = difference.empty();
    report_.difference = std::move(difference);
  }
  VerifyReport take() {
    report_.checked = program_.steps();
    return std::move(report_);
  }

 private:
  const Program& program_;
  std::int64_t limit_;
  VerifyReport report_;
};

// The graph of which step waits for which.
class WaitGraph {
 public:
  explicit WaitGraph(const Program& program) : program_(program), thread_(at(program.steps())) {
    const auto& s = program.spec();
    for (ThreadId t = 0; t < program.threads(); ++t) {
      for (auto i = s.thread_begin[at(t)]; i < s.thread_begin[at(t) + 1]; ++i) thread_[at(i)] = t;
    }
  }

  std::size_t threads() const { return at(program_.threads()); }
  ThreadId thread(StepId step) const { return thread_[at(step)]; }
  NodeId rank(StepId step) const { return program_.spec().thread_rank[at(thread(step))]; }
  bool is_first(StepId step) const {
    return program_.spec().thread_begin[at(thread(step))] == step;
  }
  std::span<const StepId> dependencies(StepId step) const {
    const auto& s = program_.spec();
    return s.dep.slice(at(s.dep_begin[at(step)]), at(s.dep_begin[at(step) + 1]));
  }
  template <typename Visit>
  void predecessors(StepId step, const Visit& visit) const {
    if (!is_first(step)) visit(step - 1);
    for (const StepId before : dependencies(step)) visit(before);
    if (const StepId from = program_.spec().comes_from[at(step)]; from >= 0) visit(from);
  }

  // Steps in an order in which each comes after those it waits for; steps of cycles are missing.
  std::vector<StepId> order() const {
    const auto steps = at(program_.steps());
    std::vector<std::int64_t> begin(steps + 2, 0);
    std::vector<std::int32_t> waits(steps, 0);
    for (StepId step = 0; step < program_.steps(); ++step) {
      predecessors(step, [&](StepId before) {
        ++begin[at(before) + 2];
        ++waits[at(step)];
      });
    }
    for (std::size_t i = 2; i < begin.size(); ++i) begin[i] += begin[i - 1];
    std::vector<StepId> next(at(begin.back()));
    for (StepId step = 0; step < program_.steps(); ++step) {
      predecessors(step, [&](StepId before) { next[at(begin[at(before) + 1]++)] = step; });
    }
    std::vector<StepId> result;
    result.reserve(steps);
    for (StepId step = 0; step < program_.steps(); ++step) {
      if (waits[at(step)] == 0) result.push_back(step);
    }
    for (std::size_t head = 0; head < result.size(); ++head) {
      const auto step = at(result[head]);
      for (auto i = begin[step]; i < begin[step + 1]; ++i) {
        if (--waits[at(next[at(i)])] == 0) result.push_back(next[at(i)]);
      }
    }
    return result;
  }

  // A cycle among the steps that are not in `order`.
  std::vector<StepId> circle(const std::vector<StepId>& order) const {
    std::vector<std::uint8_t> runs(at(program_.steps()), 0);
    for (const StepId step : order) runs[at(step)] = 1;
    const auto stuck = std::find(runs.begin(), runs.end(), 0);
    std::vector<StepId> path;
    std::vector<std::int32_t> seen(runs.size(), -1);
    for (auto step = static_cast<StepId>(stuck - runs.begin()); seen[at(step)] < 0;) {
      seen[at(step)] = static_cast<std::int32_t>(path.size());
      path.push_back(step);
      StepId before = -1;
      predecessors(step, [&](StepId p) {
        if (runs[at(p)] == 0) before = p;
      });
      step = before;
      if (seen[at(step)] >= 0) path.erase(path.begin(), path.begin() + seen[at(step)]);
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  const Program& program_;
  std::vector<ThreadId> thread_;
};

// All slots of all ranks in one list; in place, an input slot is the output slot of its chunk.
class Memory {
 public:
  explicit Memory(const Program& program) : program_(program) {
    std::int64_t total = 0;
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      for (const auto buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
        first_.push_back(total);
        total += program.slots(rank, buffer);
      }
    }
    first_.push_back(total);
    if (!program.spec().in_place) return;
    shared_.assign(at(program.ranks()), {});
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      const auto inputs = program.input_chunks(rank);
      const auto outputs = program.output_chunks(rank);
      for (const ChunkId chunk : inputs) {  // both are in order of the chunks
        const auto found = std::lower_bound(outputs.begin(), outputs.end(), chunk);
        const bool both = found != outputs.end() && *found == chunk;
        shared_[at(rank)].push_back(both ? static_cast<std::int32_t>(found - outputs.begin()) : -1);
      }
    }
  }

  std::size_t size() const { return at(first_.back()); }
  std::pair<std::size_t, std::size_t> of(NodeId rank) const {
    return {at(first_[at(rank) * 3]), at(first_[at(rank) * 3 + 3])};
  }
  std::size_t place(NodeId rank, Buffer buffer, std::int32_t slot) const {
    if (buffer == Buffer::input && !shared_.empty() && shared_[at(rank)][at(slot)] >= 0) {
      return place(rank, Buffer::output, shared_[at(rank)][at(slot)]);
    }
    return at(first_[at(rank) * 3 + at(buffer)] + slot);
  }
  std::string describe(std::size_t place) const {
    const auto found =
        std::upper_bound(first_.begin(), first_.end(), static_cast<std::int64_t>(place));
    const auto row = at(found - first_.begin() - 1);
    static constexpr const char* kNames[] = {"input", "output", "scratch"};
    return std::string(kNames[row % 3]) + " slot " +
           std::to_string(static_cast<std::int64_t>(place) - first_[row]) + " of rank " +
           std::to_string(row / 3);
  }

  // Calls visit(place, writes) for all slots that a step accesses; of each, reads come first.
  template <typename Visit>
  void touched(const WaitGraph& graph, StepId step, const Visit& visit) const {
    const auto& s = program_.spec();
    const auto i = at(step);
    const StepOp op = program_.op(step);
    const NodeId rank = graph.rank(step);
    const NodeId reads = op == StepOp::get || op == StepOp::get_reduce ? s.peer[i] : rank;
    const NodeId writes = op == StepOp::put ? s.peer[i] : rank;
    const bool adds = op == StepOp::reduce || op == StepOp::get_reduce;
    for (std::int32_t k = 0; k < s.count[i]; ++k) {
      if (has_src(op)) {
        visit(place(reads, static_cast<Buffer>(s.src_buffer[i]), s.src_slot[i] + k), false);
      }
      if (!has_dst(op)) continue;
      const auto into = place(writes, static_cast<Buffer>(s.dst_buffer[i]), s.dst_slot[i] + k);
      if (adds) visit(into, false);
      visit(into, true);
    }
  }

 private:
  const Program& program_;
  std::vector<std::int64_t> first_;  // of every rank's three buffers
  std::vector<std::vector<std::int32_t>> shared_;
};

// Checks that two steps that access a slot are ordered if one of them writes; see program_races.cpp.
void check_races(const Program& program, const WaitGraph& graph, const Memory& memory,
                 const std::vector<StepId>& order, ProgramFindings& findings,
                 const Progress& progress);

}  // namespace tacos::program_check
