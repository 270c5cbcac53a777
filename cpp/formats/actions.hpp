// The data that packing works on: the steps of a program, their dependencies, and the slots that they access.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "model/program.hpp"
#include "support/index.hpp"

namespace tacos::threadblocks {

using Node = std::int32_t;  // a future step; nodes are numbered in an order in which they can run
constexpr Node kNone = -1;

// Dependencies between steps, and the receivers of messages.
class StepGraph {
 public:
  explicit StepGraph(const Program& program)
      : program_(program), receiver_(at(program.steps()), -1) {
    const auto& s = program.spec();
    thread_.reserve(at(program.steps()));
    for (ThreadId t = 0; t < program.threads(); ++t)
      thread_.resize(at(s.thread_begin[at(t) + 1]), t);
    for (StepId step = 0; step < program.steps(); ++step) {
      if (s.comes_from[at(step)] >= 0) receiver_[at(s.comes_from[at(step)])] = step;
    }
  }

  ThreadId thread(StepId step) const { return thread_[at(step)]; }
  NodeId rank(StepId step) const { return program_.spec().thread_rank[at(thread(step))]; }
  StepId receiver(StepId send) const { return receiver_[at(send)]; }
  bool is_first(StepId step) const {
    return program_.spec().thread_begin[at(thread(step))] == step;
  }

  template <typename Visit>
  void predecessors(StepId step, const Visit& visit) const {
    const auto& s = program_.spec();
    if (!is_first(step)) visit(step - 1);
    if (s.comes_from[at(step)] >= 0) visit(s.comes_from[at(step)]);
    for (auto d = s.dep_begin[at(step)]; d < s.dep_begin[at(step) + 1]; ++d) visit(s.dep[at(d)]);
  }

  // The length of the longest chain of steps before each step; -1 for steps that can never run. `more` adds predecessors.
  template <typename More>
  std::vector<std::int32_t> levels(const More& more) const {
    const auto count = at(program_.steps());
    std::vector<std::int64_t> begin(count + 2, 0);
    std::vector<std::int32_t> waits(count, 0), level(count, -1);
    const auto each = [&](StepId step, const auto& visit) {
      predecessors(step, visit);
      more(step, visit);
    };
    for (StepId step = 0; step < program_.steps(); ++step) {
      each(step, [&](StepId before) {
        ++begin[at(before) + 2];
        ++waits[at(step)];
      });
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<StepId> next(at(begin.back())), queue;
    for (StepId step = 0; step < program_.steps(); ++step) {
      each(step, [&](StepId before) { next[at(begin[at(before) + 1]++)] = step; });
      if (waits[at(step)] == 0) queue.push_back(step);
    }
    std::vector<std::int32_t> longest(count, 0);
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const auto step = at(queue[head]);
      level[step] = longest[step];
      for (auto i = begin[step]; i < begin[step + 1]; ++i) {
        const auto after = at(next[at(i)]);
        longest[after] = std::max(longest[after], level[step] + 1);
        if (--waits[after] == 0) queue.push_back(next[at(i)]);
      }
    }
    return level;
  }

 private:
  const Program& program_;
  std::vector<ThreadId> thread_;
  std::vector<StepId> receiver_;
};

// Numbers the slots of all ranks consecutively. In place, the two slots of a chunk have one number.
class Places {
 public:
  explicit Places(const Program& program) {
    std::int64_t total = 0;
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      for (const auto buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
        first_.push_back(total);
        total += program.slots(rank, buffer);
      }
    }
    first_.push_back(total);
    if (!program.spec().in_place) return;
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      const auto outputs = program.output_chunks(rank);
      shared_begin_.push_back(shared_.size());
      for (const ChunkId chunk : program.input_chunks(rank)) {
        const auto found = std::lower_bound(outputs.begin(), outputs.end(), chunk);
        const bool both = found != outputs.end() && *found == chunk;
        shared_.push_back(both ? static_cast<std::int32_t>(found - outputs.begin()) : -1);
      }
    }
  }

  std::size_t size() const { return at(first_.back()); }
  std::size_t of(NodeId rank, Buffer buffer, std::int32_t slot) const {
    if (buffer == Buffer::input && !shared_.empty()) {
      const auto shared = shared_[shared_begin_[at(rank)] + at(slot)];
      if (shared >= 0) return of(rank, Buffer::output, shared);
    }
    return at(first_[at(rank) * 3 + at(buffer)] + slot);
  }
  bool is_output(NodeId rank, std::size_t place) const {
    return place >= at(first_[at(rank) * 3 + 1]) && place < at(first_[at(rank) * 3 + 2]);
  }

 private:
  std::vector<std::int64_t> first_;
  std::vector<std::size_t> shared_begin_;
  std::vector<std::int32_t> shared_;
};

// A range of slots.
struct Range {
  Buffer buffer = Buffer::none;
  std::int32_t slot = -1;
  bool used() const { return slot >= 0; }
  bool operator==(const Range&) const = default;
};

struct Action {
  StepOp op = StepOp::nop;
  NodeId rank = 0;
  ThreadId thread = 0;  // in the original program
  Range src, dst;
  std::int32_t count = 0;
  Node partner = kNone;  // the other end of its message
  std::int32_t key = 0;  // its place in an order in which all steps can run
};

}  // namespace tacos::threadblocks
